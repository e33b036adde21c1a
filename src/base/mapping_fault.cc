// All but catch_mapping_faults runs in a signal's handler, where a lock or an allocation could wait for ever for what
// the interrupted code holds: system calls, the stack and arithmetic are all there is. Which file is mapped where is
// asked of the kernel (/proc/self/maps), so that nobody has to keep a table of it that a handler may read.
#include "base/mapping_fault.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/last_words.h"

namespace quire {

namespace {

constexpr int kExitCode = 1;  // that of every error which is not the program's own

// Text in a fixed room; what does not fit is left out.
template <size_t kRoom>
class FixedText {
 public:
  void add(std::string_view text) {
    for (const char c : text) add(c);
  }
  void add(char c) {
    if (size_ < kRoom) text_[size_++] = c;
  }
  void clear() { size_ = 0; }
  std::string_view view() const { return {text_, size_}; }

 private:
  char text_[kRoom];
  size_t size_ = 0;
};

using Path = FixedText<PATH_MAX>;
using MapsLine = FixedText<PATH_MAX + 128>;  // the path, and the numbers before it

// Of "7f5c00000000-7f5c40000000 r--s 00000000 fd:01 131 /a/path": the path, if the address is in that part of memory.
// Of a file that has been unlinked or replaced since, " (deleted)" stands behind it; a newline in it is "\012".
std::string_view path_of_line(std::string_view line, uintptr_t address) {
  const char* const end_of_line = line.data() + line.size();
  uintptr_t begin = 0;
  uintptr_t end = 0;
  const auto first = std::from_chars(line.data(), end_of_line, begin, 16);
  if (first.ptr == end_of_line || *first.ptr != '-') return {};
  std::from_chars(first.ptr + 1, end_of_line, end, 16);
  const size_t slash = line.find('/');
  if (address < begin || address >= end || slash == std::string_view::npos) return {};
  return line.substr(slash);
}

// By its name alone, which the file need not have any more. Devices and memory without a file have names too.
bool is_name_of_file(std::string_view path) {
  const bool is_device = path.starts_with("/dev/") && !path.starts_with("/dev/shm/");
  return path.starts_with('/') && !is_device && !path.starts_with("/memfd:") && !path.starts_with("/SYSV");
}

// False where no file is mapped at the address: memory of a device, say.
bool find_mapped_file(uintptr_t address, Path& path) {
  const int maps = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (maps < 0) return false;
  MapsLine line;
  char bytes[4096];
  ssize_t num_bytes = 0;
  while ((num_bytes = ::read(maps, bytes, sizeof(bytes))) > 0) {
    for (const char c : std::string_view(bytes, static_cast<size_t>(num_bytes))) {
      if (c != '\n') {
        line.add(c);
        continue;
      }
      path.add(path_of_line(line.view(), address));
      line.clear();
    }
  }
  ::close(maps);
  return is_name_of_file(path.view());
}

constexpr std::string_view kWhatIsWrong =
    " cannot be read any more: it was cut off or written anew while it was in use, or its disk fails. Start again once "
    "it is whole; to replace a model, write the new file beside the old one and rename it (mv)";

void handle(int number, siginfo_t* info, void*) {
  // Several threads may read the file: one tells, and ends the others with the process.
  static std::atomic_flag is_told;
  Path path;
  if (info->si_code == BUS_ADRERR && find_mapped_file(reinterpret_cast<uintptr_t>(info->si_addr), path)) {
    while (is_told.test_and_set()) ::pause();
    FixedText<PATH_MAX + kWhatIsWrong.size()> message;
    message.add(path.view());
    message.add(kWhatIsWrong);
    tell_last_words(message.view());
    ::_exit(kExitCode);
  }
  ::signal(number, SIG_DFL);
  ::raise(number);  // once this handler has returned
}

}  // namespace

void catch_mapping_faults() {
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO;
  ::sigfillset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace quire

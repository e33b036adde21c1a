#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace quire {

namespace {

// Closes a file descriptor at the end of its scope.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

Status cannot(const std::string& path, const char* what, int error) {
  return internal_error("cannot " + std::string(what) + " " + path + ": " + std::strerror(error));
}

// What the system knows of an opened file, which must be a regular one.
Result<struct stat> stat_regular_file(const std::string& path, const Descriptor& file) {
  if (file.number() < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return not_found("there is no file " + path);
    if (errno == EACCES || errno == EPERM) return invalid_argument("no permission to read " + path);
    return cannot(path, "open", errno);
  }
  struct stat info = {};
  if (::fstat(file.number(), &info) != 0) return cannot(path, "look at", errno);
  if (S_ISDIR(info.st_mode)) return invalid_argument(path + " is a folder, not a file");
  if (!S_ISREG(info.st_mode)) return invalid_argument(path + " is not a regular file");
  return info;
}

FileVersion version_of(const struct stat& info) {
  return {.device = info.st_dev,
          .inode = info.st_ino,
          .num_bytes = info.st_size,
          .written_at_ns = info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec};
}

}  // namespace

Result<std::unique_ptr<MappedFile>> MappedFile::open(const std::string& path) {
  // Not blocking, so that a named pipe gives an error instead of waiting for a writer.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  ASSIGN_OR_RETURN(const struct stat info, stat_regular_file(path, file));
  if (info.st_size == 0) return invalid_argument(path + " is empty (0 bytes)");
  void* data = ::mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_SHARED, file.number(), 0);
  if (data == MAP_FAILED) return cannot(path, "map", errno);
  return std::unique_ptr<MappedFile>(new MappedFile(path, static_cast<const std::byte*>(data), version_of(info)));
}

Status MappedFile::check_unchanged() const {
  struct stat info = {};
  if (::stat(path_.c_str(), &info) != 0) return ok_status();  // only its name is gone
  const FileVersion now = version_of(info);
  const bool is_another_file = now.device != version_.device || now.inode != version_.inode;
  if (is_another_file || now == version_) return ok_status();
  return invalid_argument(path_ +
                          " was written to while it was being read: start again once it is whole; to replace a model, "
                          "write the new file beside the old one and rename it (mv)");
}

MappedFile::~MappedFile() {
  ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::will_need(std::span<const std::byte> part) const {
  advise(part, MADV_WILLNEED, false);
}

void MappedFile::done_with(std::span<const std::byte> part) const {
  advise(part, MADV_DONTNEED, true);
}

void MappedFile::advise(std::span<const std::byte> part, int advice, bool whole_pages_only) const {
  if (part.empty()) return;
  CHECK(part.data() >= data_ && part.data() + part.size() <= data_ + size_);
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  size_t begin = static_cast<size_t>(part.data() - data_);
  size_t end = begin + part.size();
  if (whole_pages_only) {
    begin = (begin + page - 1) / page * page;
    end = end == size_ ? end : end / page * page;
  } else {
    begin = begin / page * page;
  }
  if (begin < end) ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, advice);
}

Result<std::string> read_text_file(const std::string& path, int64_t max_bytes) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  ASSIGN_OR_RETURN(const struct stat info, stat_regular_file(path, file));
  const int64_t size = info.st_size;
  if (size > max_bytes) {
    return invalid_argument(path + " has " + std::to_string(size) + " bytes; at most " + std::to_string(max_bytes) +
                            " are expected of such a file");
  }
  std::string text(static_cast<size_t>(size), '\0');
  size_t num_read = 0;
  while (num_read < text.size()) {
    const ssize_t count = ::read(file.number(), text.data() + num_read, text.size() - num_read);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return cannot(path, "read", errno);
    if (count == 0) break;
    num_read += static_cast<size_t>(count);
  }
  text.resize(num_read);
  return text;
}

}  // namespace quire

#include "ops/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>

namespace quire {

namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
constexpr int64_t kAlignmentBytes = 256;
// From here on a block is mapped for itself: a page fault every 2 MiB instead of every 4 KiB.
constexpr int64_t kMappedBytes = 4 * kHugePageBytes;
// MADV_COLLAPSE, which Linux has had since 6.1 and headers of C libraries often lack.
constexpr int kCollapse = 25;

// The first number of a file; -1 where there is none ("max", or no file).
int64_t read_number(const std::string& path) {
  std::ifstream file(path);
  int64_t number = -1;
  if (!(file >> number)) return -1;
  return number;
}

// A "key: number kB" line of /proc/meminfo, in bytes.
int64_t meminfo_bytes(const std::string& root, const std::string& key) {
  std::ifstream file(root + "/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string name;
    int64_t kilobytes = 0;
    if (fields >> name >> kilobytes && name == key + ":") return kilobytes * 1024;
  }
  return kUnlimited;
}

// What a cgroup folder leaves: its limit less what it uses, file cache that can be dropped not counted.
int64_t cgroup_left_bytes(const std::string& folder, const char* limit_file, const char* usage_file) {
  const int64_t limit = read_number(folder + limit_file);
  const int64_t usage = read_number(folder + usage_file);
  // Version 1 says "no limit" with a number near 2^63.
  if (limit < 0 || usage < 0 || limit > kUnlimited / 2) return kUnlimited;
  int64_t reclaimable = 0;
  std::ifstream stat(folder + "/memory.stat");
  std::string name;
  int64_t value = 0;
  while (stat >> name >> value) {
    if (name == "inactive_file") reclaimable = value;
  }
  return std::max<int64_t>(0, limit - std::max<int64_t>(0, usage - reclaimable));
}

// The limits of this process's own group and of all groups above it.
int64_t cgroup_left_bytes(const std::string& root) {
  int64_t left =
      std::min(cgroup_left_bytes(root + "/sys/fs/cgroup", "/memory.max", "/memory.current"),
               cgroup_left_bytes(root + "/sys/fs/cgroup/memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes"));
  std::ifstream groups(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first == std::string::npos ? first : first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_version_2 = controllers.empty();
    if (!is_version_2 && controllers != "memory") continue;
    const std::string mount = root + (is_version_2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory");
    for (std::string group = line.substr(second + 1); group.size() > 1; group.resize(group.rfind('/'))) {
      const int64_t group_left =
          is_version_2 ? cgroup_left_bytes(mount + group, "/memory.max", "/memory.current")
                       : cgroup_left_bytes(mount + group, "/memory.limit_in_bytes", "/memory.usage_in_bytes");
      left = std::min(left, group_left);
      if (group.rfind('/') == std::string::npos) break;
    }
  }
  return left;
}

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The first border of a huge page at or after an address.
void* huge_page_border(void* address) {
  return reinterpret_cast<void*>(round_up(static_cast<int64_t>(reinterpret_cast<intptr_t>(address)), kHugePageBytes));
}

}  // namespace

int64_t available_host_bytes(const std::string& root) {
  return std::min(meminfo_bytes(root, "MemAvailable"), cgroup_left_bytes(root));
}

Result<DeviceBuffer> allocate_host(int64_t num_bytes, const char* purpose) {
  CHECK(num_bytes >= 0);
  const int64_t available = available_host_bytes();
  if (num_bytes > available) {
    return resource_exhausted("not enough memory for " + std::string(purpose) + ": it needs " +
                              format_bytes(num_bytes) + ", and " + format_bytes(available) +
                              " are available. Use a smaller model or context, or free memory on this machine.");
  }
  const std::string failure = "the system refused " + format_bytes(num_bytes) + " for " + purpose +
                              "; see ulimit -v and the system's overcommit settings";
  if (num_bytes >= kMappedBytes) {
    // One huge page more than needed, so that the block can begin on a border of one.
    const size_t mapped_bytes = static_cast<size_t>(round_up(num_bytes, kHugePageBytes) + kHugePageBytes);
    void* mapping = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) return resource_exhausted(failure);
    void* data = huge_page_border(mapping);
    madvise(data, mapped_bytes - static_cast<size_t>(kHugePageBytes), MADV_HUGEPAGE);  // a wish: failing is no fault
    return DeviceBuffer(data, num_bytes, Device{}, [mapping, mapped_bytes](void*) { munmap(mapping, mapped_bytes); });
  }
  const size_t rounded_bytes = static_cast<size_t>(round_up(std::max<int64_t>(num_bytes, 1), kAlignmentBytes));
  void* data = std::aligned_alloc(static_cast<size_t>(kAlignmentBytes), rounded_bytes);
  if (data == nullptr) return resource_exhausted(failure);
  return DeviceBuffer(data, num_bytes, Device{}, [](void* block) { std::free(block); });
}

void make_present_in_small_pages(std::byte* data, int64_t num_bytes) {
  if (num_bytes > 0) madvise(data, static_cast<size_t>(num_bytes), MADV_NOHUGEPAGE);
  make_present(data, num_bytes);
}

bool can_make_huge() {
  // Of no bytes: systems that do not know the word refuse it. An emulator may take any word, and do nothing.
  constexpr int kNoWord = std::numeric_limits<int>::max();
  return madvise(nullptr, 0, kNoWord) != 0 && madvise(nullptr, 0, kCollapse) == 0;
}

bool make_huge(std::byte* data) {
  const size_t num_bytes = static_cast<size_t>(kHugePageBytes);
  // A huge page that has just been given back is at hand. Finding one during the move, which may take the host
  // milliseconds, would stop all other threads that move.
  void* mapping = mmap(nullptr, 2 * num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping != MAP_FAILED) {
    std::byte* spare = static_cast<std::byte*>(huge_page_border(mapping));
    madvise(spare, num_bytes, MADV_HUGEPAGE);
    make_present(spare, kHugePageBytes);
    munmap(mapping, 2 * num_bytes);
  }
  return madvise(data, num_bytes, MADV_HUGEPAGE) == 0 && madvise(data, num_bytes, kCollapse) == 0;
}

void make_present(std::byte* data, int64_t num_bytes) {
#ifdef MADV_POPULATE_WRITE
  if (num_bytes > 0) madvise(data, static_cast<size_t>(num_bytes), MADV_POPULATE_WRITE);
#else
  static_cast<void>(data);
  static_cast<void>(num_bytes);
#endif
}

}  // namespace quire

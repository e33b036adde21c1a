#include "base/cpu_info.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace quire {

namespace {

#if defined(__x86_64__)
// XCR0: which register states the operating system saves.
uint64_t read_saved_states() {
  uint32_t low = 0;
  uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

bool has_bit(uint32_t word, int bit) {
  return ((word >> bit) & 1u) != 0;
}

bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  return text.str();
}

// The rest of the first line that starts with `key`, without blanks and colons in front; empty if there is none.
std::string find_field(const std::string& text, std::string_view key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const size_t begin = line.find_first_not_of(" \t:", key.size());
    return begin == std::string::npos ? std::string() : line.substr(begin);
  }
  return {};
}

// "0-3,8" as numbers. Absurd lists are cut off, not believed.
std::vector<int> parse_cpu_list(const std::string& list) {
  constexpr long kMaxCpus = 1 << 16;
  std::vector<int> cpus;
  std::istringstream ranges(list);
  for (std::string range; std::getline(ranges, range, ',');) {
    char* rest = nullptr;
    const long first = std::strtol(range.c_str(), &rest, 10);
    if (rest == range.c_str()) continue;
    const long last = *rest == '-' ? std::strtol(rest + 1, nullptr, 10) : first;
    for (long cpu = first; cpu >= 0 && cpu <= last && cpu < kMaxCpus; ++cpu) cpus.push_back(static_cast<int>(cpu));
  }
  return cpus;
}

int count_physical_cores(const std::string& root, const std::vector<int>& cpus) {
  std::set<std::pair<std::string, std::string>> cores;
  for (const int cpu : cpus) {
    const std::string folder = root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    std::string package = read_file(folder + "physical_package_id");
    std::string core = read_file(folder + "core_id");
    if (core.empty()) core = "cpu " + std::to_string(cpu);  // no topology: every processor counts
    cores.emplace(std::move(package), std::move(core));
  }
  return static_cast<int>(cores.size());
}

// Processors by "max 100000" or "400000 100000"; 0: no limit.
double parse_cpu_max(const std::string& text) {
  std::istringstream fields(text);
  double quota = 0;
  double period = 0;
  if (!(fields >> quota >> period) || quota <= 0 || period <= 0) return 0;
  return quota / period;
}

void keep_smaller(double limit, double& quota) {
  if (limit > 0 && (quota == 0 || limit < quota)) quota = limit;
}

// The limits of a cgroup and of all above it count. A path that the mount does not show (a container without a cgroup
// namespace) is cut down to its root.
template <typename ReadLimit>
void visit_ancestors(const std::string& mount, std::string path, ReadLimit read_limit, double& quota) {
  while (true) {
    keep_smaller(read_limit(mount + path), quota);
    const size_t slash = path.find_last_of('/');
    if (path.empty() || slash == std::string::npos) return;
    path.resize(slash);
  }
}

double read_quota(const std::string& root) {
  double quota = 0;
  const std::string mount = root + "/sys/fs/cgroup";
  const auto read_v2 = [](const std::string& folder) { return parse_cpu_max(read_file(folder + "/cpu.max")); };
  const auto read_v1 = [](const std::string& folder) {
    return parse_cpu_max(read_file(folder + "/cpu.cfs_quota_us") + " " + read_file(folder + "/cpu.cfs_period_us"));
  };
  std::istringstream lines(read_file(root + "/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    if (controllers.empty()) {
      visit_ancestors(mount, path, read_v2, quota);
      visit_ancestors(mount + "/unified", path, read_v2, quota);
      continue;
    }
    std::istringstream names(controllers);
    for (std::string name; std::getline(names, name, ',');) {
      if (name != "cpu") continue;
      visit_ancestors(mount + "/" + controllers, path, read_v1, quota);
      visit_ancestors(mount + "/cpu", path, read_v1, quota);
    }
  }
  return quota;
}

}  // namespace

CpuFeatures detect_cpu_features() {
  CpuFeatures features;
#if defined(__x86_64__)
  uint32_t eax = 0;
  uint32_t ebx = 0;
  uint32_t ecx = 0;
  uint32_t edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || !has_bit(ecx, 27)) return features;  // 27: xgetbv is usable
  const uint64_t states = read_saved_states();
  const bool saves_ymm = (states & 0x6) == 0x6;
  const bool saves_zmm = (states & 0xe6) == 0xe6;
  const bool saves_tiles = (states & 0x60000) == 0x60000;
  features.fma = saves_ymm && has_bit(ecx, 12);
  features.f16c = saves_ymm && has_bit(ecx, 29);
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return features;
  const uint32_t num_subleaves = eax;
  features.avx2 = saves_ymm && has_bit(ebx, 5);
  features.avx512f = saves_zmm && has_bit(ebx, 16);
  features.avx512dq = saves_zmm && has_bit(ebx, 17);
  features.avx512bw = saves_zmm && has_bit(ebx, 30);
  features.avx512vl = saves_zmm && has_bit(ebx, 31);
  features.avx512_vnni = saves_zmm && has_bit(ecx, 11);
  features.amx_tile = saves_tiles && has_bit(edx, 24) && may_use_tiles();
  features.amx_bf16 = features.amx_tile && has_bit(edx, 22);
  features.amx_int8 = features.amx_tile && has_bit(edx, 25);
  if (num_subleaves >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0) {
    features.avx_vnni = saves_ymm && has_bit(eax, 4);
    features.avx512_bf16 = saves_zmm && has_bit(eax, 5);
  }
#elif defined(__aarch64__)
  constexpr unsigned long kDotProducts = 1ul << 20;  // HWCAP_ASIMDDP
  features.neon = true;
  features.neon_dotprod = (getauxval(AT_HWCAP) & kDotProducts) != 0;
#endif
  return features;
}

CpuInfo read_cpu_info(const std::string& root) {
  CpuInfo info;
  info.features = detect_cpu_features();
  info.model_name = find_field(read_file(root + "/proc/cpuinfo"), "model name");
  if (info.model_name.empty()) info.model_name = "unknown";
  const std::vector<int> cpus = parse_cpu_list(find_field(read_file(root + "/proc/self/status"), "Cpus_allowed_list"));
  if (cpus.empty()) {
    info.num_allowed_cpus = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    info.num_physical_cores = info.num_allowed_cpus;
  } else {
    info.num_allowed_cpus = static_cast<int>(cpus.size());
    info.num_physical_cores = count_physical_cores(root, cpus);
  }
  info.quota_cpus = read_quota(root);
  return info;
}

int default_num_threads(const CpuInfo& info) {
  int num_threads = std::min(info.num_allowed_cpus, info.num_physical_cores);
  if (info.quota_cpus > 0 && info.quota_cpus < num_threads) num_threads = static_cast<int>(info.quota_cpus);
  return std::max(1, num_threads);
}

}  // namespace quire

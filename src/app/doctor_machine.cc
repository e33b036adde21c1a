#include "app/doctor_machine.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

#include "ops/host_memory.h"

namespace quire::app {

namespace fs = std::filesystem;

namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// A "Key:  number kB" line in bytes; -1 where there is none.
int64_t kilobytes_of(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string name;
    int64_t kilobytes = 0;
    if (fields >> name >> kilobytes && name == key && kilobytes >= 0 && kilobytes < (int64_t{1} << 50))
      return kilobytes * 1024;
  }
  return -1;
}

// The word in brackets of "always [madvise] never".
std::string chosen_word(const std::string& line) {
  const size_t begin = line.find('[');
  const size_t end = line.find(']', begin == std::string::npos ? 0 : begin);
  if (begin == std::string::npos || end == std::string::npos) return {};
  return line.substr(begin + 1, end - begin - 1);
}

// Folders such as cpu0, cpu1, … or node0.
int count_numbered(const std::string& folder, std::string_view stem) {
  std::error_code error;
  int count = 0;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.size() > stem.size() && name.compare(0, stem.size(), stem) == 0 &&
        name.find_first_not_of("0123456789", stem.size()) == std::string::npos)
      ++count;
  }
  return count;
}

std::vector<std::string> list_gpus(const std::string& root) {
  std::vector<std::string> gpus;
  std::error_code error;
  const fs::path folder = root + "/proc/driver/nvidia/gpus";
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::ifstream file(entry->path() / "information");
    std::string name = "NVIDIA GPU";
    for (std::string line; std::getline(file, line);) {
      if (line.compare(0, 6, "Model:") != 0) continue;
      const size_t begin = line.find_first_not_of(" \t", 6);
      if (begin != std::string::npos) name = line.substr(begin);
    }
    gpus.push_back(name);
  }
  std::sort(gpus.begin(), gpus.end());
  return gpus;
}

// "throttled_usec N" (version 2), or "throttled_time N" in nanoseconds (version 1); of this process's own group where
// the mount shows it, else of the mount's root.
double throttled_seconds(const std::string& root) {
  std::vector<std::string> folders = {root + "/sys/fs/cgroup", root + "/sys/fs/cgroup/cpu"};
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string mount = root + "/sys/fs/cgroup" + (controllers.empty() ? "" : "/" + controllers);
    folders.push_back(mount + line.substr(second + 1));
  }
  double most = 0.0;
  for (const std::string& folder : folders) {
    std::ifstream file(folder + "/cpu.stat");
    std::string key;
    double value = 0.0;
    while (file >> key >> value) {
      if (key == "throttled_usec") most = std::max(most, value * 1e-6);
      if (key == "throttled_time") most = std::max(most, value * 1e-9);
    }
  }
  return most;
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

}  // namespace

std::string shown_features(const CpuFeatures& features) {
  const std::pair<const char*, bool> all[] = {
      {"avx2", features.has_avx2()},
      {"avx512", features.has_avx512()},
      {"avx512_vnni", features.has_avx512_vnni()},
      {"avx512_bf16", features.avx512_bf16},
      {"avx_vnni", features.avx_vnni},
      {"amx_int8", features.amx_int8},
      {"amx_bf16", features.amx_bf16},
      {"neon", features.neon},
      {"neon_dotprod", features.neon_dotprod},
  };
  std::string text;
  for (const auto& [name, is_there] : all) {
    if (is_there) text += (text.empty() ? "" : " ") + std::string(name);
  }
  return text.empty() ? "none that kernels use" : text;
}

MachineState read_machine_state(const std::string& root) {
  MachineState state;
  state.cpu = read_cpu_info(root);
  state.num_online_cpus = count_numbered(root + "/sys/devices/system/cpu", "cpu");
  state.num_numa_nodes = count_numbered(root + "/sys/devices/system/node", "node");
  state.governor = first_line(root + "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  state.huge_pages = chosen_word(first_line(root + "/sys/kernel/mm/transparent_hugepage/enabled"));
  const std::string memory = root + "/proc/meminfo";
  state.memory_bytes = kilobytes_of(memory, "MemTotal:");
  if (kilobytes_of(memory, "MemAvailable:") >= 0) state.available_bytes = available_host_bytes(root);
  state.swap_bytes = kilobytes_of(memory, "SwapTotal:");
  const int64_t swap_free_bytes = kilobytes_of(memory, "SwapFree:");
  if (state.swap_bytes >= 0 && swap_free_bytes >= 0)
    state.swap_used_bytes = std::max<int64_t>(0, state.swap_bytes - swap_free_bytes);
  state.own_swapped_bytes = kilobytes_of(root + "/proc/self/status", "VmSwap:");
  state.gpus = list_gpus(root);
  return state;
}

CpuClock read_cpu_clock(const std::string& root) {
  CpuClock clock;
  clock.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  // "cpu user nice system idle iowait irq softirq steal …"; the times of guests are inside user and nice.
  std::istringstream fields(first_line(root + "/proc/stat"));
  std::string name;
  double ticks[8] = {};
  fields >> name;
  for (double& value : ticks) fields >> value;
  if (name == "cpu") {
    const double ticks_a_second = static_cast<double>(std::max(1L, sysconf(_SC_CLK_TCK)));
    clock.busy_s = (ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6]) / ticks_a_second;
    clock.stolen_s = ticks[7] / ticks_a_second;
  }
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) == 0) clock.own_s = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
  clock.throttled_s = throttled_seconds(root);
  return clock;
}

Disturbance disturbance_between(const CpuClock& before, const CpuClock& after) {
  const double wall_s = after.wall_s - before.wall_s;
  if (!(wall_s > 0)) return {};
  const double others_s = (after.busy_s - before.busy_s) - (after.own_s - before.own_s);
  return {std::max(0.0, after.stolen_s - before.stolen_s) / wall_s, std::max(0.0, others_s) / wall_s,
          std::clamp((after.throttled_s - before.throttled_s) / wall_s, 0.0, 1.0)};
}

}  // namespace quire::app

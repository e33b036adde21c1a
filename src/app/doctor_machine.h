// The state of the machine that `quire doctor` tells of: what this process may use, what else goes on beside it, and
// settings of the system that cost speed. Read from /proc and /sys below a root folder that tests replace; what a file
// does not tell stays unknown (-1, or empty).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/cpu_info.h"

namespace quire::app {

struct MachineState {
  CpuInfo cpu;
  int num_online_cpus = 0;
  int num_numa_nodes = 0;
  std::string governor;    // of the first processor: "performance", "powersave", …
  std::string huge_pages;  // transparent ones: "always", "madvise" or "never"
  int64_t memory_bytes = -1;
  int64_t available_bytes = -1;  // to this process
  int64_t swap_bytes = -1;
  int64_t swap_used_bytes = -1;
  int64_t own_swapped_bytes = -1;  // of this process
  std::vector<std::string> gpus;   // as NVIDIA's driver names them
};

MachineState read_machine_state(const std::string& root = {});

// "avx2 avx512": the instruction sets that kernels use, or may once use.
std::string shown_features(const CpuFeatures& features);

// Counters that only grow; the difference of two readings tells what went on between them.
struct CpuClock {
  double wall_s = 0.0;
  double busy_s = 0.0;       // of all processors together, all processes
  double stolen_s = 0.0;     // of all processors: another guest of the same host ran meanwhile
  double own_s = 0.0;        // of this process
  double throttled_s = 0.0;  // this process's cgroup had used up its quota
};

CpuClock read_cpu_clock(const std::string& root = {});

// What went on beside this process between two readings, in processors.
struct Disturbance {
  double stolen_cpus = 0.0;
  double other_cpus = 0.0;
  double throttled_share = 0.0;  // of the time
};

// More than this, and figures that were measured meanwhile are not what the machine can do.
inline constexpr double kNotableStolenCpus = 0.02;
inline constexpr double kNotableOtherCpus = 0.15;
inline constexpr double kNotableThrottledShare = 0.01;

Disturbance disturbance_between(const CpuClock& before, const CpuClock& after);

}  // namespace quire::app

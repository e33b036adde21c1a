// What the processor can do and how much of it this process may use: instruction sets from cpuid, cores from the
// system's files, quotas from cgroups. Read once at start by ops/backends and by `doctor`; files are read below a root
// folder that tests replace.
#pragma once

#include <string>

namespace quire {

// Instruction sets that both the processor and the operating system (its saved registers) support.
struct CpuFeatures {
  bool avx2 = false;
  bool fma = false;
  bool f16c = false;
  bool avx512f = false;
  bool avx512bw = false;
  bool avx512vl = false;
  bool avx512dq = false;
  bool avx512_vnni = false;
  bool avx512_bf16 = false;
  bool avx_vnni = false;
  bool amx_tile = false;  // these three only where the system lets this process use tiles
  bool amx_int8 = false;
  bool amx_bf16 = false;
  bool neon = false;          // with fused multiply-add and half floats: every 64-bit ARM has both
  bool neon_dotprod = false;  // sdot, udot

  // What the kernels of ops/cpu ask for, as groups.
  bool has_avx2() const { return avx2 && fma && f16c; }
  bool has_avx512() const { return has_avx2() && avx512f && avx512bw && avx512vl && avx512dq; }
  bool has_avx512_vnni() const { return has_avx512() && avx512_vnni; }
  bool has_amx_int8() const { return has_avx512_vnni() && amx_tile && amx_int8; }
};

// Asks Linux for the use of AMX's tiles, which it gives to processes that ask, for all of their threads.
CpuFeatures detect_cpu_features();

struct CpuInfo {
  std::string model_name;  // "AMD EPYC 7B13", or "unknown"
  CpuFeatures features;
  int num_allowed_cpus = 1;    // logical processors in this process's affinity mask
  int num_physical_cores = 1;  // distinct cores among those
  double quota_cpus = 0;       // CPU time a period by cgroup quota, in processors; 0: no quota
};

// `root` stands before /proc and /sys; empty for the real ones.
CpuInfo read_cpu_info(const std::string& root = {});

// min(quota rounded down, affinity mask, physical cores), at least 1.
int default_num_threads(const CpuInfo& info);

}  // namespace quire

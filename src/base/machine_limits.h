// What this machine can do at most, measured where and when a benchmark runs: the figures that its shares are of.
#pragma once

#include "base/cpu_info.h"
#include "base/thread_pool.h"

namespace quire {

struct MachineLimits {
  double read_gbps = 0;    // bytes summed from a buffer far larger than the caches, 10^9 a second
  double int8_gops = 0;    // multiplications and additions of bytes by the widest instructions, in registers
  double bf16_gflops = 0;  // the same of products of bf16, summed in float; where only float has instructions, theirs
  double f32_gflops = 0;   // fused multiply-adds (two each) by the widest instructions, in registers
};

// All threads of the pool together; takes about a second.
MachineLimits measure_machine_limits(ThreadPool& pool, const CpuFeatures& features);

}  // namespace quire

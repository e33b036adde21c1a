// The CPU backend once for every kernel row of an op that this processor can run, and once with several threads.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/cpu_info.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/kernel_table.h"

namespace quire {

struct CpuRow {
  std::string name;
  std::string reduction_order;
  std::unique_ptr<CpuOps> ops;
};

inline std::unique_ptr<CpuOps> make_cpu_ops(int num_threads, const std::string& op = {}, const std::string& row = {}) {
  BackendOptions options;
  options.num_threads = num_threads;
  if (!row.empty()) options.forced_kernels[op] = row;
  return CpuOps::create(options).value();
}

template <typename Call>
std::vector<CpuRow> cpu_rows(const std::string& op, std::span<const KernelRow<Call>> rows) {
  const CpuFeatures features = detect_cpu_features();
  std::vector<CpuRow> all;
  for (const KernelRow<Call>& row : rows) {
    if (row.name == "avx512" && !features.has_avx512()) continue;
    if (row.name == "avx2" && !features.has_avx2()) continue;
    const std::string name(row.name);
    const std::string order(row.reduction_order);
    all.push_back({name, order, make_cpu_ops(1, op, name)});
    all.push_back({name + ", 3 threads", order, make_cpu_ops(3, op, name)});
  }
  return all;
}

}  // namespace quire

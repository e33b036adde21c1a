// Which kernel rows of the CPU backend a processor can run, best first: what `quire doctor` tells and `quire tune`
// chooses among, and what --kernel may force. Steps do not ask here; they choose for each call.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/cpu_info.h"
#include "ops/ops.h"
#include "quant/format.h"

namespace quire::cpu {

struct KernelChoice {
  std::string op;                      // as --kernel op=row says it
  std::string format;                  // of the weights, for linear; else empty
  std::vector<std::string_view> rows;  // those that accept; the first runs unless another is forced
};

// Linear once for each of the formats, then the other ops.
std::vector<KernelChoice> kernel_choices(const CpuFeatures& features, Compute compute,
                                         std::span<const FormatId> formats);

// The rows of an op that may run here, in any format and for any number of tokens; empty for an op without a choice.
std::vector<std::string_view> possible_rows(const CpuFeatures& features, Compute compute, std::string_view op);

}  // namespace quire::cpu

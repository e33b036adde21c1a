#include "ops/cpu/kernel_choices.h"

#include <algorithm>

#include "base/thread_pool.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/linear.h"
#include "ops/kernel_table.h"
#include "tensor/arena.h"

namespace quire::cpu {

namespace {

template <typename Call>
KernelChoice choice_of(std::string op, std::span<const KernelRow<Call>> rows, const Call& call,
                       std::string format = {}) {
  KernelChoice choice{std::move(op), std::move(format), {}};
  for (const KernelRow<Call>& row : rows) {
    if (row.accepts(call)) choice.rows.push_back(row.name);
  }
  return choice;
}

// Rows accept by processor, format and shape, and look at no data: a call that is never launched.
KernelChoice linear_choice(const CpuFeatures& features, Compute compute, FormatId format, int64_t num_tokens) {
  constexpr int64_t kInputs = 256;  // one block of the largest format
  constexpr int64_t kOutputs = 64;
  ThreadPool pool(1);
  Arena scratch{DeviceBuffer()};
  Weight weight;
  weight.format = format;
  weight.layout = Layout::kCpuPanels;
  weight.n = kOutputs;
  weight.k = kInputs;
  const LinearCall call{.pool = pool,
                        .scratch = scratch,
                        .features = features,
                        .compute = compute,
                        .y = TensorView(nullptr, DType::kF32, {num_tokens, kOutputs}),
                        .x = ConstTensorView(nullptr, DType::kF32, {num_tokens, kInputs}),
                        .weight = weight,
                        .epilogue = {}};
  return choice_of("linear", linear_rows(), call, std::string(quant_format(format).name));
}

}  // namespace

// Calls of the other ops are looked at for the processor alone.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

std::vector<KernelChoice> kernel_choices(const CpuFeatures& features, Compute compute,
                                         std::span<const FormatId> formats) {
  std::vector<KernelChoice> choices;
  for (const FormatId format : formats) choices.push_back(linear_choice(features, compute, format, 1));
  AttentionInputs inputs{features};
  inputs.compute = compute;
  choices.push_back(choice_of("attention", attention_rows(), AttentionCall{inputs}));
  choices.push_back(choice_of("rms_norm", rms_norm_rows(), RmsNormCall{features}));
  choices.push_back(choice_of("elementwise", binary_rows(), BinaryCall{features}));
  choices.push_back(choice_of("soft_cap", soft_cap_rows(), SoftCapCall{features}));
  choices.push_back(choice_of("rope", rope_rows(), RopeCall{features}));
  choices.push_back(choice_of("write_kv", write_kv_rows(), WriteKvCall{features}));
  return choices;
}

#pragma GCC diagnostic pop

std::vector<std::string_view> possible_rows(const CpuFeatures& features, Compute compute, std::string_view op) {
  constexpr int64_t kManyTokens = 4096;
  std::vector<KernelChoice> choices = kernel_choices(features, compute, {});
  for (const QuantFormat& format : kQuantFormats) {
    for (const int64_t num_tokens : {int64_t{1}, kManyTokens}) {
      choices.push_back(linear_choice(features, compute, format.id, num_tokens));
    }
  }
  std::vector<std::string_view> names;
  for (const KernelChoice& choice : choices) {
    if (choice.op != op) continue;
    for (const std::string_view name : choice.rows) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

}  // namespace quire::cpu

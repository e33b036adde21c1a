// Default bodies of the fused ops: the plain ones, one after another.
#include "ops/ops.h"

#include "ops/host_memory.h"
#include "ops/logits_rows.h"
#include "ops/sample_rows.h"
#include "quant/random_rows.h"

namespace quire {

Ops::MemorySize Ops::memory() const {
  const int64_t available = available_host_bytes();
  return {available, available};
}

Result<DeviceBuffer> Ops::allocate_for_host(int64_t num_bytes, const char* purpose) {
  return allocate_host(num_bytes, purpose);
}

Result<Weight> Ops::make_random_weight(const Weight& shape, uint64_t seed) {
  const int64_t num_bytes = shape.num_experts * shape.n * shape.quant().row_bytes(shape.k);
  ASSIGN_OR_RETURN(DeviceBuffer buffer, allocate_host(num_bytes, "random weights"));
  const std::span<std::byte> rows(static_cast<std::byte*>(buffer.data()), static_cast<size_t>(num_bytes));
  fill_random_rows(shape.format, rows, seed);
  Weight weight = shape;
  weight.layout = Layout::kRowMajor;
  weight.parts = {};
  weight.parts[0] = rows;
  weight.owner = std::make_shared<DeviceBuffer>(std::move(buffer));
  return pack(weight);
}

void Ops::sample(OpContext&, TensorView ids, ConstTensorView logits, const SamplingRow* rows) {
  sample_rows(ids, logits, rows);
}

void Ops::adjust_logits(OpContext&, TensorView logits, const LogitsAdjustments& adjustments) {
  adjust_rows(logits, adjustments);
}

void Ops::logprobs(OpContext&, ConstTensorView logits, const LogprobsCall& call) {
  logprobs_rows(logits, call);
}

void Ops::norm_linear(OpContext& context, TensorView y, ConstTensorView x, const InputNorm& norm, const Weight& weight,
                      const Epilogue& epilogue) {
  if (!norm.weight.is_given()) {
    linear(context, y, x, weight, epilogue);
    return;
  }
  const ArenaScope scope(context.scratch);
  const TensorView normed = context.scratch.take(norm.output_dtype(x), {x.size(0), x.size(1)});
  rms_norm(context, normed, x, norm.weight, norm.epsilon);
  linear(context, y, normed, weight, epilogue);
}

void Ops::norm_gated_linear(OpContext& context, TensorView y, ConstTensorView x, const InputNorm& norm,
                            const Weight& weight, ConstTensorView bias, Activation activation) {
  const ArenaScope scope(context.scratch);
  const TensorView both = context.scratch.take(y.dtype(), {x.size(0), weight.n});
  norm_linear(context, both, x, norm, weight, {.bias = bias, .residual = {}});
  gated_activation(context, y, both.slice(1, 0, weight.n / 2), both.slice(1, weight.n / 2, weight.n), activation);
}

void Ops::rope_and_write_kv(OpContext& context, TensorView q, TensorView k, ConstTensorView v, ConstTensorView table,
                            RopeStyle style, const KvTarget& target) {
  rope(context, q, table, style);
  rope(context, k, table, style);
  write_kv(context, target.kv, k, v, target.slots);
}

void Ops::rope_and_attention(OpContext& context, TensorView out, const QueryKeyValue& inputs, const PagedKv& kv,
                             const AttentionBatch& batch, const AttentionPlan& plan, const AttentionParams& params) {
  rope_and_write_kv(context, inputs.q, inputs.k, inputs.v, inputs.rope_table, inputs.rope_style, {kv, batch.slots});
  attention(context, out, inputs.q, kv, batch, plan, params);
}

void Ops::add_rms_norm(OpContext& context, TensorView y, TensorView x, ConstTensorView delta, ConstTensorView weight,
                       float epsilon) {
  add(context, x, x, delta);
  rms_norm(context, y, x, weight, epsilon);
}

}  // namespace quire

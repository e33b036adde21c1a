#include "layers/attention.h"

namespace quire {

void attention_layer(StepContext& context, const StepBatch& batch, const AttentionLayer& layer, TensorView y,
                     const AttentionInputs& inputs) {
  Ops& ops = context.ops;
  OpContext& op_context = context.op_context;
  const ArenaScope scope(op_context.scratch);
  const size_t index = static_cast<size_t>(layer.layer_index);
  const PagedKv& kv = context.layer_kv[index];
  const StepKvGroup& group = batch.kv_groups[static_cast<size_t>(context.layer_group[index])];

  const DType dtype = inputs.norm.output_dtype(inputs.x);
  const int64_t num_tokens = inputs.x.size(0);
  const int64_t query_size = static_cast<int64_t>(layer.num_heads) * layer.head_dim;
  const int64_t kv_size = static_cast<int64_t>(layer.num_kv_heads) * layer.head_dim;
  const TensorView qkv = op_context.scratch.take(dtype, {num_tokens, query_size + 2 * kv_size});
  norm_linear(context, layer.qkv, qkv, inputs.x, inputs.norm);
  const TensorView q = qkv.slice(1, 0, query_size).split_last_dimension(layer.head_dim);
  const TensorView k = qkv.slice(1, query_size, query_size + kv_size).split_last_dimension(layer.head_dim);
  const TensorView v =
      qkv.slice(1, query_size + kv_size, query_size + 2 * kv_size).split_last_dimension(layer.head_dim);

  if (layer.q_norm.is_given()) ops.rms_norm(op_context, q, q, layer.q_norm, layer.norm_epsilon);
  if (layer.k_norm.is_given()) ops.rms_norm(op_context, k, k, layer.k_norm, layer.norm_epsilon);
  const TensorView mixed = op_context.scratch.take(dtype, {num_tokens, query_size});
  ops.rope_and_attention(op_context, mixed.split_last_dimension(layer.head_dim),
                         {.q = q, .k = k, .v = v, .rope_table = inputs.rope_table, .rope_style = layer.rope_style}, kv,
                         group.batch, *group.plan, layer.params);
  // Not is_given(): no rows at all may come as a view without data.
  if (inputs.rows.rank() == 0) {
    linear(context, layer.output, y, mixed, inputs.residual);
    return;
  }
  const TensorView wanted = op_context.scratch.take(dtype, {inputs.rows.size(0), query_size});
  ops.gather_rows(op_context, wanted, mixed, inputs.rows);
  linear(context, layer.output, y, wanted, inputs.residual);
}

}  // namespace quire

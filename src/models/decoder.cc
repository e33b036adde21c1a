#include "models/decoder.h"

#include "models/kv_groups.h"

namespace quire {

std::vector<KvGroup> Decoder::kv_groups(DType dtype) const {
  return make_kv_groups(parts_.config, parts_.num_kv_heads, dtype);
}

TensorView Decoder::forward(StepContext& context, const StepBatch& batch) const {
  Ops& ops = context.ops;
  OpContext& op_context = context.op_context;
  Arena& arena = op_context.scratch;
  const int64_t num_tokens = batch.num_tokens;
  const TensorView logits = arena.take(DType::kF32, {batch.logit_rows.size(0), parts_.config.vocab_size});

  const ArenaScope scope(arena);
  const DType dtype = parts_.activation_dtype;
  const int64_t hidden_size = parts_.config.hidden_size;
  Stream stream = {.hidden = arena.take(dtype, {num_tokens, hidden_size}),
                   .normed = arena.take(dtype, {num_tokens, hidden_size}),
                   .delta = {}};
  if (parts_.layers[0].mlp_post_norm.is_given()) stream.delta = arena.take(dtype, {num_tokens, hidden_size});

  const ConstTensorView positions(batch.positions.raw_data(), DType::kI32, {num_tokens});
  std::vector<TensorView> rope_tables;
  for (const RopeParams& rope : parts_.ropes) {
    rope_tables.push_back(arena.take(DType::kF32, {num_tokens, 2 * rope.inverse_frequencies.size(0)}));
    ops.rope_table(op_context, rope_tables.back(), positions, rope);
  }

  ops.embedding(op_context, stream.hidden, parts_.embedding, batch.token_ids, parts_.config.embedding_scale);
  for (const DecoderLayer& layer : parts_.layers) {
    run_layer(context, batch, layer, stream, rope_tables[static_cast<size_t>(layer.rope_index)]);
  }
  head_layer(context, parts_.head, logits, stream.hidden, batch.logit_rows);
  return logits;
}

void Decoder::run_layer(StepContext& context, const StepBatch& batch, const DecoderLayer& layer, const Stream& stream,
                        ConstTensorView rope_table) const {
  Ops& ops = context.ops;
  OpContext& op_context = context.op_context;
  const float epsilon = parts_.config.norm_epsilon;
  const bool is_sandwich = layer.mlp_post_norm.is_given();

  ops.rms_norm(op_context, stream.normed, stream.hidden, layer.attention_norm, epsilon);
  if (is_sandwich) {
    attention_layer(context, batch, layer.attention, stream.delta, stream.normed, rope_table);
    ops.rms_norm(op_context, stream.delta, stream.delta, layer.attention_post_norm, epsilon);
    ops.add_rms_norm(op_context, stream.normed, stream.hidden, stream.delta, layer.mlp_norm, epsilon);
    mlp_layer(context, layer.mlp, stream.delta, stream.normed);
    ops.rms_norm(op_context, stream.delta, stream.delta, layer.mlp_post_norm, epsilon);
    ops.add(op_context, stream.hidden, stream.hidden, stream.delta);
  } else {
    attention_layer(context, batch, layer.attention, stream.hidden, stream.normed, rope_table, stream.hidden);
    ops.rms_norm(op_context, stream.normed, stream.hidden, layer.mlp_norm, epsilon);
    mlp_layer(context, layer.mlp, stream.hidden, stream.normed, stream.hidden);
  }
}

}  // namespace quire

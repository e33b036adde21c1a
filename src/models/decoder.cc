#include "models/decoder.h"

#include <array>

#include "models/kv_groups.h"

namespace quire {
namespace {

constexpr size_t kMaxRopes = 2;  // one for all layers, or a second for those with a window

bool is_plain(const Linear& linear) {
  return linear.parts.size() == 1 && !linear.parts[0].bias.is_given();
}

// As Ops::decoder_step takes them; empty where some layer is of another kind, or they differ.
std::vector<StepLayer> make_step_layers(const DecoderParts& parts) {
  std::vector<StepLayer> layers;
  for (const DecoderLayer& layer : parts.layers) {
    const AttentionLayer& attention = layer.attention;
    const AttentionLayer& first = parts.layers[0].attention;
    const bool is_alike =
        attention.num_heads == first.num_heads && attention.rope_style == first.rope_style &&
        attention.params.scale == first.params.scale && attention.params.soft_cap == first.params.soft_cap &&
        attention.params.window == first.params.window && layer.rope_index == parts.layers[0].rope_index &&
        layer.mlp.activation == parts.layers[0].mlp.activation;
    if (!is_alike || layer.mlp_post_norm.is_given() || attention.q_norm.is_given() || attention.k_norm.is_given() ||
        !is_plain(attention.qkv) || !is_plain(attention.output) || !is_plain(layer.mlp.gate_up) ||
        !is_plain(layer.mlp.down)) {
      return {};
    }
    layers.push_back({.attention_norm = layer.attention_norm,
                      .qkv = attention.qkv.parts[0].weight,
                      .output = attention.output.parts[0].weight,
                      .mlp_norm = layer.mlp_norm,
                      .gate_up = layer.mlp.gate_up.parts[0].weight,
                      .down = layer.mlp.down.parts[0].weight});
  }
  return layers;
}

}  // namespace

Decoder::Decoder(DecoderParts parts) : parts_(std::move(parts)), step_layers_(make_step_layers(parts_)) {}

std::vector<KvGroup> Decoder::kv_groups(DType dtype) const {
  return make_kv_groups(parts_.config, parts_.num_kv_heads, dtype);
}

Result<StepOutput> Decoder::forward(StepContext& context, const StepBatch& batch) const {
  Ops& ops = context.ops;
  OpContext& op_context = context.op_context;
  Arena& arena = op_context.scratch;
  const int64_t num_tokens = batch.num_tokens;
  const int64_t num_output_rows = batch.output_rows.size(0);
  const int64_t num_logit_rows = num_output_rows - batch.num_hidden_rows;
  StepOutput output;
  output.logits = arena.take(DType::kF32, {num_logit_rows, parts_.config.vocab_size});
  output.hidden = arena.take(parts_.activation_dtype, {batch.num_hidden_rows, parts_.config.hidden_size});

  const ArenaScope scope(arena);
  const DType residual_dtype = ops.residual_dtype(parts_.activation_dtype);
  const Stream all = take_stream(arena, residual_dtype, num_tokens);
  // After the last attention only the wanted rows go on.
  const Stream wanted = take_stream(arena, residual_dtype, num_output_rows);

  const ConstTensorView positions(batch.positions.raw_data(), DType::kI32, {num_tokens});
  std::array<TensorView, kMaxRopes> rope_tables;
  CHECK(parts_.ropes.size() <= rope_tables.size());
  for (size_t i = 0; i < parts_.ropes.size(); ++i) {
    rope_tables[i] = arena.take(DType::kF32, {num_tokens, 2 * parts_.ropes[i].inverse_frequencies.size(0)});
    ops.rope_table(op_context, rope_tables[i], positions, parts_.ropes[i]);
  }

  ops.embedding(op_context, all.hidden, parts_.embedding, batch.token_ids, parts_.config.embedding_scale);
  const AttentionInputs step_inputs = {.x = all.hidden,
                                       .norm = {},
                                       .rope_table = rope_tables[static_cast<size_t>(parts_.layers[0].rope_index)],
                                       .residual = {},
                                       .rows = {}};
  const bool is_one_row = num_tokens == 1 && num_output_rows == 1;
  const bool is_done = is_one_row && try_step(context, batch, wanted.hidden, step_inputs);
  for (const DecoderLayer& layer : parts_.layers) {
    if (is_done) break;
    const bool is_last = &layer == &parts_.layers.back();
    const Stream& stream = is_last ? wanted : all;
    AttentionInputs inputs = {.x = all.hidden,
                              .norm = {layer.attention_norm, parts_.config.norm_epsilon, parts_.activation_dtype},
                              .rope_table = rope_tables[static_cast<size_t>(layer.rope_index)],
                              .residual = {},
                              .rows = {}};
    if (is_last) {
      inputs.rows = batch.output_rows;
      ops.gather_rows(op_context, wanted.hidden, all.hidden, batch.output_rows);
    }
    run_layer(context, batch, layer, stream, inputs);
  }
  if (batch.num_hidden_rows > 0) {
    ops.rms_norm(op_context, output.hidden, wanted.hidden.slice(0, num_logit_rows, num_output_rows),
                 parts_.head.norm.weight, parts_.head.norm.epsilon);
  }
  head_layer(context, parts_.head, output.logits, wanted.hidden.slice(0, 0, num_logit_rows));
  return output;
}

bool Decoder::try_step(StepContext& context, const StepBatch& batch, const TensorView& y,
                       const AttentionInputs& inputs) const {
  if (step_layers_.empty() || batch.kv_groups.size() != 1) return false;
  const AttentionLayer& attention = parts_.layers[0].attention;
  return context.ops.decoder_step(context.op_context, {.layers = step_layers_,
                                                       .layer_kv = context.layer_kv,
                                                       .y = y,
                                                       .x = inputs.x,
                                                       .norm_epsilon = parts_.config.norm_epsilon,
                                                       .num_heads = attention.num_heads,
                                                       .rope_table = inputs.rope_table,
                                                       .rope_style = attention.rope_style,
                                                       .attention = attention.params,
                                                       .activation = parts_.layers[0].mlp.activation,
                                                       .batch = batch.kv_groups[0].batch});
}

Decoder::Stream Decoder::take_stream(Arena& arena, DType residual_dtype, int64_t num_rows) const {
  const DType dtype = parts_.activation_dtype;
  const int64_t hidden_size = parts_.config.hidden_size;
  Stream stream = {
      .hidden = arena.take(residual_dtype, {num_rows, hidden_size}), .middle = {}, .normed = {}, .delta = {}};
  if (parts_.layers[0].mlp_post_norm.is_given()) {
    stream.normed = arena.take(dtype, {num_rows, hidden_size});
    stream.delta = arena.take(dtype, {num_rows, hidden_size});
  } else {
    stream.middle = arena.take(residual_dtype, {num_rows, hidden_size});
  }
  return stream;
}

void Decoder::run_layer(StepContext& context, const StepBatch& batch, const DecoderLayer& layer, const Stream& stream,
                        const AttentionInputs& inputs) const {
  Ops& ops = context.ops;
  OpContext& op_context = context.op_context;
  const float epsilon = parts_.config.norm_epsilon;
  if (layer.mlp_post_norm.is_given()) {  // sandwich norms
    attention_layer(context, batch, layer.attention, stream.delta, inputs);
    ops.rms_norm(op_context, stream.delta, stream.delta, layer.attention_post_norm, epsilon);
    ops.add_rms_norm(op_context, stream.normed, stream.hidden, stream.delta, layer.mlp_norm, epsilon);
    mlp_layer(context, layer.mlp, stream.delta, stream.normed, {});
    ops.rms_norm(op_context, stream.delta, stream.delta, layer.mlp_post_norm, epsilon);
    ops.add(op_context, stream.hidden, stream.hidden, stream.delta);
  } else {
    AttentionInputs residual_inputs = inputs;
    residual_inputs.residual = stream.hidden;
    attention_layer(context, batch, layer.attention, stream.middle, residual_inputs);
    mlp_layer(context, layer.mlp, stream.hidden, stream.middle, {layer.mlp_norm, epsilon, parts_.activation_dtype},
              stream.middle);
  }
}

}  // namespace quire

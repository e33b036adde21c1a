// The attention part of a decoder layer: q, k and v from one input, norms on their heads, RoPE, K and V into the pages,
// attention over the pages, output projection.
#pragma once

#include "layers/linear.h"
#include "layers/step_context.h"

namespace quire {

struct AttentionLayer {
  int layer_index = 0;  // in the model: finds the layer's pages
  int num_heads = 0;    // of this rank
  int num_kv_heads = 0;
  int head_dim = 0;
  Linear qkv;              // outputs: query heads, key heads, value heads
  ConstTensorView q_norm;  // [head_dim] f32, or not given
  ConstTensorView k_norm;
  float norm_epsilon = 0.0f;
  RopeStyle rope_style = RopeStyle::kHalves;
  AttentionParams params;
  Linear output;
};

// y = output(attention(norm(x))) (+ residual).   x, y, residual: [num_tokens, hidden]; residual may be y; y may be x
//   rope_table: [num_tokens, rotary_dim] f32
//   rows: [num_rows] i32, or left out (rank 0). With it only these rows of the answer are made, and y and residual
//     have num_rows
struct AttentionInputs {
  ConstTensorView x;
  InputNorm norm;  // of x; or not given
  ConstTensorView rope_table;
  ConstTensorView residual;
  ConstTensorView rows;
};
void attention_layer(StepContext& context, const StepBatch& batch, const AttentionLayer& layer, TensorView y,
                     const AttentionInputs& inputs);

}  // namespace quire

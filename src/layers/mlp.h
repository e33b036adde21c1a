// The gated MLP of a decoder layer: down(activation(gate(x)) * up(x)).
#pragma once

#include "layers/linear.h"
#include "layers/step_context.h"

namespace quire {

struct MlpLayer {
  Linear gate_up;  // outputs: gate, then as many of up
  Linear down;
  Activation activation = Activation::kSilu;
};

// y = down(activation(gate(x)) * up(x)) (+ residual), of norm(x) where a norm is given.   x, y, residual: [num_tokens,
// hidden]; residual may be y; y may be x
void mlp_layer(StepContext& context, const MlpLayer& layer, TensorView y, ConstTensorView x, const InputNorm& norm,
               ConstTensorView residual = {});

}  // namespace quire

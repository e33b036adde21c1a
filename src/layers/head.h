// The end of a decoder: from the rows whose logits are wanted to logits.
#pragma once

#include "layers/linear.h"
#include "layers/step_context.h"

namespace quire {

struct HeadLayer {
  InputNorm norm;
  Linear output;          // outputs: the vocabulary
  float soft_cap = 0.0f;  // 0: none
};

// logits = output(norm(x)).   x: [num_rows, hidden]   logits: [num_rows, vocab] f32
void head_layer(StepContext& context, const HeadLayer& layer, TensorView logits, TensorView x);

}  // namespace quire

// A linear layer: one weight, or several that read the same input and write column slices of one output, where a file's
// q, k and v (or gate and up) differ in format and cannot be one matrix.
#pragma once

#include <vector>

#include "layers/step_context.h"

namespace quire {

struct Linear {
  struct Part {
    Weight weight;
    ConstTensorView bias;  // [n] f32, or not given
  };
  std::vector<Part> parts;  // outputs one after another

  int64_t num_outputs() const;
};

// y = x · Wᵀ (+ bias + residual).   x: [num_tokens, k]   y, residual: [num_tokens, n]; residual may be y itself
void linear(StepContext& context, const Linear& layer, TensorView y, ConstTensorView x, ConstTensorView residual = {});

// The same of rms_norm(x), where a norm is given.
void norm_linear(StepContext& context, const Linear& layer, TensorView y, ConstTensorView x, const InputNorm& norm);

}  // namespace quire

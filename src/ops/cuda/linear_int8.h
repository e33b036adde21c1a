// The row `int8` of linear: see linear_int8.cu.
#pragma once

#include "ops/cuda/linear.h"

namespace quire::cuda {

bool accepts_int8(const LinearCall& call);
// With a gated activation behind: 2 * y's columns are the weight's outputs.
bool accepts_gated_int8(const LinearCall& call);
void linear_int8(const LinearCall& call);

// Rows of x as int8, [num_tokens, k], each with a scale that makes its largest 127; normed first, and rounded to x's
// dtype, where a norm is given. A row with NaN has that scale.
struct Int8TokensArgs {
  int8_t* codes;
  float* scales;
  ConstTensorView x;
  ConstTensorView norm_weight;  // or not given
  float epsilon;
};
constexpr int64_t kMostInt8Columns = 16384;
bool accepts_int8_tokens(const ConstTensorView& x, const ConstTensorView& norm_weight);
void quantize_tokens_to_int8(cudaStream_t stream, const Int8TokensArgs& args);

}  // namespace quire::cuda

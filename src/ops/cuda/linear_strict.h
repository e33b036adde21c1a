// Linear layers where a token's bits must not depend on the number of tokens (BackendOptions::is_strict): for each
// weight and dtype one order of sums and one rounding, and as many kernels as share it. Not rows of the table, which
// choose by the number of tokens too.
//   bf16, f16 weights         one k after the other: up to 64 tokens `even_rows`, for more cuBLASLt where it has the
//                             same bits, or linear_many_tokens.cu
//   e4m3 weights              the order of `few_tokens`: up to 64 tokens that, for more linear_many_tokens.cu
//   int4_g128, q4_0, q4_k,    the order of `few_tokens_integer` with scaled numbers: up to 256 tokens that, for more
//   q8_0, q6_k                the same numbers in memory and linear_many_tokens.cu
//   int8                      the row `int8`, whose sums are exact
//   other formats             `skinny_mma`, whatever the number of tokens
//   all else, grouped too     `any_shape`
#pragma once

#include "ops/cuda/linear.h"

namespace quire::cuda {

void linear_strict(const LinearCall& call);

// Whether linear_strict takes the call's norm (e4m3 and int8 weights), or its gate.
bool accepts_strict_norm(const LinearCall& call);
bool accepts_strict_gate(const LinearCall& call);

}  // namespace quire::cuda

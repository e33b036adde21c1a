// The row `even_rows`: up to 64 tokens, 16-bit weights of the activations' dtype, with the gated activation behind
// where a layer wants it. One k is added after the other, as cuBLASLt does where it splits no k: the order of strict
// calls.
#pragma once

#include "ops/cuda/linear.h"

namespace quire::cuda {

constexpr int kMaxEvenTokens = 64;

// What a call must be but for its number of tokens.
bool fits_even_rows(const LinearCall& call);

bool accepts_even_rows(const LinearCall& call);
bool accepts_gated_even_rows(const LinearCall& call);
void linear_even_rows(const LinearCall& call);

}  // namespace quire::cuda

// The row `few_tokens`: up to 64 tokens, e4m3 weights, with a norm before and a gated activation behind where a layer
// wants them. The row `few_tokens_integer`: up to 256 tokens, weights of an integer format, with the gated activation.
#pragma once

#include "ops/cuda/linear.h"

namespace quire::cuda {

constexpr int kMaxFewTokens = 64;
constexpr int kMaxFewTokensInteger = 256;

// What a call must be but for its number of tokens.
bool fits_few_tokens(const LinearCall& call);
bool fits_few_tokens_integer(const LinearCall& call);

bool accepts_few_tokens_integer(const LinearCall& call);
bool accepts_gated_few_tokens_integer(const LinearCall& call);
void linear_few_tokens_integer(const LinearCall& call);
bool accepts_few_tokens(const LinearCall& call);
bool accepts_gated_few_tokens(const LinearCall& call);
void linear_few_tokens(const LinearCall& call);

}  // namespace quire::cuda

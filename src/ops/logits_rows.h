// What changes rows of logits before tokens are drawn, and what is told of them after: the calls of the ops
// `adjust_logits` and `logprobs`, and their arithmetic, which every backend follows bit for bit. The engine fills the
// calls; its own sampler, where the host draws, computes with the same functions.
#pragma once

#include <cstdint>
#include <limits>

#include "ops/ops.h"

namespace quire {

// ---- adjust_logits: penalties, then biases, then the mask
// ------------------------------------------------------------

struct Penalties {
  float repetition = 1.0f;
  float presence = 0.0f;
  float frequency = 0.0f;
};

// A token of a prompt or of its output, for the penalties: each once.
struct PenalizedToken {
  int32_t token_id = 0;
  int32_t num_in_output = 0;
};

// Those of one token lie side by side and are added in their order.
struct TokenBias {
  int32_t token_id = 0;
  float bias = 0.0f;
};

// Of one row. Tokens outside of the row are passed over.
struct LogitsAdjustment {
  int32_t row = 0;
  int32_t kept_row = -1;  // of LogitsAdjustments::kept, which gets the row as it was; -1: nobody wants it
  int32_t first_penalized = 0;
  int32_t num_penalized = 0;
  int32_t first_bias = 0;
  int32_t num_biases = 0;
  int32_t first_mask_word = -1;  // -1: no mask. Bit t % 32 of word t / 32 says that token t may be drawn
  Penalties penalties;
};

// All pointers are of the device's memory. A row stands in it once at most.
struct LogitsAdjustments {
  int num_rows = 0;
  const LogitsAdjustment* rows = nullptr;
  const PenalizedToken* penalized = nullptr;
  const TokenBias* biases = nullptr;
  const uint32_t* mask_words = nullptr;
  TensorView kept;  // [some, vocab_size] f32; may be left out
};

constexpr float penalized_logit(float logit, const Penalties& penalties, int32_t num_in_output) {
  // Selected rather than branched on, because no processor can guess the sign of a logit; x / 1 and x * 1 are x.
  const float divisor = logit > 0.0f ? penalties.repetition : 1.0f;
  const float factor = logit > 0.0f ? 1.0f : penalties.repetition;
  const float presence = num_in_output > 0 ? penalties.presence : 0.0f;
  return logit / divisor * factor - (penalties.frequency * static_cast<float>(num_in_output) + presence);
}

// What is no number stays, so that `sample` tells of it.
constexpr float masked_logit(float logit) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  return logit < kInfinity ? -kInfinity : logit;
}

// ---- logprobs: sums are integers, as those of sample_rows.h; logarithms are left to the caller
// -----------------------

constexpr int kMostTopTokens = 128;
constexpr double kWeightSumScale = 0x1p40;  // sums are in steps of 2^-40

struct LogprobsRow {
  int32_t row = 0;            // of the logits, and of the tokens that were drawn
  int32_t kept_row = -1;      // >= 0: this row of LogprobsCall::kept in place of the logits
  int32_t num_token_ids = 0;  // ids from here on do not count
  int32_t num_top = 0;        // at most LogprobsCall::most_top
  int32_t given_id = -1;      // >= 0: this token is told of, not the one that was drawn
  float scale = 1.0f;         // 1 / temperature
};

struct LogprobsResult {
  uint64_t total = 0;  // sum of e^((logit - best) * scale), each in whole steps; 0: no token was drawn, and the
                       // rest says nothing
  float best = 0.0f;
  float drawn = 0.0f;   // the logit of the token that was drawn, or given
  int32_t rank = 0;     // 1: no token is better; of equal ones the lower id is
  int32_t num_top = 0;  // tokens with a logit of minus infinity are never among the best
};

struct TopToken {
  int32_t token_id = 0;
  float logit = 0.0f;
};

struct LogprobsCall {
  int num_rows = 0;
  const LogprobsRow* rows = nullptr;
  const int32_t* ids = nullptr;       // that were drawn, for every row of the logits; < 0: none
  ConstTensorView kept;               // as adjust_logits has filled it; may be left out
  LogprobsResult* results = nullptr;  // [num_rows]
  TopToken* top = nullptr;            // [num_rows, most_top], the best first
  int most_top = 0;                   // at most kMostTopTokens
};

// ---- The ops in plain loops over host memory: the definition
// ---------------------------------------------------------

void adjust_rows(TensorView logits, const LogitsAdjustments& adjustments);
void logprobs_rows(ConstTensorView logits, const LogprobsCall& call);

}  // namespace quire

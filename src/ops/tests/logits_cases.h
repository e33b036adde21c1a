// Rows of logits with penalties, biases and masks, and with log-probabilities that are wanted, for the tests of
// `adjust_logits` and `logprobs` on every backend.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/logits_rows.h"
#include "ops/tests/op_test_data.h"

namespace quire {

// Every combination of what may change a row, over rows of one size that stand in the logits in another order, with
// rows between them that nothing changes.
struct AdjustCase {
  int64_t size = 0;
  int64_t num_rows = 0;
  int64_t num_kept = 0;
  std::vector<float> logits;
  std::vector<LogitsAdjustment> rows;
  std::vector<PenalizedToken> penalized;
  std::vector<TokenBias> biases;
  std::vector<uint32_t> mask_words;
};

inline AdjustCase make_adjust_case(TestRandom& random, int64_t size) {
  AdjustCase result;
  result.size = size;
  const auto token = [&] { return static_cast<int32_t>(random.bits() % static_cast<uint64_t>(size)); };
  for (int kind = 0; kind < 32; ++kind) {
    LogitsAdjustment row;
    row.row = 2 * (31 - kind);
    if ((kind & 1) != 0) row.kept_row = static_cast<int32_t>(result.num_kept++);
    if ((kind & 2) != 0) {
      row.penalties = {.repetition = 1.3f, .presence = 0.7f, .frequency = 0.31f};
      row.first_penalized = static_cast<int32_t>(result.penalized.size());
      std::vector<int32_t> tokens = {-1, static_cast<int32_t>(size)};  // not of the row
      for (int i = 0; i < 700; ++i) tokens.push_back(token());
      std::sort(tokens.begin(), tokens.end());
      tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
      for (const int32_t id : tokens) result.penalized.push_back({id, static_cast<int32_t>(random.bits() % 4)});
      row.num_penalized = static_cast<int32_t>(result.penalized.size()) - row.first_penalized;
    }
    if ((kind & 4) != 0) {
      row.first_bias = static_cast<int32_t>(result.biases.size());
      for (int i = 0; i < 300; ++i) {
        const int32_t id = i == 0 ? static_cast<int32_t>(size) : token();
        for (int repeat = 0; repeat < 1 + i % 3; ++repeat) result.biases.push_back({id, 3.0f * random.normal()});
      }
      row.num_biases = static_cast<int32_t>(result.biases.size()) - row.first_bias;
      const auto begin = result.biases.begin() + row.first_bias;
      std::stable_sort(begin, result.biases.end(),
                       [](const TokenBias& a, const TokenBias& b) { return a.token_id < b.token_id; });
    }
    if ((kind & 24) != 0) {
      row.first_mask_word = static_cast<int32_t>(result.mask_words.size());
      for (int64_t word = 0; word < (size + 31) / 32; ++word) {
        const uint32_t bits = static_cast<uint32_t>(random.bits());
        const uint32_t many = (bits & 7u) == 0 ? bits : ~0u;
        result.mask_words.push_back((kind & 24) == 8 ? bits : (kind & 24) == 16 ? many : ~many);
      }
    }
    result.rows.push_back(row);
  }
  result.num_rows = 64;
  for (int64_t i = 0; i < result.num_rows * size; ++i) result.logits.push_back(4.0f * random.normal());
  // What is no number stays none, under a mask too.
  for (const int64_t row : {0, 2, 32}) {
    result.logits[static_cast<size_t>(row * size)] = NAN;
    result.logits[static_cast<size_t>(row * size + size / 2)] = row == 32 ? INFINITY : -INFINITY;
  }
  return result;
}

// Rows of several kinds: random ones, ones with many equal logits, with few tokens that have a chance at all, and one
// whose greatest logits lie where few threads of a GPU look.
struct LogprobsCase {
  int64_t size = 0;
  int64_t num_rows = 0;
  int most_top = 0;
  std::vector<float> logits;
  std::vector<int32_t> ids;
  std::vector<LogprobsRow> rows;
};

inline LogprobsCase make_logprobs_case(TestRandom& random, int64_t size) {
  LogprobsCase result;
  result.size = size;
  result.num_rows = 12;
  result.most_top = kMostTopTokens;
  for (int64_t r = 0; r < result.num_rows; ++r) {
    for (int64_t i = 0; i < size; ++i) {
      float logit = 4.0f * random.normal();
      if (r % 6 == 1) logit = std::round(logit);
      if (r % 6 == 2) logit = i % 97 == 5 ? logit : -INFINITY;
      if (r % 6 == 3) logit = 0.0f * logit;  // both zeros
      if (r % 6 == 4 && i % 4096 < 320) logit += 40.0f;
      if (r % 6 == 5) logit = static_cast<float>(i) * 1e-3f;
      result.logits.push_back(logit);
    }
    result.ids.push_back(r == 7 ? -1 : static_cast<int32_t>(random.bits() % static_cast<uint64_t>(size)));
  }
  for (const int32_t num_top : {0, 1, 5, 20, 128}) {
    for (int32_t r = 0; r < static_cast<int32_t>(result.num_rows); ++r) {
      const bool is_cut = r % 3 == 2 && num_top != 5;
      result.rows.push_back({.row = r,
                             .kept_row = num_top == 20 ? (r + 1) % 12 : -1,
                             .num_token_ids = static_cast<int32_t>(is_cut ? std::max<int64_t>(1, size - 3) : size),
                             .num_top = num_top,
                             .given_id = num_top == 1 ? static_cast<int32_t>(size - 1) / 2 : -1,
                             .scale = r % 2 == 0 ? 1.0f : 1.0f / 0.7f});
    }
  }
  return result;
}

}  // namespace quire

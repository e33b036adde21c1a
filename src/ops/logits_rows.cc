#include "ops/logits_rows.h"

#include <algorithm>
#include <vector>

#include "ops/sample_rows.h"

namespace quire {

static_assert(kWeightSumScale == double{kTokenWeightScale});

void adjust_rows(TensorView logits, const LogitsAdjustments& adjustments) {
  const int64_t size = logits.size(1);
  for (int a = 0; a < adjustments.num_rows; ++a) {
    const LogitsAdjustment& adjustment = adjustments.rows[a];
    float* const row = logits.data<float>() + adjustment.row * logits.stride(0);
    if (adjustment.kept_row >= 0) {
      std::copy_n(row, size, adjustments.kept.data<float>() + adjustment.kept_row * adjustments.kept.stride(0));
    }
    const auto is_inside = [size](int32_t token) { return token >= 0 && token < size; };
    for (int32_t i = 0; i < adjustment.num_penalized; ++i) {
      const auto [token, num_in_output] = adjustments.penalized[adjustment.first_penalized + i];
      if (is_inside(token)) row[token] = penalized_logit(row[token], adjustment.penalties, num_in_output);
    }
    for (int32_t i = 0; i < adjustment.num_biases; ++i) {
      const auto [token, bias] = adjustments.biases[adjustment.first_bias + i];
      if (is_inside(token)) row[token] += bias;
    }
    if (adjustment.first_mask_word < 0) continue;
    const uint32_t* const words = adjustments.mask_words + adjustment.first_mask_word;
    for (int64_t t = 0; t < size; ++t) {
      if ((words[t / 32] >> (t % 32) & 1u) == 0) row[t] = masked_logit(row[t]);
    }
  }
}

namespace {

LogprobsResult logprobs_row(const float* logits, const LogprobsRow& row, int64_t size, int32_t drawn,
                            std::vector<TopToken>& top) {
  LogprobsResult result;
  top.clear();
  if (drawn < 0 || drawn >= size) return result;
  result.best = *std::max_element(logits, logits + size);
  result.drawn = logits[drawn];
  result.rank = 1;
  for (int64_t t = 0; t < size; ++t) {
    result.total += scaled_token_weight((logits[t] - result.best) * row.scale, kLowestX);
    if (logits[t] > result.drawn || (logits[t] == result.drawn && t < drawn)) ++result.rank;
    if (logits[t] > -std::numeric_limits<float>::infinity()) top.push_back({static_cast<int32_t>(t), logits[t]});
  }
  const size_t num_top = std::min(top.size(), static_cast<size_t>(row.num_top));
  std::partial_sort(top.begin(), top.begin() + static_cast<int64_t>(num_top), top.end(),
                    [](const TopToken& a, const TopToken& b) {
                      return a.logit != b.logit ? a.logit > b.logit : a.token_id < b.token_id;
                    });
  top.resize(num_top);
  result.num_top = static_cast<int32_t>(num_top);
  return result;
}

}  // namespace

void logprobs_rows(ConstTensorView logits, const LogprobsCall& call) {
  std::vector<TopToken> top;
  for (int r = 0; r < call.num_rows; ++r) {
    const LogprobsRow& row = call.rows[r];
    const float* const data = row.kept_row >= 0 ? call.kept.data<float>() + row.kept_row * call.kept.stride(0)
                                                : logits.data<float>() + row.row * logits.stride(0);
    const int64_t size = std::min<int64_t>(logits.size(1), row.num_token_ids);
    const int32_t drawn = call.ids[row.row];
    call.results[r] = logprobs_row(data, row, size, drawn >= 0 && row.given_id >= 0 ? row.given_id : drawn, top);
    std::copy(top.begin(), top.end(), call.top + int64_t{r} * call.most_top);
  }
}

}  // namespace quire

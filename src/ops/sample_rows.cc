#include "ops/sample_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace quire {

namespace {

struct Candidate {
  int32_t id;
  uint32_t key;
  uint64_t weight;
};

__extension__ using Wide = unsigned __int128;

// Of candidates in descending order of key, those that it takes to reach `wanted`; of equal keys the lower ids.
template <typename Amount>
void keep_first(std::vector<Candidate>& candidates, uint64_t wanted, Amount amount) {
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.key != b.key ? a.key > b.key : a.id < b.id; });
  uint64_t reached = 0;
  size_t count = 0;
  while (count < candidates.size() && reached < wanted) reached += amount(candidates[count++]);
  candidates.resize(count);
}

int32_t sample_row(const float* logits, int64_t size, const SamplingRow& row) {
  float best = -std::numeric_limits<float>::infinity();
  int32_t best_id = 0;
  for (int64_t i = 0; i < size; ++i) {
    if (!(logits[i] < std::numeric_limits<float>::infinity())) return -1;
    if (logits[i] > best) {
      best = logits[i];
      best_id = static_cast<int32_t>(i);
    }
  }
  if (std::isinf(best)) return -1;
  if (row.inverse_temperature <= 0) return best_id;
  std::vector<Candidate> candidates;
  for (int64_t i = 0; i < size; ++i) {
    const float x = (logits[i] - best) * row.inverse_temperature;
    if (!(x >= row.lowest)) continue;
    const uint32_t key = kHighestTokenKey - static_cast<uint32_t>(-x * kTokenKeyScale);
    candidates.push_back({static_cast<int32_t>(i), key, scaled_token_weight(x, row.lowest)});
  }
  const auto total_of = [&] {
    uint64_t total = 0;
    for (const Candidate& candidate : candidates) total += candidate.weight;
    return total;
  };
  if (row.top_k > 0 && row.top_k < size) {
    keep_first(candidates, static_cast<uint64_t>(row.top_k), [](const Candidate&) { return uint64_t{1}; });
  }
  if (row.top_p < 1.0f) {
    keep_first(candidates, mass_of_share(total_of(), row.top_p), [](const Candidate& c) { return c.weight; });
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  const uint64_t target = static_cast<uint64_t>(Wide{total_of()} * row.uniform_bits >> 53);
  uint64_t running = 0;
  for (const Candidate& candidate : candidates) {
    running += candidate.weight;
    if (running > target) return candidate.id;
  }
  return best_id;
}

}  // namespace

void sample_rows(TensorView ids, ConstTensorView logits, const SamplingRow* rows) {
  for (int64_t i = 0; i < logits.size(0); ++i) {
    const int64_t size = std::min<int64_t>(logits.size(1), rows[i].num_token_ids);
    ids.data<int32_t>()[i] = sample_row(logits.data<float>() + i * logits.stride(0), size, rows[i]);
  }
}

}  // namespace quire

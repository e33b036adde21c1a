// Sampling: adjust the logits, cut the candidates down, draw one.
#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/exp_nonpositive.h"
#include "engine/philox.h"

namespace quire {

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr float kGreedyTemperature = 1e-5f;
// exp(-45) = 3e-20: even 2^20 such tokens weigh less than the 53 bits of a draw can tell.
constexpr float kNegligible = -45.0f;
// What a log-probability of minus infinity is reported as: JSON has no infinities.
constexpr float kLowestLogprob = -9999.0f;

struct BestLogit {
  float value = kNever;
  size_t index = 0;       // the first that has it
  bool is_finite = true;  // no NaN, no +infinity, and not minus infinity everywhere
};

// Lanes, so that the compiler may use vectors; the greatest is the same in any order. Of each block only its greatest
// is kept, and the block that has the greatest of all is searched once more.
[[gnu::always_inline]] inline BestLogit find_best_in_blocks(std::span<const float> logits) {
  constexpr size_t kLanes = 16;
  constexpr size_t kBlock = 1024;
  BestLogit best;
  float spoils[kLanes] = {};  // 0, or NaN once a NaN or plus infinity came by
  size_t best_block = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const size_t end = std::min(logits.size(), begin + kBlock);
    float bests[kLanes];
    for (float& lane_best : bests) lane_best = kNever;
    const auto take = [&](size_t lane, float logit) __attribute__((always_inline)) {
      bests[lane] = logit > bests[lane] ? logit : bests[lane];
      // 0 * x is 0 for numbers; minus infinity is allowed, and is clamped before.
      spoils[lane] += 0.0f * (logit < -1e30f ? -1e30f : logit);
    };
    size_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane) take(lane, logits[i + lane]);
    }
    for (; i < end; ++i) take(0, logits[i]);
    float block_best = kNever;
    for (const float lane_best : bests) block_best = lane_best > block_best ? lane_best : block_best;
    if (block_best > best.value) {
      best.value = block_best;
      best_block = begin;
    }
  }
  float spoil = 0.0f;
  for (const float lane_spoil : spoils) spoil += lane_spoil;
  best.is_finite = spoil == 0.0f && best.value > kNever;
  if (best.is_finite) {
    best.index = best_block;
    while (logits[best.index] != best.value) ++best.index;
  }
  return best;
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] BestLogit find_best_avx2(std::span<const float> logits) {
  return find_best_in_blocks(logits);
}
#endif

BestLogit find_best(std::span<const float> logits) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return find_best_avx2(logits);
#endif
  return find_best_in_blocks(logits);
}

// Logits whose bit is not set can never be drawn. Most words of a mask are all ones or all zeros.
void exclude_unset(std::span<const uint32_t> mask, std::span<float> logits) {
  for (size_t begin = 0; begin < logits.size(); begin += 32) {
    const uint32_t word = mask[begin / 32];
    if (word == ~0u) continue;
    const size_t count = std::min<size_t>(32, logits.size() - begin);
    float* const block = logits.data() + begin;
    if (word == 0) {
      std::fill_n(block, count, kNever);
      continue;
    }
    for (size_t i = 0; i < count; ++i) block[i] = (word >> i & 1u) != 0 ? block[i] : kNever;
  }
}

struct LogprobOf {
  double best;
  double scale;
  double log_total;
  float operator()(float logit) const {
    const double logprob = (static_cast<double>(logit) - best) * scale - log_total;
    return logprob > static_cast<double>(kLowestLogprob) ? static_cast<float>(logprob) : kLowestLogprob;
  }
};

bool is_better(const TokenLogprob& a, const TokenLogprob& b) {
  return a.logprob != b.logprob ? a.logprob > b.logprob : a.token_id < b.token_id;
}

// How many of the leading elements, in ascending order of `less`, it takes for their weights to reach `mass`; those are
// moved to the front. Partial selection: halves that lie wholly inside or outside are never sorted.
template <typename Iterator, typename Less>
Iterator select_mass(Iterator begin, Iterator end, double mass, Less less) {
  Iterator low = begin;
  Iterator high = end;
  double needed = mass;
  while (high - low > 16) {
    const Iterator middle = low + (high - low) / 2;
    std::nth_element(low, middle, high, less);
    double inside = 0.0;
    for (Iterator it = low; it != middle; ++it) inside += static_cast<double>(it->weight);
    if (inside >= needed) {
      high = middle;
    } else {
      needed -= inside;
      low = middle;
    }
  }
  std::sort(low, high, less);
  while (low != high) {
    needed -= static_cast<double>(low->weight);
    ++low;
    if (needed <= 0.0) break;
  }
  return low;
}

}  // namespace

Sampler::Sampler(int64_t vocab_size, int64_t num_token_ids) : num_token_ids_(std::min(vocab_size, num_token_ids)) {
  adjusted_.resize(static_cast<size_t>(vocab_size));
  mask_.resize(static_cast<size_t>(vocab_size + 31) / 32);
  weights_.resize(static_cast<size_t>(vocab_size));
  candidates_.reserve(static_cast<size_t>(vocab_size));
}

bool Sampler::needs_counts(const SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f || params.frequency_penalty != 0.0f;
}

void Sampler::count_prompt(SamplingState& state, std::span<const int32_t> prompt) {
  for (const int32_t token : prompt) state.counts.add_prompt(token);
}

Status Sampler::not_numbers() {
  return internal_error(
      "the model's logits for this request are not finite numbers; the weights or this request's KV memory may be "
      "damaged");
}

Status Sampler::all_excluded() {
  return invalid_argument(
      "no token may come next: the allowed tokens, the bans, the bias and the constraint exclude all of them, "
      "or the constraint's grammar can be read in too many ways at once to be followed");
}

Penalties Sampler::penalties_of(const SamplingParams& params) {
  return {.repetition = params.repetition_penalty,
          .presence = params.presence_penalty,
          .frequency = params.frequency_penalty};
}

float Sampler::scale_of(const SamplingParams& params) {
  return params.temperature < kGreedyTemperature ? 1.0f : 1.0f / params.temperature;
}

SamplingRow Sampler::device_row(const SampleCall& call, int64_t num_token_ids) {
  const SamplingParams& params = call.params;
  SamplingRow row;
  row.num_token_ids = static_cast<int32_t>(num_token_ids);
  if (params.temperature < kGreedyTemperature) return row;
  row.inverse_temperature = 1.0f / params.temperature;
  if (params.min_p > 0.0f) row.lowest = std::max(row.lowest, std::log(params.min_p));
  row.top_p = params.top_p;
  row.top_k = static_cast<int32_t>(std::min<int64_t>(params.top_k, num_token_ids));
  row.uniform_bits =
      philox_bits(call.seed, static_cast<uint32_t>(call.choice_index), static_cast<uint64_t>(call.output_index));
  return row;
}

bool Sampler::needs_mask(const SampleCall& call) {
  return !call.params.allowed_token_ids.empty() || !call.params.banned_token_ids.empty() ||
         !call.suppressed_token_ids.empty() || call.state.constraint != nullptr;
}

// Bits of tokens that neither the request nor its constraint exclude.
void Sampler::fill_mask(const SampleCall& call, std::span<uint32_t> mask) {
  const auto is_inside = [&](int32_t token) { return token >= 0 && static_cast<size_t>(token) / 32 < mask.size(); };
  const auto allow = [&](std::span<uint32_t> words) {
    std::fill(words.begin(), words.end(), 0u);
    for (const int32_t token : call.params.allowed_token_ids) {
      if (is_inside(token)) words[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
    }
  };
  const bool has_allowed = !call.params.allowed_token_ids.empty();
  if (call.state.constraint != nullptr) {
    std::fill(mask.begin(), mask.end(), ~0u);
    call.state.constraint->fill_mask(mask);
    if (has_allowed) {  // hardly anybody asks for both
      std::vector<uint32_t> allowed(mask.size());
      allow(allowed);
      for (size_t word = 0; word < mask.size(); ++word) mask[word] &= allowed[word];
    }
  } else if (has_allowed) {
    allow(mask);
  } else {
    std::fill(mask.begin(), mask.end(), ~0u);
  }
  const auto exclude = [&](std::span<const int32_t> tokens) {
    for (const int32_t token : tokens) {
      if (is_inside(token)) mask[static_cast<size_t>(token) / 32] &= ~(1u << (token % 32));
    }
  };
  exclude(call.params.banned_token_ids);
  exclude(call.suppressed_token_ids);
}

// The logits after penalties, bias and masks: a copy where anything changes, else the row itself.
std::span<const float> Sampler::adjust(const SampleCall& call) {
  const SamplingParams& params = call.params;
  const size_t num_ids = static_cast<size_t>(num_token_ids_);
  const bool has_penalties = needs_counts(params) && !call.state.counts.entries().empty();
  const bool has_mask = needs_mask(call);
  if (!has_penalties && params.logit_bias.empty() && !has_mask) return call.logits.first(num_ids);
  const std::span<float> row = std::span(adjusted_).first(num_ids);
  std::copy_n(call.logits.begin(), num_ids, row.begin());
  const auto is_valid = [&](int32_t token) { return token >= 0 && token < num_token_ids_; };
  if (has_penalties) {
    const Penalties penalties = penalties_of(params);
    for (const auto& [token, num_in_output] : call.state.counts.entries()) {
      if (!is_valid(token)) continue;
      float& logit = row[static_cast<size_t>(token)];
      logit = penalized_logit(logit, penalties, num_in_output);
    }
  }
  for (const auto& [token, bias] : params.logit_bias) {
    if (is_valid(token)) row[static_cast<size_t>(token)] += bias;
  }
  if (has_mask) {
    fill_mask(call, mask_);
    exclude_unset(mask_, row);
  }
  return row;
}

Result<Sample> Sampler::sample(const SampleCall& call) {
  const BestLogit raw_best = find_best(call.logits);
  if (!raw_best.is_finite) return not_numbers();
  const std::span<const float> row = adjust(call);
  const bool is_same_row = row.data() == call.logits.data() && row.size() == call.logits.size();
  const BestLogit best = is_same_row ? raw_best : find_best(row);
  if (!best.is_finite) return all_excluded();
  Sample sample;
  const SamplingParams& params = call.params;
  const bool is_greedy = params.temperature < kGreedyTemperature;
  if (is_greedy) {
    sample.token_id = static_cast<int32_t>(best.index);
  } else {
    sample.token_id = draw(row, best.value, call);
  }
  if (params.num_logprobs >= 0) {
    if (params.logprob_mode == LogprobMode::kProcessed) {
      sample.logprobs = make_logprobs(row, best.value, scale_of(params), sample.token_id, params.num_logprobs);
    } else {
      sample.logprobs = make_logprobs(call.logits, raw_best.value, 1.0f, sample.token_id, params.num_logprobs);
    }
  }
  return sample;
}

int32_t Sampler::draw(std::span<const float> logits, float best, const SampleCall& call) {
  const SamplingParams& params = call.params;
  const double uniform =
      philox_uniform(call.seed, static_cast<uint32_t>(call.choice_index), static_cast<uint64_t>(call.output_index));
  const Scaling scaling = {.best = best,
                           .scale = 1.0f / params.temperature,
                           .lowest = params.min_p > 0.0f ? std::max(kNegligible, std::log(params.min_p)) : kNegligible};
  const int64_t num_ids = static_cast<int64_t>(logits.size());
  if (params.top_k > 0 && params.top_k < num_ids) {
    collect_top_k(logits, scaling, params.top_k);
  } else {
    const double total = fill_weights(logits, scaling);
    if (params.typical_p >= 1.0f && params.top_p >= 1.0f) return draw_from_weights(uniform * total);
    // All tokens lighter than this together weigh less than what top_p may leave out, so none is in the nucleus.
    const double lightest = params.typical_p < 1.0f
                                ? 0.0
                                : (1.0 - static_cast<double>(params.top_p)) * total / static_cast<double>(num_ids);
    collect_heavy(logits, scaling, lightest);
    if (params.typical_p >= 1.0f) {
      keep_top_p(params.top_p, total);
      return draw_candidate(uniform);
    }
  }
  if (params.typical_p < 1.0f) keep_typical(params.typical_p);
  if (params.top_p < 1.0f) keep_top_p(params.top_p, total_weight());
  return draw_candidate(uniform);
}

// Every token's weight, 0 where min_p or arithmetic leave it no chance. Returns their sum: sixteen sums in a fixed
// order.
double Sampler::fill_weights(std::span<const float> logits, const Scaling& scaling) {
  constexpr size_t kLanes = 16;
  const size_t count = logits.size();
  float* weights = weights_.data();
  for (size_t i = 0; i < count; ++i) {
    const float x = (logits[i] - scaling.best) * scaling.scale;
    const float weight = exp_nonpositive(x);
    weights[i] = x >= scaling.lowest ? weight : 0.0f;
  }
  double sums[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += static_cast<double>(weights[i + lane]);
  }
  for (; i < count; ++i) sums[0] += static_cast<double>(weights[i]);
  double total = 0.0;
  for (const double sum : sums) total += sum;
  num_weights_ = count;
  return total;
}

// The token at which the running sum passes `target`.
int32_t Sampler::draw_from_weights(double target) const {
  size_t chosen = 0;
  double left = target;
  for (size_t i = 0; i < num_weights_; ++i) {
    if (weights_[i] <= 0.0f) continue;
    chosen = i;
    left -= static_cast<double>(weights_[i]);
    if (left < 0.0) break;
  }
  return static_cast<int32_t>(chosen);
}

int32_t Sampler::draw_candidate(double uniform) const {
  double left = uniform * total_weight();
  int32_t chosen = candidates_.front().token_id;
  for (const Candidate& candidate : candidates_) {
    if (candidate.weight <= 0.0f) continue;
    chosen = candidate.token_id;
    left -= static_cast<double>(candidate.weight);
    if (left < 0.0) break;
  }
  return chosen;
}

// Of the filled weights those that are positive and at least `lightest`, in order of their ids.
void Sampler::collect_heavy(std::span<const float> logits, const Scaling& scaling, double lightest) {
  candidates_.clear();
  const float threshold = std::max(static_cast<float>(lightest) * 0.999f, std::numeric_limits<float>::min());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (weights_[i] < threshold) continue;
    const float x = (logits[i] - scaling.best) * scaling.scale;
    candidates_.push_back({static_cast<int32_t>(i), x, weights_[i]});
  }
}

// The k best that min_p leaves. For few a heap, which nearly all of a vocabulary never enters; else partial selection.
void Sampler::collect_top_k(std::span<const float> logits, const Scaling& scaling, int64_t k) {
  constexpr int64_t kMostForHeap = 512;
  const auto is_better = [](const Candidate& a, const Candidate& b) {
    return a.x != b.x ? a.x > b.x : a.token_id < b.token_id;
  };
  candidates_.clear();
  const size_t most = static_cast<size_t>(k);
  float threshold = scaling.lowest;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float x = (logits[i] - scaling.best) * scaling.scale;
    if (!(x >= threshold)) continue;
    if (k <= kMostForHeap && candidates_.size() == most) {
      if (x == threshold && x == candidates_.front().x) continue;  // of equals the lower ids stay
      std::pop_heap(candidates_.begin(), candidates_.end(), is_better);
      candidates_.pop_back();
    }
    candidates_.push_back({static_cast<int32_t>(i), x, 0.0f});
    if (k <= kMostForHeap) {
      std::push_heap(candidates_.begin(), candidates_.end(), is_better);
      if (candidates_.size() == most) threshold = candidates_.front().x;
    }
  }
  if (candidates_.size() > most) {
    std::nth_element(candidates_.begin(), candidates_.begin() + k, candidates_.end(), is_better);
    candidates_.resize(most);
  }
  for (Candidate& candidate : candidates_) candidate.weight = exp_nonpositive(candidate.x);
}

double Sampler::total_weight() const {
  double total = 0.0;
  for (const Candidate& candidate : candidates_) total += static_cast<double>(candidate.weight);
  return total;
}

// Locally typical sampling (Meister et al., 2022): those whose surprise is nearest to the expected surprise.
void Sampler::keep_typical(double mass) {
  const double total = total_weight();
  const double log_total = std::log(total);
  double entropy = 0.0;
  for (const Candidate& candidate : candidates_) {
    entropy += static_cast<double>(candidate.weight) / total * (log_total - static_cast<double>(candidate.x));
  }
  // The key of a candidate is minus its gap, so that the best have the greatest.
  for (Candidate& candidate : candidates_) {
    candidate.key = -static_cast<float>(std::abs(log_total - static_cast<double>(candidate.x) - entropy));
  }
  const auto end = select_mass(
      candidates_.begin(), candidates_.end(), mass * total,
      [](const Candidate& a, const Candidate& b) { return a.key != b.key ? a.key > b.key : a.token_id < b.token_id; });
  candidates_.erase(end, candidates_.end());
}

void Sampler::keep_top_p(double mass, double total) {
  const auto end = select_mass(
      candidates_.begin(), candidates_.end(), mass * total,
      [](const Candidate& a, const Candidate& b) { return a.x != b.x ? a.x > b.x : a.token_id < b.token_id; });
  candidates_.erase(end, candidates_.end());
}

Result<TokenLogprobs> Sampler::logprobs_of(std::span<const float> logits, int32_t token_id, int num_top) {
  const BestLogit best = find_best(logits);
  if (!best.is_finite) return not_numbers();
  return make_logprobs(logits, best.value, 1.0f, token_id, num_top);
}

TokenLogprobs Sampler::logprobs_from(const LogprobsResult& result, std::span<const TopToken> top, int32_t token_id,
                                     float scale) {
  const double total = static_cast<double>(result.total) / kWeightSumScale;
  const LogprobOf logprob_of = {.best = result.best, .scale = scale, .log_total = std::log(total)};
  TokenLogprobs told = {.token_id = token_id, .logprob = logprob_of(result.drawn), .rank = result.rank, .top = {}};
  told.top.reserve(top.size());
  for (const TopToken& entry : top) told.top.push_back({entry.token_id, logprob_of(entry.logit)});
  return told;
}

TokenLogprobs Sampler::make_logprobs(std::span<const float> logits, float best, float scale, int32_t token_id,
                                     int num_top) {
  // Sixteen sums in a fixed order: vectorised, and the same every time.
  constexpr size_t kLanes = 16;
  double sums[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += static_cast<double>(exp_nonpositive((logits[i + lane] - best) * scale));
    }
  }
  for (; i < logits.size(); ++i) sums[0] += static_cast<double>(exp_nonpositive((logits[i] - best) * scale));
  double total = 0.0;
  for (const double sum : sums) total += sum;
  const LogprobOf logprob_of = {.best = best, .scale = scale, .log_total = std::log(total)};

  TokenLogprobs result;
  result.token_id = token_id;
  const float chosen = logits[static_cast<size_t>(token_id)];
  result.logprob = logprob_of(chosen);
  int32_t num_better = 0;
  for (size_t t = 0; t < logits.size(); ++t) num_better += logits[t] > chosen ? 1 : 0;
  for (size_t t = 0; t < static_cast<size_t>(token_id); ++t) num_better += logits[t] == chosen ? 1 : 0;
  result.rank = num_better + 1;

  const size_t most = std::min(static_cast<size_t>(std::max(num_top, 0)), logits.size());
  if (most == 0) return result;
  // A heap of the best so far, the worst of them on top; few of a vocabulary's tokens get past it.
  top_.clear();
  float threshold = kNever;
  for (size_t t = 0; t < logits.size(); ++t) {
    if (!(logits[t] > threshold)) continue;  // an equal one with a higher id is no better
    if (top_.size() == most) {
      std::pop_heap(top_.begin(), top_.end(), is_better);
      top_.pop_back();
    }
    top_.push_back({static_cast<int32_t>(t), logits[t]});
    std::push_heap(top_.begin(), top_.end(), is_better);
    if (top_.size() == most) threshold = top_.front().logprob;
  }
  std::sort_heap(top_.begin(), top_.end(), is_better);
  result.top.reserve(top_.size());
  for (const TokenLogprob& entry : top_) result.top.push_back({entry.token_id, logprob_of(entry.logprob)});
  return result;
}

}  // namespace quire

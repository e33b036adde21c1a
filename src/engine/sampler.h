// From a row of logits to a token, and to log-probabilities. Host code over floats; called by the engine once a sample,
// on the engine's thread. It never sorts a vocabulary: candidates are cut down by thresholds and partial selection. All
// scratch is taken at construction. A row whose logits are not numbers is an error of that row alone.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "engine/request.h"
#include "ops/logits_rows.h"
#include "ops/ops.h"

namespace quire {

// The tokens of a prompt and its output, each once, for the penalties: a step walks all of them, so they lie side by
// side.
class TokenCounts {
 public:
  void add_prompt(int32_t token_id) { entry_of(token_id); }
  void add_output(int32_t token_id) { ++entry_of(token_id).num_in_output; }
  std::span<const PenalizedToken> entries() const { return entries_; }

 private:
  PenalizedToken& entry_of(int32_t token_id) {
    const auto [it, is_new] = index_.try_emplace(token_id, entries_.size());
    if (is_new) entries_.push_back({token_id, 0});
    return entries_[it->second];
  }

  std::vector<PenalizedToken> entries_;
  std::unordered_map<int32_t, size_t> index_;  // into entries_
};

// What the sampler remembers of one choice.
struct SamplingState {
  TokenCounts counts;                           // only where a penalty needs them
  std::unique_ptr<TokenConstraint> constraint;  // may be null
};

struct SampleCall {
  std::span<const float> logits;  // [vocab_size]
  const SamplingParams& params;
  const SamplingState& state;
  uint64_t seed = 0;
  int choice_index = 0;
  int64_t output_index = 0;                            // how many tokens this choice has sampled before
  std::span<const int32_t> suppressed_token_ids = {};  // stop tokens, while min_tokens has not been reached
};

struct Sample {
  int32_t token_id = 0;
  TokenLogprobs logprobs;  // where params ask for them
};

class Sampler {
 public:
  // Ids at or above num_token_ids (rows that pad the embedding) are never sampled.
  Sampler(int64_t vocab_size, int64_t num_token_ids);

  Result<Sample> sample(const SampleCall& call);

  // Of `token_id` in a row of logits, with the `num_top` best.
  Result<TokenLogprobs> logprobs_of(std::span<const float> logits, int32_t token_id, int num_top);

  // The error of a row that holds a NaN or an infinity.
  static Status not_numbers();
  // The error of a row of which the request leaves no token.
  static Status all_excluded();

  // For sampling on a device (DeviceSampler), where Ops::sample draws: what is drawn after the logits were adjusted,
  // all of a request's masks as one, and log-probabilities from what Ops::logprobs has told.
  static SamplingRow device_row(const SampleCall& call, int64_t num_token_ids);
  static Penalties penalties_of(const SamplingParams& params);
  static float scale_of(const SamplingParams& params);  // 1 / temperature, or 1 where it is greedy
  static bool needs_mask(const SampleCall& call);
  static void fill_mask(const SampleCall& call, std::span<uint32_t> mask);
  static TokenLogprobs logprobs_from(const LogprobsResult& result, std::span<const TopToken> top, int32_t token_id,
                                     float scale);

  static bool needs_counts(const SamplingParams& params);
  static void count_prompt(SamplingState& state, std::span<const int32_t> prompt);
  static void count_output(SamplingState& state, int32_t token_id) { state.counts.add_output(token_id); }

 private:
  struct Candidate {
    int32_t token_id;
    float x;           // (logit - best logit) / temperature
    float weight;      // exp(x)
    float key = 0.0f;  // what typical sampling orders by
  };

  // x = (logit - best) * scale; below `lowest` a token has no chance.
  struct Scaling {
    float best;
    float scale;
    float lowest;
  };

  std::span<const float> adjust(const SampleCall& call);
  int32_t draw(std::span<const float> logits, float best, const SampleCall& call);
  double fill_weights(std::span<const float> logits, const Scaling& scaling);
  int32_t draw_from_weights(double target) const;
  int32_t draw_candidate(double uniform) const;
  void collect_heavy(std::span<const float> logits, const Scaling& scaling, double lightest);
  void collect_top_k(std::span<const float> logits, const Scaling& scaling, int64_t k);
  void keep_typical(double mass);
  void keep_top_p(double mass, double total);
  double total_weight() const;
  TokenLogprobs make_logprobs(std::span<const float> logits, float best, float scale, int32_t token_id, int num_top);

  int64_t num_token_ids_;
  std::vector<float> adjusted_;
  std::vector<uint32_t> mask_;
  std::vector<float> weights_;
  size_t num_weights_ = 0;
  std::vector<Candidate> candidates_;
  std::vector<TokenLogprob> top_;
};

}  // namespace quire

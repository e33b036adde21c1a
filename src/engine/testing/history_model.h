// For tests: a model that computes nothing but remembers everything. Each token writes its id and position into the KV
// pages; the logits of a position are pseudo-random numbers made from all tokens that it can see, read back through the
// page tables. A wrong page, slot, position or neighbour therefore changes every logit after it, and what a correct
// engine must generate can be told without one (expected_greedy). Layer 0 sees everything, layer 1 through a window.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "models/model.h"

namespace quire::testing {

constexpr int kHistoryVocab = 61;
constexpr int kHistoryWindow = 21;
// A sequence that holds this token has logits that are not numbers from then on.
constexpr int32_t kPoisonToken = 60;

class HistoryModel : public Model {
 public:
  explicit HistoryModel(bool has_window = true, int64_t max_context = 2048);

  const ModelConfig& config() const override { return config_; }
  std::vector<KvGroup> kv_groups(DType dtype) const override;
  int64_t weight_bytes() const override { return 0; }
  Result<StepOutput> forward(StepContext& context, const StepBatch& batch) const override;

  // The logits of the last of these tokens.
  std::vector<float> logits(std::span<const int32_t> token_ids) const;
  // The hidden state of the last of these tokens.
  std::vector<float> hidden(std::span<const int32_t> token_ids) const;
  // What a greedy generation gives, with nothing but these logits.
  std::vector<int32_t> expected_greedy(std::vector<int32_t> token_ids, int num_tokens) const;

  // After so many more steps the model is lost. Any thread may say so.
  void fail_after(int num_steps) { steps_left_ = num_steps; }
  // Called in each step, if set: for tests that hold one up.
  std::function<void()> in_step;

 private:
  struct Sight;
  Sight sight_of(std::span<const int32_t> token_ids) const;

  ModelConfig config_;
  mutable std::atomic<int> steps_left_ = INT32_MAX;
  bool has_window_;
};

// Keeps all that an engine says of one request.
class RecordingSink : public EventSink {
 public:
  struct Choice {
    std::vector<int32_t> token_ids;
    std::vector<TokenLogprobs> logprobs;
    FinishReason finish_reason = FinishReason::kNone;
    Status error;
  };

  void on_event(const TokenEvent& event) override;

  std::vector<Choice> choices{1};
  std::vector<TokenLogprobs> prompt_logprobs;
  int num_cached_tokens = 0;
  // Called after each event, if set.
  std::function<void(const TokenEvent&)> then;
};

}  // namespace quire::testing

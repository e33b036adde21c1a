#include "engine/step_budget.h"

#include <algorithm>

#include "base/status.h"

namespace quire {

namespace {

// Kernels work in tiles of a few tokens.
constexpr int kTokenGrain = 16;
constexpr int kMostTokens = 2048;
// Somebody else may have had seven eighths of the machine at start.
constexpr int kMostGrowth = 8;
// Of a new observation. A sustained change has arrived after a dozen steps, some three seconds; one step that something
// held up takes a fifth off, which the next ones give back.
constexpr double kWeight = 0.2;
// Of an observation, over what is known: a clock that says nothing sensible does no harm.
constexpr double kMostRise = 2.0;

}  // namespace

StepBudget::StepBudget(const Bounds& bounds, double tokens_per_second)
    : bounds_(bounds), tokens_per_second_(tokens_per_second), num_tokens_(choose(bounds, tokens_per_second)) {
  CHECK(bounds.least >= 1 && bounds.most >= bounds.least && bounds.step_seconds > 0.0);
}

int StepBudget::choose(const Bounds& bounds, double tokens_per_second) {
  const int num_tokens =
      static_cast<int>(std::clamp(tokens_per_second * bounds.step_seconds, 0.0, double{kMostTokens}));
  return std::clamp(num_tokens / kTokenGrain * kTokenGrain, bounds.least, std::max(bounds.least, bounds.most));
}

int StepBudget::least_for(int max_num_seqs) {
  return max_num_seqs + kTokenGrain;
}

int StepBudget::largest_for(int first) {
  return std::max(first, std::min(kMostGrowth * first, kMostTokens));
}

void StepBudget::observe(int num_tokens, int num_prompt_tokens, double seconds) {
  // Decoding says nothing about reading prompts: it is bound by memory.
  if (2 * num_prompt_tokens < num_tokens || num_tokens < 1 || !(seconds > 0.0)) return;
  const double rate = num_tokens / seconds;
  // A step pays for reading the weights whatever its size, so a small one looks slower than a large one would be. It
  // tells something if it was fast nevertheless, or took too long even so.
  const bool is_small = 2 * num_tokens < num_tokens_;
  if (is_small && rate < tokens_per_second_ && seconds <= bounds_.step_seconds) return;
  tokens_per_second_ += kWeight * (std::min(rate, kMostRise * tokens_per_second_) - tokens_per_second_);
  // Below the floor and above the ceiling it would only take longer to come back.
  tokens_per_second_ = std::clamp(tokens_per_second_, bounds_.least / bounds_.step_seconds / kMostRise,
                                  bounds_.most / bounds_.step_seconds * kMostRise);
  num_tokens_ = choose(bounds_, tokens_per_second_);
}

}  // namespace quire

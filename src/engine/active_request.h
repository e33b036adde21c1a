// What the engine remembers of a request that has not ended. Lives on the engine's thread, inside engine/engine.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/request.h"
#include "engine/sequence.h"

namespace quire {

// One answer to a request.
struct ActiveChoice {
  Sequence* sequence = nullptr;  // null before it is forked and after it has ended
  bool is_finished = false;
  bool is_ending = false;  // its end has been asked for
  Clock::time_point first_token;
  Clock::time_point last_token;
};

struct ActiveRequest {
  RequestId id = 0;
  SamplingParams sampling;
  std::shared_ptr<EventSink> sink;
  uint64_t seed = 0;
  std::vector<int32_t> stop_tokens;  // all that stop it
  int64_t num_prompt_tokens = 0;
  std::vector<ActiveChoice> choices;
  std::vector<TokenLogprobs> prompt_logprobs;
  bool has_told_prompt_logprobs = false;
  bool was_scheduled = false;
  bool is_aborting = false;
  int num_cached_tokens = 0;
  Clock::time_point arrived;
  Clock::time_point first_scheduled;
  int num_unfinished = 0;

  // An embedding in the making, summed in the order of positions, so that chunks and preemption change nothing.
  Pooling pooling = Pooling::kNone;
  bool is_normalized = true;
  std::vector<double> pooled;  // [hidden_size]
  int64_t num_pooled = 0;      // leading positions that are in it
};

}  // namespace quire

// The sampler on several threads: between two steps every row's token is to be drawn, and rows do not depend on each
// other. Drawing takes 40 to 200 microseconds a row of 50,000 logits, so 64 rows one after the other would hold the
// next step up for milliseconds. Used by the engine, once a step, where the host samples.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "engine/sampler.h"

namespace quire {

class ParallelSampler {
 public:
  ParallelSampler(int num_threads, int64_t vocab_size, int64_t num_token_ids);

  // Fills *targets[i] with the sample of calls[i]. A call's constraint is used by one thread at a time.
  void sample(std::span<const SampleCall> calls, std::span<std::optional<Result<Sample>>* const> targets);

  // For what else is to be done for every row. Not while it samples.
  ThreadPool& pool() { return pool_; }

 private:
  ThreadPool pool_;
  std::vector<std::unique_ptr<Sampler>> samplers_;  // a thread each, for their scratch
};

}  // namespace quire

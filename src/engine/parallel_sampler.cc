#include "engine/parallel_sampler.h"

namespace quire {

ParallelSampler::ParallelSampler(int num_threads, int64_t vocab_size, int64_t num_token_ids) : pool_(num_threads) {
  for (int t = 0; t < num_threads; ++t) samplers_.push_back(std::make_unique<Sampler>(vocab_size, num_token_ids));
}

void ParallelSampler::sample(std::span<const SampleCall> calls,
                             std::span<std::optional<Result<Sample>>* const> targets) {
  CHECK(targets.size() == calls.size());
  pool_.parallel_for(static_cast<int64_t>(calls.size()), 1, [&](const WorkRange& range) {
    Sampler& sampler = *samplers_[static_cast<size_t>(range.worker_index)];
    for (int64_t i = range.begin; i < range.end; ++i) {
      *targets[static_cast<size_t>(i)] = sampler.sample(calls[static_cast<size_t>(i)]);
    }
  });
}

}  // namespace quire

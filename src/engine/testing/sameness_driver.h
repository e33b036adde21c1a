// A small model with its scheduler and runner, fed with tokens that are known beforehand, whose logits are kept: for
// the tests that nothing that runs beside a sequence changes them.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/model_runner.h"
#include "engine/scheduler.h"
#include "models/load_model.h"
#include "ops/backends.h"

namespace quire::testing {

using Tokens = std::vector<int32_t>;
using LogitsByPosition = std::map<int64_t, std::vector<float>>;

struct Setting {
  BackendKind backend = BackendKind::kCpu;
  WeightQuantization weight_quantization = WeightQuantization::kNone;
  bool is_strict = false;
  bool shares_drawn_pages = false;
  std::optional<FormatId> random_format = {};  // weights of this format, of the shapes that the checkpoint tells
  int num_threads = 1;
  int max_num_seqs = 8;
  Compute compute = Compute::kF32;
  DType kv_dtype = DType::kF32;
  int page_size = 16;
  int num_pages = 400;
  int max_num_batched_tokens = 512;
  int max_logit_rows = 512;
  bool has_prefix_cache = false;
};

// A model with its scheduler and runner, fed with tokens that are known beforehand.
class Driver {
 public:
  Driver(const Checkpoint& checkpoint, const Setting& setting) : setting_(setting) {
    BackendOptions options{.kind = setting.backend, .num_threads = setting.num_threads, .compute = setting.compute};
    options.weight_quantization = setting.weight_quantization;
    options.is_strict = setting.is_strict;
    ops_ = create_ops(options).value();
    LoadModelOptions load_options;
    load_options.random_format = setting.random_format;
    auto model = load_model(checkpoint, *ops_, load_options);
    CHECK(model.is_ok());
    model_ = std::move(model).value();
    const std::vector<KvGroup> groups = model_->kv_groups(setting.kv_dtype);
    ModelRunnerConfig config;
    config.max_num_seqs = setting.max_num_seqs;
    config.max_num_batched_tokens = setting.max_num_batched_tokens;
    config.max_logit_rows = setting.max_logit_rows;
    config.page_size = setting.page_size;
    config.kv_dtype = setting.kv_dtype;
    config.kv_cache_memory_bytes =
        KvCache::page_bytes(groups, setting.page_size) * setting.num_pages * static_cast<int64_t>(groups.size());
    config.available_bytes = ops_->memory().free_bytes;
    config.is_strict = setting.is_strict;
    auto runner = ModelRunner::create(*ops_, *model_, config);
    EXPECT_TRUE(runner.is_ok()) << runner.status().message();
    runner_ = std::move(runner).value();
    const KvCache& cache = runner_->kv_cache();
    const std::vector<std::byte> nan(static_cast<size_t>(cache.page_bytes()), std::byte{0xff});  // in every dtype
    for (int page = 0; page < cache.num_pages(); ++page) runner_->write_page(page, nan);
    pool_ = std::make_unique<PagePool>(cache.num_pages());
    if (setting.has_prefix_cache) {
      std::vector<PrefixCache::GroupShape> shapes;
      for (const int window : runner_->group_windows()) shapes.push_back({window});
      cache_ = std::make_unique<PrefixCache>(pool_.get(), setting.page_size, shapes);
    }
    scheduler_ = std::make_unique<Scheduler>(
        SchedulerConfig{.max_num_seqs = config.max_num_seqs,
                        .max_num_batched_tokens = config.max_num_batched_tokens,
                        .max_logit_rows = config.max_logit_rows,
                        .max_model_len = runner_->memory_plan().max_model_len,
                        .page_size = setting.page_size,
                        .group_windows = runner_->group_windows(),
                        .is_strict = setting.is_strict,
                        .shares_drawn_pages = setting.shares_drawn_pages || !setting.is_strict},
        pool_.get(), cache_.get());
  }

  // A sequence that reads the first `num_prompt_tokens` of `tokens` as its prompt and generates the rest.
  int add(const Tokens& tokens, int num_prompt_tokens, bool wants_prompt_logits = true) {
    auto sequence = std::make_unique<Sequence>();
    sequence->token_ids.assign(tokens.begin(), tokens.begin() + num_prompt_tokens);
    sequence->num_prompt_tokens = num_prompt_tokens;
    if (wants_prompt_logits) sequence->next_prompt_logit = 0;
    return watch(scheduler_->add(std::move(sequence)), tokens);
  }

  // When sequence `index` has generated up to `position`, another one goes on from there with tokens of its own.
  void fork_at(int index, int64_t position, const Tokens& tokens) { forks_.push_back({index, position, tokens, -1}); }
  int forked(size_t i) const { return forks_[i].child; }

  void run() {
    int num_idle = 0;
    while (num_unfinished_ > 0) {
      const StepPlan& plan = scheduler_->schedule();
      num_preempted += plan.num_preempted;
      num_idle = plan.rows.empty() ? num_idle + 1 : 0;
      ASSERT_LT(num_idle, 3);
      if (plan.rows.empty()) continue;
      const int64_t step = pool_->begin_step();
      runner_->begin(plan);
      const std::span<const float> logits = runner_->finish().value().logits;
      pool_->end_step(step);
      scheduler_->complete();
      const std::vector<StepRow> rows = plan.rows;
      for (const StepRow& row : rows) read(row, logits);
    }
    EXPECT_EQ(pool_->num_used(), 0);
  }

  const LogitsByPosition& logits(int index) const { return watched_[static_cast<size_t>(index)].logits; }
  int64_t num_cached_tokens(int index) const { return watched_[static_cast<size_t>(index)].num_cached_tokens; }

  int num_preempted = 0;

 private:
  struct Watched {
    Sequence* sequence;
    Tokens tokens;
    LogitsByPosition logits;
    int64_t num_cached_tokens = 0;
  };
  struct Fork {
    int parent;
    int64_t position;
    Tokens tokens;
    int child;
  };

  int watch(Sequence* sequence, const Tokens& tokens) {
    watched_.push_back({sequence, tokens, {}});
    ++num_unfinished_;
    return static_cast<int>(watched_.size()) - 1;
  }

  void read(const StepRow& row, std::span<const float> logits) {
    const size_t vocab_size = static_cast<size_t>(model_->config().vocab_size);
    Sequence& sequence = *row.sequence;
    size_t index = 0;
    while (watched_[index].sequence != &sequence) ++index;
    watched_[index].num_cached_tokens = sequence.num_cached_tokens;
    for (int i = 0; i < row.num_logit_rows; ++i) {
      const auto values = logits.subspan(static_cast<size_t>(row.first_logit_row + i) * vocab_size, vocab_size);
      const int64_t position = row.end_position() - row.num_logit_rows + i;
      std::vector<float>& kept = watched_[index].logits[position];
      if (!kept.empty()) {  // computed again after a preemption
        EXPECT_EQ(std::memcmp(kept.data(), values.data(), values.size_bytes()), 0);
      }
      kept.assign(values.begin(), values.end());
    }
    if (sequence.next_prompt_logit < sequence.num_prompt_tokens) sequence.next_prompt_logit = row.end_position();
    if (row.end_position() < sequence.num_tokens()) return;
    scheduler_->keep_pages(sequence);
    for (Fork& fork : forks_) {
      if (fork.parent != static_cast<int>(index) || fork.position != sequence.num_tokens()) continue;
      ++sequence.num_seats;
      Sequence* child = scheduler_->fork(sequence, 1);
      child->token_ids.push_back(fork.tokens[static_cast<size_t>(fork.position)]);
      fork.child = watch(child, fork.tokens);
    }
    const Tokens& tokens = watched_[index].tokens;
    if (sequence.token_ids.size() < tokens.size()) {
      sequence.token_ids.push_back(tokens[sequence.token_ids.size()]);
    } else {
      watched_[index].sequence = nullptr;
      scheduler_->finish(&sequence);
      --num_unfinished_;
    }
  }

  Setting setting_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<PrefixCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<Watched> watched_;
  std::vector<Fork> forks_;
  int num_unfinished_ = 0;
};

inline void expect_same(const LogitsByPosition& got, const LogitsByPosition& expected, size_t at_least,
                        const char* what) {
  SCOPED_TRACE(what);
  EXPECT_GE(got.size(), at_least);
  for (const auto& [position, values] : got) {
    const auto it = expected.find(position);
    ASSERT_NE(it, expected.end()) << position;
    for (const float value : values) ASSERT_TRUE(std::isfinite(value)) << "position " << position;
    ASSERT_EQ(values.size(), it->second.size());
    ASSERT_EQ(std::memcmp(values.data(), it->second.data(), values.size() * sizeof(float)), 0)
        << "logits differ at position " << position << ", the first by " << values[0] - it->second[0];
  }
}

}  // namespace quire::testing

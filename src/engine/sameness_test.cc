// One generation gives the same logits, bit for bit, whatever runs beside it: alone or in a batch of 7, whole prompt or
// chunks or token by token, 1 or 2 threads, any page size, forked or not, from kept pages or computed, preempted or
// not. Small random models with real kernels, contexts over more than two attention chunks, both computes, each KV
// dtype. All KV memory is NaN before.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "engine/model_runner.h"
#include "engine/scheduler.h"
#include "engine/testing/tiny_llama.h"
#include "models/load_model.h"
#include "ops/backends.h"
#include "ops/host_memory.h"
#include "weights/testing/test_folder.h"

namespace quire {
namespace {

using Tokens = std::vector<int32_t>;
using LogitsByPosition = std::map<int64_t, std::vector<float>>;

constexpr int64_t kVocab = testing::kTinyLlamaVocab;

struct Setting {
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
    ops_ =
        create_ops({.kind = BackendKind::kCpu, .num_threads = setting.num_threads, .compute = setting.compute}).value();
    auto model = load_model(checkpoint, *ops_);
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
    config.available_bytes = available_host_bytes();
    auto runner = ModelRunner::create(*ops_, *model_, config);
    EXPECT_TRUE(runner.is_ok()) << runner.status().message();
    runner_ = std::move(runner).value();
    const KvCache& cache = runner_->kv_cache();
    std::memset(cache.base(), 0xff, static_cast<size_t>(cache.page_bytes() * cache.num_pages()));  // NaN in every dtype
    pool_ = std::make_unique<PagePool>(cache.num_pages());
    if (setting.has_prefix_cache) {
      std::vector<PrefixCache::GroupShape> shapes;
      for (const int window : runner_->group_windows()) shapes.push_back({window});
      cache_ = std::make_unique<PrefixCache>(pool_.get(), setting.page_size, shapes);
    }
    scheduler_ = std::make_unique<Scheduler>(SchedulerConfig{.max_num_seqs = config.max_num_seqs,
                                                             .max_num_batched_tokens = config.max_num_batched_tokens,
                                                             .max_logit_rows = config.max_logit_rows,
                                                             .max_model_len = runner_->memory_plan().max_model_len,
                                                             .page_size = setting.page_size,
                                                             .group_windows = runner_->group_windows()},
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

void expect_same(const LogitsByPosition& got, const LogitsByPosition& expected, size_t at_least, const char* what) {
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

struct Case {
  std::string name;
  Compute compute = Compute::kF32;
  DType kv_dtype = DType::kF32;
};

class Sameness : public ::testing::TestWithParam<Case> {
 protected:
  // Opens the model of the case; goldens get a longer context than they were saved with.
  Checkpoint open() {
    const Case& c = GetParam();
    if (c.name == "quantized") {
      return open_checkpoint(folder_.write("tiny.gguf", testing::tiny_quantized_llama())).value();
    }
    Checkpoint checkpoint = open_checkpoint(std::string(QUIRE_SOURCE_DIR) + "/tests/goldens/models/" + c.name).value();
    boost::json::object config = boost::json::parse(*checkpoint.config_json).get_object();
    config["max_position_embeddings"] = 1024;
    checkpoint.config_json = boost::json::serialize(config);
    return checkpoint;
  }

  Setting setting() const { return {.compute = GetParam().compute, .kv_dtype = GetParam().kv_dtype}; }

  Tokens tokens(int count) {
    Tokens result;
    for (int i = 0; i < count; ++i) result.push_back(static_cast<int32_t>(random_() % kVocab));
    return result;
  }

 private:
  testing::TestFolder folder_;
  std::mt19937 random_{23};
};

TEST_P(Sameness, WhateverRunsBeside) {
  const Checkpoint checkpoint = open();
  const Tokens main = tokens(300);  // three attention chunks of 128
  const size_t num_prompt = 270;
  std::vector<Tokens> others;
  for (const int length : {17, 140, 1, 64, 301, 33}) others.push_back(tokens(length));

  Driver alone(checkpoint, setting());
  const int base = alone.add(main, 300);  // all at once
  alone.run();
  const LogitsByPosition& expected = alone.logits(base);
  ASSERT_EQ(expected.size(), 300u);

  for (const int num_threads : {1, 2}) {
    Setting changed = setting();
    changed.num_threads = num_threads;
    {
      Driver driver(checkpoint, changed);
      const int whole = driver.add(main, static_cast<int>(num_prompt));
      const int by_token = driver.add(main, 1);
      driver.run();
      expect_same(driver.logits(whole), expected, 300, "whole prompt, then decode");
      expect_same(driver.logits(by_token), expected, 300, "token by token");
    }
    for (const int budget : {24, 100}) {
      changed.max_num_batched_tokens = budget;
      Driver driver(checkpoint, changed);
      std::vector<int> indices = {driver.add(others[0], 5), driver.add(others[1], 100)};
      const int index = driver.add(main, static_cast<int>(num_prompt));
      for (size_t i = 2; i < others.size(); ++i) driver.add(others[i], static_cast<int>(others[i].size() + 1) / 2);
      driver.run();
      expect_same(driver.logits(index), expected, 300, "chunked, in a batch of 7");
    }
    changed.max_num_batched_tokens = 50;
    for (const int page_size : {8, 32, 128, 256}) {
      changed.page_size = page_size;
      changed.num_pages = 6400 / page_size;
      Driver driver(checkpoint, changed);
      const int index = driver.add(main, static_cast<int>(num_prompt));
      driver.add(others[1], 100);
      driver.run();
      expect_same(driver.logits(index), expected, 300, "page size");
    }
  }
}

// F028: the first of 46, beside neighbours of the same lengths, in the same pages, but with other contents; and alone.
TEST_P(Sameness, NeighboursContentsAndNumber) {
  const Checkpoint checkpoint = open();
  Setting changed = setting();
  const Tokens main = tokens(40);
  Driver alone(checkpoint, changed);
  const int base = alone.add(main, 40);
  alone.run();
  changed.max_num_seqs = 46;
  changed.num_threads = 2;
  for (int round = 0; round < 2; ++round) {
    Driver driver(checkpoint, changed);
    const int index = driver.add(main, 30);
    for (int i = 0; i < 45; ++i) {
      const int length = 30 + i % 7;
      driver.add(tokens(length), length - 10, /*wants_prompt_logits=*/false);
    }
    driver.run();
    expect_same(driver.logits(index), alone.logits(base), 40, "one of 46");
  }
}

TEST_P(Sameness, ForkedOrNot) {
  const Checkpoint checkpoint = open();
  Setting changed = setting();
  changed.num_threads = 2;
  Tokens left = tokens(300);
  Tokens right(left.begin(), left.begin() + 150);
  const Tokens rest = tokens(150);
  right.insert(right.end(), rest.begin(), rest.end());

  Driver alone(checkpoint, setting());
  const int left_alone = alone.add(left, 300);
  alone.run();
  Driver right_alone_driver(checkpoint, setting());
  const int right_alone = right_alone_driver.add(right, 300);
  right_alone_driver.run();

  for (const int prompt_length : {144, 150}) {  // forked at a page's end or inside a page
    changed.page_size = 16;
    Driver driver(checkpoint, changed);
    const int index = driver.add(left, prompt_length);
    driver.fork_at(index, 150, right);
    driver.run();
    expect_same(driver.logits(index), alone.logits(left_alone), 300, "the parent");
    expect_same(driver.logits(driver.forked(0)), right_alone_driver.logits(right_alone), 150, "the fork");
  }
}

TEST_P(Sameness, KeptPagesAndPreemption) {
  const Checkpoint checkpoint = open();
  const Tokens main = tokens(300);
  Driver alone(checkpoint, setting());
  const int base = alone.add(main, 300);
  alone.run();
  const LogitsByPosition& expected = alone.logits(base);

  Setting changed = setting();
  changed.has_prefix_cache = true;
  changed.max_num_batched_tokens = 64;
  {
    Driver driver(checkpoint, changed);
    driver.add(main, 200);
    driver.run();
    const int again = driver.add(main, 280, /*wants_prompt_logits=*/false);
    driver.run();
    // Where all layers have a window, the beginning has been left behind before it could be kept.
    EXPECT_EQ(driver.num_cached_tokens(again), GetParam().name == "mistral" ? 0 : 272);
    expect_same(driver.logits(again), expected, 20, "from kept pages");
  }
  changed.has_prefix_cache = false;
  changed.num_pages = 22;  // of 19 that one sequence needs
  changed.num_threads = 2;
  {
    Driver driver(checkpoint, changed);
    const int first = driver.add(main, 100);
    const int second = driver.add(main, 90);
    const int third = driver.add(main, 10);
    driver.run();
    for (const int index : {first, second, third}) {
      expect_same(driver.logits(index), expected, 300, "preempted");
    }
    // Where layers have a window, few pages are held at a time.
    if (GetParam().name != "mistral" && GetParam().name != "gemma3") {
      EXPECT_GT(driver.num_preempted, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, Sameness,
    ::testing::Values(Case{"quantized", Compute::kF32, DType::kF32}, Case{"quantized", Compute::kF32, DType::kF16},
                      Case{"quantized", Compute::kAuto, DType::kF16}, Case{"quantized", Compute::kAuto, DType::kBF16},
                      Case{"gemma3", Compute::kF32, DType::kF32}, Case{"gemma3", Compute::kAuto, DType::kF16},
                      Case{"mistral", Compute::kF32, DType::kF32}, Case{"qwen3", Compute::kAuto, DType::kF16}),
    [](const auto& test) {
      return test.param.name + (test.param.compute == Compute::kF32 ? "_f32_kv_" : "_auto_kv_") +
             std::string(dtype_name(test.param.kv_dtype));
    });

}  // namespace
}  // namespace quire

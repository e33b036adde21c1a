// What tests of the engine share: an engine of eight sequences over the history model, requests, and a run to the end.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "engine/engine.h"
#include "engine/testing/history_model.h"
#include "ops/backends.h"

namespace quire::testing {

inline std::vector<int32_t> random_tokens(std::mt19937& random, int count) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(random() % 59));
  return tokens;
}

inline SamplingParams greedy(int64_t max_tokens) {
  return {.temperature = 0.0f, .max_tokens = max_tokens, .ignore_eos = true};
}

class EngineFixture : public ::testing::Test {
 protected:
  EngineFixture() : ops(create_ops({.kind = BackendKind::kReference}).value()) {}

  EngineOptions options(int num_pages = 0, int page_size = 8) {
    EngineOptions result;
    result.max_num_seqs = 8;
    result.max_num_batched_tokens = 32;
    result.page_size = page_size;
    result.compute = Compute::kF32;
    // Pages of the history model: K and V of eight floats a token.
    result.kv_cache_memory_bytes = int64_t{num_pages == 0 ? 1000 : num_pages} * page_size * 2 * 8 * 4;
    return result;
  }

  std::unique_ptr<Engine> make(const EngineOptions& engine_options) {
    auto engine = Engine::create(*ops, model, engine_options);
    EXPECT_TRUE(engine.is_ok()) << engine.status().message();
    return std::move(engine).value();
  }

  std::shared_ptr<RecordingSink> add(Engine& engine, std::vector<int32_t> tokens, const SamplingParams& sampling) {
    auto sink = std::make_shared<RecordingSink>();
    const auto id = engine.add_request(Request::from_tokens(std::move(tokens), sampling, sink));
    EXPECT_TRUE(id.is_ok()) << id.status().message();
    if (id.is_ok()) last_id = id.value();
    return sink;
  }

  void run(Engine& engine) {
    for (int i = 0; engine.has_work(); ++i) {
      ASSERT_LT(i, 20000) << "no end in sight";
      ASSERT_TRUE(engine.step().is_ok());
    }
    const EngineStats stats = engine.stats();
    EXPECT_EQ(stats.num_pages_used, 0);
    EXPECT_EQ(stats.num_running, 0);
    EXPECT_EQ(stats.num_waiting, 0);
  }

  std::unique_ptr<Ops> ops;
  HistoryModel model;
  RequestId last_id = 0;
  std::mt19937 random{11};
};

}  // namespace quire::testing

// Requests that arrive together with the same beginning, through the engine: computed once, and rightly taken over.
#include <gtest/gtest.h>

#include <random>

#include "engine/engine.h"
#include "engine/testing/history_model.h"
#include "ops/backends.h"

namespace quire {
namespace {

using testing::HistoryModel;
using testing::kPoisonToken;
using testing::RecordingSink;

class EngineSharingTest : public ::testing::Test {
 protected:
  EngineSharingTest() : ops(create_ops({.kind = BackendKind::kReference}).value()) {
    EngineOptions options;
    options.max_num_seqs = 8;
    options.max_num_batched_tokens = 64;
    options.page_size = 8;
    options.compute = Compute::kF32;
    options.kv_cache_memory_bytes = int64_t{2000} * 8 * 2 * 8 * 4;
    auto made = Engine::create(*ops, model, options);
    CHECK(made.is_ok());
    engine = std::move(made).value();
    for (int i = 0; i < 1000; ++i) prefix.push_back(static_cast<int32_t>(random() % 59));
  }

  std::vector<int32_t> with_tail(int which) {
    std::vector<int32_t> tokens = prefix;
    for (int i = 0; i < 10; ++i) tokens.push_back(which);
    return tokens;
  }

  RequestId add(const std::vector<int32_t>& tokens, const std::shared_ptr<RecordingSink>& sink, uint64_t key = 0) {
    Request request = Request::from_tokens(tokens, {.temperature = 0.0f, .max_tokens = 6, .ignore_eos = true}, sink);
    request.share_key = key;
    const auto id = engine->add_request(std::move(request));
    CHECK(id.is_ok());
    return id.value();
  }

  void run() {
    for (int i = 0; engine->has_work(); ++i) {
      ASSERT_LT(i, 5000) << "no end in sight";
      ASSERT_TRUE(engine->step().is_ok());
    }
    EXPECT_EQ(engine->stats().num_pages_used, 0);
  }

  HistoryModel model;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Engine> engine;
  std::mt19937 random{21};
  std::vector<int32_t> prefix;
};

TEST_F(EngineSharingTest, EightAtOnceComputeTheirPrefixOnce) {
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 8; ++i) {
    sinks.push_back(std::make_shared<RecordingSink>());
    add(with_tail(i), sinks.back());
  }
  run();
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(sinks[static_cast<size_t>(i)]->choices[0].token_ids, model.expected_greedy(with_tail(i), 6));
    EXPECT_EQ(sinks[static_cast<size_t>(i)]->num_cached_tokens, i == 0 ? 0 : 1000);
  }
  EXPECT_EQ(engine->stats().num_prefill_tokens, 1010 + 7 * 10);
}

TEST_F(EngineSharingTest, TheNextTakesOverFromOneThatIsAborted) {
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  std::vector<RequestId> ids;
  for (int i = 0; i < 4; ++i) {
    sinks.push_back(std::make_shared<RecordingSink>());
    ids.push_back(add(with_tail(i), sinks.back(), static_cast<uint64_t>(i)));
  }
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(engine->step().is_ok());
  engine->abort(ids[0]);
  engine->abort(ids[2]);
  run();
  for (const int i : {1, 3}) {
    EXPECT_EQ(sinks[static_cast<size_t>(i)]->choices[0].token_ids, model.expected_greedy(with_tail(i), 6));
  }
  EXPECT_LT(engine->stats().num_prefill_tokens, 1010 + 3 * 64 + 100);  // little was computed twice
}

// The first brings a poisoned prompt. Those that share the part before the poison get it; nobody gets what lies after.
TEST_F(EngineSharingTest, WhatAFailedOneComputedAfterTheDamageIsNobodys) {
  std::vector<int32_t> poisoned = with_tail(7);
  poisoned[500] = kPoisonToken;
  auto bad = std::make_shared<RecordingSink>();
  add(poisoned, bad);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 3; ++i) {
    sinks.push_back(std::make_shared<RecordingSink>());
    add(with_tail(i), sinks.back(), 2);
  }
  auto also_bad = std::make_shared<RecordingSink>();
  add(poisoned, also_bad, 3);
  run();
  EXPECT_EQ(bad->choices[0].finish_reason, FinishReason::kError);
  EXPECT_EQ(also_bad->choices[0].finish_reason, FinishReason::kError);
  EXPECT_LE(also_bad->num_cached_tokens, 500);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(sinks[static_cast<size_t>(i)]->choices[0].token_ids, model.expected_greedy(with_tail(i), 6));
  }
}

}  // namespace
}  // namespace quire

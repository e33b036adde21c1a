// Requests that want an embedding, beside others: the history model's hidden states tell whether the right positions
// were pooled, once each.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "engine/engine.h"
#include "engine/testing/history_model.h"
#include "ops/backends.h"

namespace quire {
namespace {

using testing::HistoryModel;
using testing::kPoisonToken;
using testing::RecordingSink;

class EmbeddingSink : public EventSink {
 public:
  void on_event(const TokenEvent& event) override {
    EXPECT_EQ(num_events++, 0);
    EXPECT_TRUE(event.token_ids.empty());
    embedding.assign(event.embedding.begin(), event.embedding.end());
    reason = event.finish_reason;
    error = event.error;
    times = event.times;
    num_cached_tokens = event.num_cached_tokens;
  }
  int num_events = 0;
  std::vector<float> embedding;
  FinishReason reason = FinishReason::kNone;
  Status error;
  RequestTimes times;
  int num_cached_tokens = 0;
};

class EmbeddingTest : public ::testing::Test {
 protected:
  EmbeddingTest() : ops(create_ops({.kind = BackendKind::kReference}).value()) {}

  std::unique_ptr<Engine> make(int num_pages = 1000, int max_num_batched_tokens = 32, bool has_prefix_cache = true) {
    EngineOptions options;
    options.max_num_seqs = 8;
    options.max_num_batched_tokens = max_num_batched_tokens;
    options.page_size = 8;
    options.compute = Compute::kF32;
    options.has_prefix_cache = has_prefix_cache;
    options.kv_cache_memory_bytes = int64_t{num_pages} * 8 * 2 * 8 * 4;
    return Engine::create(*ops, model, options).value();
  }

  std::vector<int32_t> random_tokens(int count) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(random() % 59));
    return tokens;
  }

  static Request request(std::vector<int32_t> prompt, Pooling pooling, std::shared_ptr<EventSink> sink,
                         bool is_normalized = true) {
    Request made = Request::from_tokens(std::move(prompt), {.max_tokens = 0}, std::move(sink));
    made.pooling = pooling;
    made.is_normalized = is_normalized;
    return made;
  }

  std::shared_ptr<EmbeddingSink> add(Engine& engine, std::vector<int32_t> prompt, Pooling pooling,
                                     bool is_normalized = true) {
    auto sink = std::make_shared<EmbeddingSink>();
    const Status status = engine.add_request(request(std::move(prompt), pooling, sink, is_normalized)).status();
    EXPECT_TRUE(status.is_ok()) << status.message();
    return sink;
  }

  // From the model alone.
  std::vector<float> expected(std::span<const int32_t> prompt, Pooling pooling, bool is_normalized = true) const {
    std::vector<double> sum(8);
    const size_t first = pooling == Pooling::kLast ? prompt.size() : 1;
    const size_t last = pooling == Pooling::kCls ? 1 : prompt.size();
    for (size_t length = first; length <= last; ++length) {
      const std::vector<float> hidden = model.hidden(prompt.first(length));
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += double{hidden[i]} / static_cast<double>(last - first + 1);
    }
    const double norm = std::sqrt(std::inner_product(sum.begin(), sum.end(), sum.begin(), 0.0));
    std::vector<float> result;
    for (const double value : sum) result.push_back(static_cast<float>(is_normalized ? value / norm : value));
    return result;
  }

  static void expect_near(const std::vector<float>& got, const std::vector<float>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6) << i;
  }

  static void run(Engine& engine) {
    for (int i = 0; engine.has_work(); ++i) {
      ASSERT_LT(i, 5000) << "no end in sight";
      ASSERT_TRUE(engine.step().is_ok());
    }
    EXPECT_EQ(engine.stats().num_pages_used, 0);
  }

  std::unique_ptr<Ops> ops;
  HistoryModel model;
  std::mt19937 random{5};
};

TEST_F(EmbeddingTest, EveryPoolingOverPromptsOfEveryLength) {
  auto engine = make();
  for (const Pooling pooling : {Pooling::kLast, Pooling::kMean, Pooling::kCls}) {
    for (const int length : {1, 7, 8, 32, 33, 100}) {  // within a step, and in chunks of 32
      for (const bool is_normalized : {true, false}) {
        const std::vector<int32_t> prompt = random_tokens(length);
        const auto sink = add(*engine, prompt, pooling, is_normalized);
        run(*engine);
        SCOPED_TRACE(std::string(pooling_name(pooling)) + " " + std::to_string(length));
        expect_near(sink->embedding, expected(prompt, pooling, is_normalized));
        EXPECT_EQ(sink->reason, FinishReason::kStop);
        EXPECT_GT(sink->times.first_token, sink->times.first_scheduled);
      }
    }
  }
  EXPECT_EQ(engine->stats().num_generated_tokens, 0);
}

// Mixed with generation over few pages: preemption, shared beginnings, chunks. The mean must be the same to the bit.
TEST_F(EmbeddingTest, NeighboursPreemptionAndPrefixesChangeNothing) {
  const std::vector<int32_t> stem = random_tokens(90);
  struct Case {
    std::vector<int32_t> prompt;
    Pooling pooling;
    std::shared_ptr<EmbeddingSink> sink;
  };
  std::vector<Case> cases;
  std::vector<std::pair<std::vector<int32_t>, std::shared_ptr<RecordingSink>>> answers;
  auto engine = make(/*num_pages=*/60, /*max_num_batched_tokens=*/24);
  for (int i = 0; i < 60; ++i) {
    std::vector<int32_t> prompt(stem.begin(), stem.begin() + static_cast<int64_t>(random() % 90));
    const std::vector<int32_t> rest = random_tokens(1 + static_cast<int>(random() % 30));
    prompt.insert(prompt.end(), rest.begin(), rest.end());
    if (i % 3 == 0) {
      answers.emplace_back(prompt, std::make_shared<RecordingSink>());
      SamplingParams greedy = {.temperature = 0.0f, .max_tokens = 40, .ignore_eos = true};
      ASSERT_TRUE(engine->add_request(Request::from_tokens(prompt, greedy, answers.back().second)).is_ok());
    } else {
      const Pooling pooling = i % 3 == 1 ? Pooling::kMean : Pooling::kLast;
      cases.push_back({prompt, pooling, add(*engine, prompt, pooling)});
    }
    if (i % 5 == 0) {
      ASSERT_TRUE(engine->step().is_ok());
    }
  }
  run(*engine);
  EXPECT_GT(engine->stats().num_preemptions, 0);
  EXPECT_GT(engine->stats().num_cached_tokens, 0);
  for (const auto& [prompt, sink] : answers) EXPECT_EQ(sink->choices[0].token_ids, model.expected_greedy(prompt, 40));
  auto alone = make(1000, 512, /*has_prefix_cache=*/false);
  for (const Case& one : cases) {
    const auto sink = add(*alone, one.prompt, one.pooling);
    run(*alone);
    expect_near(one.sink->embedding, expected(one.prompt, one.pooling));
    EXPECT_EQ(one.sink->embedding, sink->embedding);
  }
}

TEST_F(EmbeddingTest, TheLastTokenReusesPrefixesAndTheMeanDoesNot) {
  auto engine = make();
  const std::vector<int32_t> prompt = random_tokens(50);
  const auto first = add(*engine, prompt, Pooling::kMean);
  run(*engine);
  const auto last = add(*engine, prompt, Pooling::kLast);
  run(*engine);
  const auto mean = add(*engine, prompt, Pooling::kMean);
  run(*engine);
  EXPECT_EQ(last->num_cached_tokens, 48);
  EXPECT_EQ(mean->num_cached_tokens, 0);
  expect_near(last->embedding, expected(prompt, Pooling::kLast));
  EXPECT_EQ(mean->embedding, first->embedding);
}

TEST_F(EmbeddingTest, HiddenStatesThatAreNotNumbersAreAnErrorAndStayOutOfTheCache) {
  auto engine = make();
  std::vector<int32_t> prompt = random_tokens(40);
  prompt[3] = kPoisonToken;
  const auto sink = add(*engine, prompt, Pooling::kMean);
  run(*engine);
  EXPECT_EQ(sink->reason, FinishReason::kError);
  EXPECT_TRUE(sink->embedding.empty());
  EXPECT_FALSE(sink->error.is_ok());
  EXPECT_EQ(engine->stats().num_pages_cached, 0);
}

TEST_F(EmbeddingTest, RefusesWhatMakesNoSense) {
  auto engine = make();
  const auto sink = std::make_shared<EmbeddingSink>();
  Request generating = request({1, 2}, Pooling::kLast, sink);
  generating.sampling.max_tokens = 1;
  EXPECT_EQ(engine->add_request(std::move(generating)).status().code(), StatusCode::kInvalidArgument);
  Request several = request({1, 2}, Pooling::kLast, sink);
  several.sampling.n = 2;
  EXPECT_EQ(engine->add_request(std::move(several)).status().code(), StatusCode::kInvalidArgument);
  Request scored = request({1, 2}, Pooling::kLast, sink);
  scored.sampling.num_prompt_logprobs = 0;
  EXPECT_EQ(engine->add_request(std::move(scored)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(sink->num_events, 0);
}

TEST_F(EmbeddingTest, AnAbortedOneTellsSo) {
  auto engine = make();
  const auto sink = std::make_shared<EmbeddingSink>();
  const RequestId id = engine->add_request(request(random_tokens(100), Pooling::kMean, sink)).value();
  ASSERT_TRUE(engine->step().is_ok());
  engine->abort(id, AbortReason::kDisconnected);
  EXPECT_EQ(sink->reason, FinishReason::kAborted);
  EXPECT_TRUE(sink->embedding.empty());
  run(*engine);
  EXPECT_EQ(engine->stats().num_aborted[static_cast<size_t>(AbortReason::kDisconnected)], 1);
}

}  // namespace
}  // namespace quire

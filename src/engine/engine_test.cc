// The engine over a model whose every logit tells whether its history was read from the right pages.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "engine/testing/engine_fixture.h"

namespace quire {
namespace {

using testing::greedy;
using testing::kPoisonToken;
using testing::random_tokens;
using testing::RecordingSink;
using EngineTest = testing::EngineFixture;

TEST_F(EngineTest, OneRequestGeneratesWhatTheModelSays) {
  auto engine = make(options());
  const std::vector<int32_t> prompt = random_tokens(random, 75);  // over the token budget, past the window
  const auto sink = add(*engine, prompt, greedy(60));
  run(*engine);
  EXPECT_EQ(sink->choices[0].token_ids, model.expected_greedy(prompt, 60));
  EXPECT_EQ(sink->choices[0].finish_reason, FinishReason::kLength);
}

// Many requests at once, more than there are seats, over few pages, so that some are preempted, with prompts that share
// beginnings: each gets what it would get alone.
TEST_F(EngineTest, NeighboursPreemptionAndPrefixesChangeNothing) {
  for (const bool has_prefix_cache : {false, true}) {
    for (const int page_size : {8, 16}) {
      EngineOptions engine_options = options(page_size == 8 ? 70 : 50, page_size);
      engine_options.has_prefix_cache = has_prefix_cache;
      engine_options.max_model_len = 200;
      auto engine = make(engine_options);
      const std::vector<int32_t> stem = random_tokens(random, 100);
      std::vector<std::pair<std::vector<int32_t>, std::shared_ptr<RecordingSink>>> requests;
      for (int i = 0; i < 60; ++i) {
        std::vector<int32_t> prompt(stem.begin(), stem.begin() + static_cast<int64_t>(random() % 100));
        const std::vector<int32_t> rest = random_tokens(random, 1 + static_cast<int>(random() % 40));
        prompt.insert(prompt.end(), rest.begin(), rest.end());
        requests.emplace_back(prompt, add(*engine, prompt, greedy(1 + static_cast<int64_t>(random() % 50))));
        if (i % 4 == 0) {
          ASSERT_TRUE(engine->step().is_ok());
        }
      }
      run(*engine);
      for (const auto& [prompt, sink] : requests) {
        const auto& choice = sink->choices[0];
        EXPECT_EQ(choice.token_ids, model.expected_greedy(prompt, static_cast<int>(choice.token_ids.size())));
        EXPECT_EQ(choice.finish_reason, FinishReason::kLength);
      }
      EXPECT_GT(engine->stats().num_preemptions, 0);
      EXPECT_EQ(engine->stats().num_cached_tokens > 0, has_prefix_cache);
      EXPECT_EQ(engine->stats().num_pages_cached > 0, has_prefix_cache);
    }
  }
}

// With a budget of its own choosing it does what it does with any other, and the budget follows the steps.
TEST_F(EngineTest, TheTokensOfAStepFollowItsTime) {
  EngineOptions engine_options = options();
  engine_options.max_num_batched_tokens = 0;
  engine_options.step_seconds = 0.004;
  auto engine = make(engine_options);
  const MemoryPlan& plan = engine->memory_plan();
  EXPECT_GT(plan.prefill_tokens_per_second, 0.0);
  EXPECT_GE(plan.first_step_tokens, engine_options.max_num_seqs + 16);
  EXPECT_LE(plan.first_step_tokens, plan.max_num_batched_tokens);
  EXPECT_LE(plan.max_num_batched_tokens, 2048);
  EXPECT_EQ(engine->stats().step_tokens, plan.first_step_tokens);
  const auto answer = [&](int num_tokens) {
    const std::vector<int32_t> prompt = random_tokens(random, num_tokens);
    const auto sink = add(*engine, prompt, greedy(5));
    run(*engine);
    EXPECT_EQ(sink->choices[0].token_ids, model.expected_greedy(prompt, 5));
  };
  // Whatever was measured, each step is too long now.
  model.in_step = [] { std::this_thread::sleep_for(std::chrono::milliseconds(8)); };
  for (int i = 0; i < 400 && engine->stats().step_tokens > engine_options.max_num_seqs + 16; ++i) answer(100);
  EXPECT_EQ(engine->stats().step_tokens, engine_options.max_num_seqs + 16);
  EXPECT_EQ(engine->memory_plan().max_num_batched_tokens, plan.max_num_batched_tokens);
  engine_options.max_num_batched_tokens = -1;
  EXPECT_FALSE(Engine::create(*ops, model, engine_options).is_ok());
}

TEST_F(EngineTest, TheTokensOfAStepGrowAfterASlowStart) {
  EngineOptions engine_options = options();
  engine_options.max_num_batched_tokens = 0;
  engine_options.step_seconds = 2.0;
  // At start a token takes 20 ms, as a step of one token alone is enough to tell.
  model.in_step = [] { std::this_thread::sleep_for(std::chrono::milliseconds(160)); };
  auto engine = make(engine_options);
  model.in_step = nullptr;
  const MemoryPlan& plan = engine->memory_plan();
  ASSERT_LT(plan.first_step_tokens, plan.max_num_batched_tokens);
  for (int i = 0; i < 400 && engine->stats().step_tokens < plan.max_num_batched_tokens; ++i) {
    const std::vector<int32_t> prompt = random_tokens(random, 300);
    const auto sink = add(*engine, prompt, greedy(5));
    run(*engine);
    EXPECT_EQ(sink->choices[0].token_ids, model.expected_greedy(prompt, 5));
  }
  EXPECT_EQ(engine->stats().step_tokens, plan.max_num_batched_tokens);
  // One that was asked for stays.
  engine_options.max_num_batched_tokens = 64;
  auto fixed = make(engine_options);
  model.in_step = [] { std::this_thread::sleep_for(std::chrono::milliseconds(8)); };
  add(*fixed, random_tokens(random, 300), greedy(5));
  run(*fixed);
  EXPECT_EQ(fixed->stats().step_tokens, 64);
  EXPECT_EQ(fixed->memory_plan().first_step_tokens, 0);
}

// Room for steps that may grow is taken only where it is small beside the pages.
TEST_F(EngineTest, StepsThatMayGrowCostNoPages) {
  const auto plan_with = [&](int64_t num_bytes) {
    EngineOptions engine_options = options();
    engine_options.max_num_batched_tokens = 0;
    engine_options.step_seconds = 1e-9;
    engine_options.kv_cache_memory_bytes = num_bytes;
    return make(engine_options)->memory_plan();
  };
  const MemoryPlan roomy = plan_with(int64_t{256} << 20);
  EXPECT_EQ(roomy.first_step_tokens, options().max_num_seqs + 16);
  EXPECT_EQ(roomy.max_num_batched_tokens, 8 * roomy.first_step_tokens);
  const MemoryPlan tight = plan_with(int64_t{64} << 10);
  EXPECT_EQ(tight.first_step_tokens, roomy.first_step_tokens);
  EXPECT_EQ(tight.max_num_batched_tokens, tight.first_step_tokens);
  EXPECT_LT(tight.scratch_bytes, roomy.scratch_bytes);
}

// Rows that are sampled side by side give what they give one after the other.
TEST_F(EngineTest, NothingToGenerateIsAnEmptyAnswer) {
  auto engine = make(options());
  const auto sink = add(*engine, {1, 2, 3}, greedy(0));
  run(*engine);
  EXPECT_TRUE(sink->choices[0].token_ids.empty());
  EXPECT_EQ(sink->choices[0].finish_reason, FinishReason::kLength);
}

TEST_F(EngineTest, TheEndOfTheContextEndsTheAnswer) {
  EngineOptions engine_options = options();
  engine_options.max_model_len = 50;
  auto engine = make(engine_options);
  const std::vector<int32_t> prompt = random_tokens(random, 40);
  const auto sink = add(*engine, prompt, greedy(1000));
  run(*engine);
  EXPECT_EQ(sink->choices[0].token_ids, model.expected_greedy(prompt, 10));
  EXPECT_EQ(sink->choices[0].finish_reason, FinishReason::kLength);
  const auto too_long = engine->add_request(
      Request::from_tokens(random_tokens(random, 50), greedy(1), std::make_shared<RecordingSink>()));
  ASSERT_FALSE(too_long.is_ok());
  EXPECT_NE(too_long.status().message().find("50"), std::string::npos);
  EXPECT_FALSE(engine->has_work());
}

// F050's second half.
TEST_F(EngineTest, ADamagedRequestFailsAloneAndLeavesNothing) {
  auto engine = make(options());
  std::vector<int32_t> poisoned = random_tokens(random, 30);
  poisoned[5] = kPoisonToken;
  const std::vector<int32_t> good = random_tokens(random, 30);
  SamplingParams three = greedy(10);
  three.n = 3;
  const auto bad = add(*engine, poisoned, three);
  const auto beside = add(*engine, good, greedy(20));
  run(*engine);
  ASSERT_EQ(bad->choices.size(), 3u);
  for (const auto& choice : bad->choices) {
    EXPECT_EQ(choice.finish_reason, FinishReason::kError);
    EXPECT_FALSE(choice.error.is_ok());
    EXPECT_TRUE(choice.token_ids.empty());
  }
  EXPECT_EQ(beside->choices[0].token_ids, model.expected_greedy(good, 20));
  const auto again = add(*engine, poisoned, greedy(10));
  run(*engine);
  EXPECT_EQ(again->num_cached_tokens, 0);  // its pages were not kept
  EXPECT_EQ(again->choices[0].finish_reason, FinishReason::kError);
}

TEST_F(EngineTest, AConversationReusesItsPages) {
  auto engine = make(options());
  std::vector<int32_t> conversation = random_tokens(random, 40);
  for (int turn = 0; turn < 4; ++turn) {
    const auto sink = add(*engine, conversation, greedy(25));
    run(*engine);
    EXPECT_EQ(sink->choices[0].token_ids, model.expected_greedy(conversation, 25));
    if (turn > 0) {
      EXPECT_GE(sink->num_cached_tokens, static_cast<int>(conversation.size()) - 20);
    }
    conversation.insert(conversation.end(), sink->choices[0].token_ids.begin(), sink->choices[0].token_ids.end());
    const std::vector<int32_t> more = random_tokens(random, 10);
    conversation.insert(conversation.end(), more.begin(), more.end());
  }
  engine->clear_prefix_cache();
  const auto cold = add(*engine, conversation, greedy(5));
  run(*engine);
  EXPECT_EQ(cold->num_cached_tokens, 0);
}

TEST_F(EngineTest, AbortsAndStopsFromInsideEvents) {
  auto engine = make(options());
  const auto beside = add(*engine, {9, 9}, greedy(30));
  const auto stopped = add(*engine, {1, 2, 3}, [] {
    SamplingParams params = {.n = 2, .seed = 1, .max_tokens = 30, .ignore_eos = true};
    return params;
  }());
  stopped->then = [&, id = last_id](const TokenEvent& event) {
    if (event.choice_index == 1 && stopped->choices[1].token_ids.size() == 5 &&
        event.finish_reason == FinishReason::kNone) {
      engine->stop_choice(id, 1);
      engine->stop_choice(id, 1);  // twice is once
    }
  };
  const auto aborted = add(*engine, random_tokens(random, 60), greedy(30));
  const RequestId aborted_id = last_id;
  bool is_abort_asked_for = false;
  beside->then = [&](const TokenEvent&) {
    if (beside->choices[0].token_ids.size() != 10) return;
    engine->abort(aborted_id);
    is_abort_asked_for = true;
  };
  // Its row comes later in the same step: nothing of it is told any more.
  aborted->then = [&](const TokenEvent& event) {
    if (is_abort_asked_for) {
      EXPECT_TRUE(event.token_ids.empty());
    }
  };
  const auto early = add(*engine, random_tokens(random, 60), greedy(30));
  engine->abort(last_id);  // before it ever ran
  EXPECT_EQ(early->choices[0].finish_reason, FinishReason::kAborted);
  const auto early_choice = add(*engine, {1, 2, 3}, [] {
    SamplingParams params = {.n = 3, .seed = 1, .max_tokens = 5, .ignore_eos = true};
    return params;
  }());
  engine->stop_choice(last_id, 0);  // before it was forked
  engine->stop_choice(last_id, 7);
  run(*engine);
  EXPECT_EQ(stopped->choices[0].finish_reason, FinishReason::kLength);
  EXPECT_EQ(stopped->choices[0].token_ids.size(), 30u);
  EXPECT_EQ(stopped->choices[1].finish_reason, FinishReason::kStop);
  EXPECT_EQ(stopped->choices[1].token_ids.size(), 5u);
  EXPECT_EQ(aborted->choices[0].finish_reason, FinishReason::kAborted);
  EXPECT_EQ(beside->choices[0].token_ids, model.expected_greedy({9, 9}, 30));
  EXPECT_EQ(early_choice->choices[0].finish_reason, FinishReason::kStop);
  EXPECT_EQ(early_choice->choices[1].token_ids.size(), 5u);
  EXPECT_EQ(early_choice->choices[2].token_ids.size(), 5u);
}

// While a step runs, the token of the one before is told: the step waits for it here.
TEST_F(EngineTest, TellsATokenWhileTheNextStepRuns) {
  auto engine = make(options());
  std::mutex mutex;
  std::condition_variable was_told;
  size_t num_told = 0;
  size_t num_steps = 0;
  model.in_step = [&] {
    std::unique_lock lock(mutex);
    EXPECT_TRUE(was_told.wait_for(lock, std::chrono::seconds(10), [&] { return num_told == num_steps; }));
    ++num_steps;
  };
  const auto sink = add(*engine, {1, 2, 3}, greedy(10));
  sink->then = [&](const TokenEvent&) {
    const std::lock_guard lock(mutex);
    ++num_told;
    was_told.notify_one();
  };
  run(*engine);
  EXPECT_EQ(num_told, 10u);
  EXPECT_EQ(sink->choices[0].token_ids, model.expected_greedy({1, 2, 3}, 10));
}

// A constraint that allows one token a place: 10, 11, 12, …
class Counting : public TokenConstraint {
 public:
  void fill_mask(std::span<uint32_t> mask) override {
    for (uint32_t& word : mask) word = 0;
    mask[static_cast<size_t>(next_ / 32)] = 1u << (next_ % 32);
  }
  void accept(int32_t token_id) override {
    EXPECT_EQ(token_id, next_);
    ++next_;
  }
  void rollback(int num_tokens) override { next_ -= num_tokens; }
  std::unique_ptr<TokenConstraint> clone() const override { return std::make_unique<Counting>(*this); }

 private:
  int next_ = 10;
};

TEST_F(EngineTest, AConstraintIsObeyedByEveryChoice) {
  auto engine = make(options());
  auto sink = std::make_shared<RecordingSink>();
  Request request = Request::from_tokens({1, 2, 3}, {.n = 3, .max_tokens = 5, .ignore_eos = true}, sink);
  request.constraint = std::make_unique<Counting>();
  ASSERT_TRUE(engine->add_request(std::move(request)).is_ok());
  run(*engine);
  for (const auto& choice : sink->choices) EXPECT_EQ(choice.token_ids, (std::vector<int32_t>{10, 11, 12, 13, 14}));
}

TEST_F(EngineTest, WrongOptionsAreNamed) {
  const auto refused = [&](EngineOptions engine_options, const std::string& word) {
    const auto engine = Engine::create(*ops, model, engine_options);
    ASSERT_FALSE(engine.is_ok());
    EXPECT_NE(engine.status().message().find(word), std::string::npos) << engine.status().message();
  };
  EngineOptions wrong = options();
  wrong.page_size = 24;
  refused(wrong, "--page-size");
  wrong = options();
  wrong.max_num_seqs = 0;
  refused(wrong, "--max-num-seqs");
  wrong = options();
  wrong.max_num_batched_tokens = 7;
  refused(wrong, "--max-num-batched-tokens");
  wrong = options();
  wrong.max_model_len = 5000;
  refused(wrong, "5000");
  wrong = options();
  wrong.kv_cache_memory_bytes = int64_t{1} << 60;
  refused(wrong, "--kv-cache-memory");
  wrong = options(10);
  wrong.max_model_len = 100;
  refused(wrong, "--max-model-len 100");
}

TEST_F(EngineTest, CachesOfCodesAreRefusedWhereTheBackendHasNone) {
  const std::unique_ptr<Ops> cpu = create_ops({.kind = BackendKind::kCpu, .num_threads = 1}).value();
  for (const auto& [dtype, name] : {std::pair<DType, std::string>{DType::kF8E4M3, "fp8"}, {DType::kI8, "int8"}}) {
    EngineOptions engine_options = options();
    engine_options.kv_dtype = dtype;
    const auto engine = Engine::create(*cpu, model, engine_options);
    ASSERT_FALSE(engine.is_ok());
    EXPECT_NE(engine.status().message().find("--kv-cache-dtype " + name), std::string::npos)
        << engine.status().message();
  }
}

// Random requests of every kind, aborted at random: every choice gets exactly one last event, and all pages come back.
TEST_F(EngineTest, RandomTraffic) {
  EngineOptions engine_options = options(80);
  engine_options.max_model_len = 200;
  auto engine = make(engine_options);
  std::vector<std::pair<int, std::shared_ptr<RecordingSink>>> requests;
  std::vector<RequestId> ids;
  for (int i = 0; i < 400; ++i) {
    SamplingParams sampling;
    sampling.n = 1 + static_cast<int>(random() % 3);
    sampling.temperature = random() % 2 == 0 ? 0.0f : 1.0f;
    sampling.max_tokens = static_cast<int64_t>(random() % 40);
    sampling.num_prompt_logprobs = random() % 5 == 0 ? 1 : -1;
    sampling.repetition_penalty = random() % 4 == 0 ? 1.3f : 1.0f;
    sampling.top_p = random() % 3 == 0 ? 0.8f : 1.0f;
    std::vector<int32_t> prompt(1 + random() % 100, static_cast<int32_t>(random() % 3));
    if (random() % 20 == 0) prompt.back() = kPoisonToken;
    requests.emplace_back(sampling.n, add(*engine, prompt, sampling));
    ids.push_back(last_id);
    const int num_steps = static_cast<int>(random() % 3);
    for (int s = 0; s < num_steps; ++s) ASSERT_TRUE(engine->step().is_ok());
    if (random() % 6 == 0) engine->abort(ids[random() % ids.size()]);
    if (random() % 6 == 0) engine->stop_choice(ids[random() % ids.size()], static_cast<int>(random() % 3));
  }
  run(*engine);
  std::map<FinishReason, int> reasons;
  for (const auto& [n, sink] : requests) {
    ASSERT_EQ(sink->choices.size(), static_cast<size_t>(n));
    for (const auto& choice : sink->choices) ++reasons[choice.finish_reason];
  }
  EXPECT_EQ(reasons[FinishReason::kNone], 0);
  EXPECT_GT(reasons[FinishReason::kStop], 0);
  EXPECT_GT(reasons[FinishReason::kLength], 0);
  EXPECT_GT(reasons[FinishReason::kAborted], 0);
  EXPECT_GT(reasons[FinishReason::kError], 0);
  EXPECT_GT(engine->stats().num_preemptions, 0);
  const double share = engine->stats().kv_useful_share_sum / static_cast<double>(engine->stats().num_steps);
  EXPECT_GT(share, 0.5);
  EXPECT_LE(share, 1.0);
}

}  // namespace
}  // namespace quire

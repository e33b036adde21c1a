// Drawing tokens by the engine: threads, choices, seeds, stops and log-probabilities, over a model whose every logit
// tells whether its history was read from the right pages.
#include <algorithm>
#include <cmath>
#include <set>

#include "engine/testing/engine_fixture.h"

namespace quire {
namespace {

using testing::greedy;
using testing::kPoisonToken;
using testing::random_tokens;
using testing::RecordingSink;
using EngineSamplingTest = testing::EngineFixture;

TEST_F(EngineSamplingTest, SamplingThreadsChangeNothing) {
  std::vector<std::shared_ptr<RecordingSink>> reference;
  for (const int num_threads : {1, 4}) {
    EngineOptions engine_options = options();
    engine_options.num_sampling_threads = num_threads;
    auto engine = make(engine_options);
    std::mt19937 same(7);
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (int i = 0; i < 24; ++i) {
      SamplingParams sampling = {.n = i % 5 == 0 ? 3 : 1,
                                 .temperature = i % 3 == 0 ? 0.0f : 1.3f,
                                 .top_p = i % 4 == 0 ? 0.7f : 1.0f,
                                 .presence_penalty = i % 2 == 0 ? 0.0f : 1.0f,
                                 .seed = static_cast<uint64_t>(i),
                                 .max_tokens = 12,
                                 .num_logprobs = 2};
      std::vector<int32_t> prompt = random_tokens(same, 1 + i);
      if (i == 7) prompt[0] = kPoisonToken;
      sinks.push_back(add(*engine, prompt, sampling));
    }
    run(*engine);
    if (reference.empty()) {
      reference = sinks;
      continue;
    }
    for (size_t i = 0; i < sinks.size(); ++i) {
      ASSERT_EQ(sinks[i]->choices.size(), reference[i]->choices.size());
      for (size_t c = 0; c < sinks[i]->choices.size(); ++c) {
        const auto& one = sinks[i]->choices[c];
        const auto& other = reference[i]->choices[c];
        EXPECT_EQ(one.token_ids, other.token_ids) << i;
        EXPECT_EQ(one.finish_reason, i == 7 ? FinishReason::kError : other.finish_reason);
        ASSERT_EQ(one.logprobs.size(), other.logprobs.size());
        for (size_t t = 0; t < one.logprobs.size(); ++t) EXPECT_EQ(one.logprobs[t].logprob, other.logprobs[t].logprob);
      }
    }
  }
}

TEST_F(EngineSamplingTest, ChoicesShareThePromptAndDiffer) {
  for (const int prompt_length : {16, 21}) {  // at a page's end, and inside one: the last page is copied
    auto engine = make(options());
    const std::vector<int32_t> prompt = random_tokens(random, prompt_length);
    SamplingParams sampling = {.n = 5, .seed = 42, .max_tokens = 30, .ignore_eos = true};
    const auto sink = add(*engine, prompt, sampling);
    run(*engine);
    ASSERT_EQ(sink->choices.size(), 5u);
    std::set<std::vector<int32_t>> different;
    for (const auto& choice : sink->choices) {
      EXPECT_EQ(choice.token_ids.size(), 30u);
      different.insert(choice.token_ids);
    }
    EXPECT_EQ(different.size(), 5u);
    // The pages of the prompt were held once.
    EXPECT_LE(engine->stats().num_pages_used_peak, 2 * (prompt_length / 8 + 5 * 6));
    // The same seed gives the same choices, whatever runs beside, and greedy choices are all what greedy is.
    const auto again = add(*engine, prompt, sampling);
    const auto all_greedy = [&] {
      SamplingParams params = greedy(30);
      params.n = 3;
      return add(*engine, prompt, params);
    }();
    run(*engine);
    for (size_t c = 0; c < 5; ++c) EXPECT_EQ(again->choices[c].token_ids, sink->choices[c].token_ids);
    for (const auto& choice : all_greedy->choices) EXPECT_EQ(choice.token_ids, model.expected_greedy(prompt, 30));
  }
}

// F026.
TEST_F(EngineSamplingTest, SeedsHoldBesideAnyNeighbour) {
  auto engine = make(options());
  const std::vector<int32_t> prompt_a = random_tokens(random, 12);
  const std::vector<int32_t> prompt_b = random_tokens(random, 17);
  const SamplingParams seeded = {.temperature = 0.8f, .seed = 42, .max_tokens = 40, .ignore_eos = true};
  SamplingParams unseeded = seeded;
  unseeded.seed.reset();
  std::set<std::vector<int32_t>> answers_a;
  std::set<std::vector<int32_t>> answers_b;
  for (int i = 0; i < 4; ++i) {
    const auto a = add(*engine, prompt_a, seeded);
    const auto b = add(*engine, prompt_b, unseeded);
    run(*engine);
    answers_a.insert(a->choices[0].token_ids);
    answers_b.insert(b->choices[0].token_ids);
  }
  add(*engine, prompt_b, seeded);
  const auto a = add(*engine, prompt_a, seeded);
  run(*engine);
  answers_a.insert(a->choices[0].token_ids);
  auto other = make(options());
  const auto elsewhere = add(*other, prompt_a, seeded);
  run(*other);
  answers_a.insert(elsewhere->choices[0].token_ids);
  EXPECT_EQ(answers_a.size(), 1u);
  EXPECT_EQ(answers_b.size(), 4u);
}

TEST_F(EngineSamplingTest, EveryPositionDrawsAnew) {
  auto engine = make(options());
  const auto sink =
      add(*engine, {1, 2},
          {.temperature = 100.0f, .seed = 5, .banned_token_ids = {kPoisonToken}, .max_tokens = 40, .ignore_eos = true});
  run(*engine);
  EXPECT_EQ(sink->choices[0].finish_reason, FinishReason::kLength);
  const auto& tokens = sink->choices[0].token_ids;
  EXPECT_GT(std::set<int32_t>(tokens.begin(), tokens.end()).size(), 10u);
}

TEST_F(EngineSamplingTest, StopTokens) {
  auto engine = make(options());
  const std::vector<int32_t> prompt = random_tokens(random, 10);
  const std::vector<int32_t> expected = model.expected_greedy(prompt, 200);
  const int32_t stop = expected[20];
  const auto first = std::find(expected.begin(), expected.end(), stop) - expected.begin();
  SamplingParams sampling = greedy(200);
  sampling.stop_token_ids = {stop};
  const auto stopped = add(*engine, prompt, sampling);
  // With ignore_eos the model's own stop token (3) does not stop; without it does. Force it by bias.
  SamplingParams biased = greedy(10);
  biased.logit_bias = {{3, 100.0f}};
  const auto ignoring = add(*engine, prompt, biased);
  biased.ignore_eos = false;
  const auto ending = add(*engine, prompt, biased);
  biased.min_tokens = 4;
  const auto later = add(*engine, prompt, biased);
  run(*engine);
  EXPECT_EQ(stopped->choices[0].finish_reason, FinishReason::kStop);
  EXPECT_EQ(stopped->choices[0].token_ids, (std::vector<int32_t>(expected.begin(), expected.begin() + first + 1)));
  EXPECT_EQ(ignoring->choices[0].token_ids, std::vector<int32_t>(10, 3));
  EXPECT_EQ(ignoring->choices[0].finish_reason, FinishReason::kLength);
  EXPECT_EQ(ending->choices[0].token_ids, std::vector<int32_t>{3});
  EXPECT_EQ(ending->choices[0].finish_reason, FinishReason::kStop);
  EXPECT_EQ(later->choices[0].token_ids.size(), 5u);
  EXPECT_EQ(std::count(later->choices[0].token_ids.begin(), later->choices[0].token_ids.end(), 3), 1);
}

TEST_F(EngineSamplingTest, TheTokenizersOwnStopTokensCount) {
  EngineOptions engine_options = options();
  engine_options.eos_token_ids = {5};
  auto engine = make(engine_options);
  SamplingParams sampling = {.temperature = 0.0f, .logit_bias = {{5, 100.0f}}, .max_tokens = 10};
  const auto sink = add(*engine, {1, 2}, sampling);
  run(*engine);
  EXPECT_EQ(sink->choices[0].token_ids, std::vector<int32_t>{5});
}

TEST_F(EngineSamplingTest, PromptLogprobsOfEveryPosition) {
  auto engine = make(options());
  const std::vector<int32_t> prompt = random_tokens(random, 150);  // more rows than a step may have
  for (const int64_t max_tokens : {0, 3}) {
    SamplingParams sampling = greedy(max_tokens);
    sampling.num_prompt_logprobs = 2;
    sampling.num_logprobs = 1;
    const auto sink = add(*engine, prompt, sampling);
    const auto neighbour = add(*engine, random_tokens(random, 40), greedy(20));
    run(*engine);
    ASSERT_EQ(sink->prompt_logprobs.size(), prompt.size() - 1);
    for (size_t i = 0; i + 1 < prompt.size(); ++i) {
      const std::vector<float> row = model.logits(std::span(prompt).first(i + 1));
      double total = 0.0;
      for (const float logit : row) total += std::exp(static_cast<double>(logit));
      const TokenLogprobs& got = sink->prompt_logprobs[i];
      EXPECT_EQ(got.token_id, prompt[i + 1]);
      ASSERT_NEAR(got.logprob, static_cast<double>(row[static_cast<size_t>(prompt[i + 1])]) - std::log(total), 1e-5);
      EXPECT_EQ(got.top.size(), 2u);
    }
    EXPECT_EQ(sink->choices[0].token_ids, model.expected_greedy(prompt, static_cast<int>(max_tokens)));
    EXPECT_EQ(sink->choices[0].logprobs.size(), static_cast<size_t>(max_tokens));
    EXPECT_EQ(sink->choices[0].finish_reason, FinishReason::kLength);
  }
}

}  // namespace
}  // namespace quire

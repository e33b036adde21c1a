// The sampler: tables of what each parameter must do, and draws against their distribution by chi-square.
#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "engine/philox.h"

namespace quire {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

int32_t sample_once(Sampler& sampler, const std::vector<float>& logits, const SamplingParams& params, uint64_t seed = 1,
                    int64_t index = 0) {
  SamplingState state;
  const Result<Sample> sample =
      sampler.sample({.logits = logits, .params = params, .state = state, .seed = seed, .output_index = index});
  EXPECT_TRUE(sample.is_ok()) << sample.status().message();
  return sample.is_ok() ? sample.value().token_id : -1;
}

// Draws many times and compares with `expected`: tokens of probability 0 must never come, and the sum of
// (seen - expected)² / expected must stay under the 0.1 % point of chi-square.
void expect_distribution(const std::vector<float>& logits, const SamplingParams& params,
                         const std::vector<double>& expected) {
  Sampler sampler(static_cast<int64_t>(logits.size()), static_cast<int64_t>(logits.size()));
  const int num_draws = logits.size() > 100 ? 20000 : 100000;
  std::vector<int> counts(logits.size(), 0);
  for (int i = 0; i < num_draws; ++i) ++counts[static_cast<size_t>(sample_once(sampler, logits, params, 42, i))];
  double chi_square = 0.0;
  int degrees = -1;
  for (size_t t = 0; t < expected.size(); ++t) {
    if (expected[t] == 0.0) {
      EXPECT_EQ(counts[t], 0) << "token " << t;
      continue;
    }
    const double want = expected[t] * num_draws;
    chi_square += (counts[t] - want) * (counts[t] - want) / want;
    ++degrees;
  }
  // Wilson and Hilferty's approximation of the 99.9 % point.
  const double k = std::max(degrees, 1);
  const double cube = 1.0 - 2.0 / (9.0 * k) + 3.09 * std::sqrt(2.0 / (9.0 * k));
  if (degrees > 0) {
    EXPECT_LT(chi_square, k * cube * cube * cube);
  }
}

std::vector<double> softmax(const std::vector<float>& logits, double temperature = 1.0) {
  std::vector<double> p;
  double total = 0.0;
  for (const float logit : logits) {
    p.push_back(std::exp(static_cast<double>(logit) / temperature));
    total += p.back();
  }
  for (double& value : p) value /= total;
  return p;
}

TEST(Philox, KnownAnswers) {  // of the Random123 distribution
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Sampler, TinyTemperaturesAreGreedy) {
  Sampler sampler(3, 3);
  for (const float temperature : {1e-4f, 1e-12f, 0.0f}) {
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ(sample_once(sampler, {1, 2, 3}, {.temperature = temperature}, 7, i), 2);
      EXPECT_EQ(sample_once(sampler, {-kInfinity, 2, 3}, {.temperature = temperature}, 7, i), 2);
      EXPECT_EQ(sample_once(sampler, {3, 2, -kInfinity}, {.temperature = temperature}, 7, i), 0);
    }
  }
  EXPECT_EQ(sample_once(sampler, {3, 3, 1}, {.temperature = 0.0f}), 0);  // of equals the lowest id
}

TEST(Sampler, FiltersThatAreOff) {
  const std::vector<double> all = {0.0900, 0.2447, 0.6652};
  for (const int top_k : {0, -1, 10, 3}) expect_distribution({1, 2, 3}, {.top_k = top_k}, all);
  expect_distribution({1, 2, 3}, {.top_p = 1.0f}, all);
  expect_distribution({1, 2, 3}, {.min_p = 0.0f}, all);
  expect_distribution({1, 2, 3}, {.typical_p = 1.0f}, all);
}

TEST(Sampler, FiltersThatLeaveOne) {
  expect_distribution({1, 2, 3}, {.top_k = 1}, {0, 0, 1});
  expect_distribution({1, 2, 3}, {.top_p = 0.0f}, {0, 0, 1});
  expect_distribution({1, 2, 3}, {.top_p = 0.5f}, {0, 0, 1});
  expect_distribution({1, 2, 3}, {.min_p = 1.0f}, {0, 0, 1});
}

TEST(Sampler, EachFilterKeepsWhatItShould) {
  const std::vector<float> logits = {std::log(0.4f), std::log(0.1f), std::log(0.3f), std::log(0.2f)};
  expect_distribution(logits, {.top_k = 2}, {0.4 / 0.7, 0, 0.3 / 0.7, 0});
  expect_distribution(logits, {.top_p = 0.65f}, {0.4 / 0.7, 0, 0.3 / 0.7, 0});
  expect_distribution(logits, {.top_p = 0.75f}, {0.4 / 0.9, 0, 0.3 / 0.9, 0.2 / 0.9});
  expect_distribution(logits, {.min_p = 0.45f}, {0.4 / 0.9, 0, 0.3 / 0.9, 0.2 / 0.9});
  expect_distribution(logits, {.min_p = 0.6f}, {0.4 / 0.7, 0, 0.3 / 0.7, 0});
  expect_distribution({1, 2, 2, 2, 2}, {.top_k = 2}, {0, 0.5, 0.5, 0, 0});  // of equals those with the lower ids
  expect_distribution(logits, {.temperature = 0.5f}, softmax(logits, 0.5));
  expect_distribution(logits, {.temperature = 2.0f}, softmax(logits, 2.0));
  // top_k first, then top_p over what is left: 0.4 / 0.7 = 0.571 is enough for 0.55.
  expect_distribution(logits, {.top_k = 2, .top_p = 0.55f}, {1, 0, 0, 0});
  // Entropy 1.280: surprises 0.916, 2.303, 1.204, 1.609; gaps 0.364, 1.023, 0.076, 0.329.
  expect_distribution(logits, {.typical_p = 0.25f}, {0, 0, 1, 0});
  expect_distribution(logits, {.typical_p = 0.45f}, {0, 0, 0.6, 0.4});
}

TEST(Sampler, ALargeVocabularyIsCutWithoutSorting) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> logits(5000);
  for (float& logit : logits) logit = normal(random);
  const std::vector<double> p = softmax(logits);
  std::vector<size_t> order(p.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });

  const auto keep = [&](size_t count) {
    std::vector<double> kept(p.size(), 0.0);
    double total = 0.0;
    for (size_t i = 0; i < count; ++i) total += p[order[i]];
    for (size_t i = 0; i < count; ++i) kept[order[i]] = p[order[i]] / total;
    return kept;
  };
  expect_distribution(logits, {.top_k = 100}, keep(100));
  Sampler sampler(5000, 5000);
  const std::vector<double> thousand = keep(1000);
  for (int i = 0; i < 5000; ++i) {
    EXPECT_GT(thousand[static_cast<size_t>(sample_once(sampler, logits, {.temperature = 5.0f, .top_k = 1000}, 1, i))],
              0.0);
  }
  double mass = 0.0;
  size_t count = 0;
  while (mass < 0.3) mass += p[order[count++]];
  expect_distribution(logits, {.top_p = 0.3f}, keep(count));
  count = 0;
  while (p[order[count]] >= 0.2 * p[order[0]]) ++count;
  expect_distribution(logits, {.min_p = 0.2f}, keep(count));
}

TEST(Sampler, PenaltiesBiasAndMasks) {
  Sampler sampler(4, 4);
  SamplingState state;
  Sampler::count_prompt(state, std::vector<int32_t>{0});
  Sampler::count_output(state, 1);
  Sampler::count_output(state, 1);
  const auto best = [&](const std::vector<float>& logits, SamplingParams params, std::vector<int32_t> suppressed = {}) {
    params.temperature = 0.0f;
    const Result<Sample> sample =
        sampler.sample({.logits = logits, .params = params, .state = state, .suppressed_token_ids = suppressed});
    return sample.is_ok() ? sample.value().token_id : -1;
  };
  // Repetition: over prompt and output; divides what is positive, multiplies what is negative.
  EXPECT_EQ(best({4, 3.9f, 2.1f, 0}, {.repetition_penalty = 2.0f}), 2);
  EXPECT_EQ(best({-1, -1, -1.9f, -5}, {.repetition_penalty = 2.0f}), 2);
  EXPECT_EQ(best({-1, -1, -2.1f, -5}, {.repetition_penalty = 2.0f}), 0);
  // Presence and frequency: over the output alone.
  EXPECT_EQ(best({0, 3, 2.1f, 0}, {.presence_penalty = 1.0f}), 2);
  EXPECT_EQ(best({0, 3, 1.9f, 0}, {.presence_penalty = 1.0f}), 1);
  EXPECT_EQ(best({0, 3, 1.1f, 0}, {.frequency_penalty = 1.0f}), 2);
  EXPECT_EQ(best({3, 0, 1.1f, 0}, {.presence_penalty = 2.0f, .frequency_penalty = 2.0f}), 0);
  EXPECT_EQ(best({0, 1, 2, 3}, {.logit_bias = {{0, 4.0f}}}), 0);
  EXPECT_EQ(best({0, 1, 2, 3}, {.logit_bias = {{3, -100.0f}}}), 2);
  EXPECT_EQ(best({0, 1, 2, 3}, {.allowed_token_ids = {0, 1}}), 1);
  EXPECT_EQ(best({0, 1, 2, 3}, {.banned_token_ids = {3, 2}}), 1);
  EXPECT_EQ(best({0, 1, 2, 3}, {}, {3}), 2);
  EXPECT_EQ(best({0, 1, 2, 3}, {.allowed_token_ids = {3}, .banned_token_ids = {3}}), -1);
}

TEST(Sampler, AConstraintMasks) {
  class EvenOnly : public TokenConstraint {
   public:
    void fill_mask(std::span<uint32_t> mask) override {
      for (uint32_t& word : mask) word = 0x55555555u;
    }
    void accept(int32_t) override {}
    void rollback(int) override {}
    std::unique_ptr<TokenConstraint> clone() const override { return std::make_unique<EvenOnly>(); }
  };
  Sampler sampler(40, 40);
  SamplingState state;
  state.constraint = std::make_unique<EvenOnly>();
  std::vector<float> logits(40, 0.0f);
  logits[39] = 5.0f;
  for (int i = 0; i < 50; ++i) {
    const auto sample = sampler.sample({.logits = logits, .params = {}, .state = state, .output_index = i});
    ASSERT_TRUE(sample.is_ok());
    EXPECT_EQ(sample.value().token_id % 2, 0);
  }
}

TEST(Sampler, IdsThatTheTokenizerLacksAreNeverSampled) {
  Sampler sampler(4, 2);
  EXPECT_EQ(sample_once(sampler, {0, 1, 9, 9}, {.temperature = 0.0f}), 1);
  for (int i = 0; i < 50; ++i) EXPECT_LT(sample_once(sampler, {0, 1, 9, 9}, {}, 3, i), 2);
}

// F030.
TEST(Sampler, LogprobsAreTheModelsOwn) {
  Sampler sampler(4, 4);
  const std::vector<float> logits = {1, 0, -1, -2};
  for (SamplingParams params : {SamplingParams{.temperature = 0.0f}, SamplingParams{.temperature = 0.5f},
                                SamplingParams{.top_p = 0.0001f}, SamplingParams{.logit_bias = {{3, 50.0f}}}}) {
    params.num_logprobs = 3;
    SamplingState state;
    const auto sample = sampler.sample({.logits = logits, .params = params, .state = state, .seed = 3});
    ASSERT_TRUE(sample.is_ok());
    const TokenLogprobs& got = sample.value().logprobs;
    ASSERT_EQ(got.top.size(), 3u);
    EXPECT_NEAR(got.top[0].logprob, -0.44019f, 1e-5f);
    EXPECT_NEAR(got.top[1].logprob, -1.44019f, 1e-5f);
    EXPECT_NEAR(got.top[2].logprob, -2.44019f, 1e-5f);
    EXPECT_EQ(got.token_id, sample.value().token_id);
    EXPECT_EQ(got.rank, sample.value().token_id + 1);
    if (got.rank <= 3) {
      EXPECT_EQ(got.logprob, got.top[static_cast<size_t>(got.rank - 1)].logprob);
    }
  }
}

TEST(Sampler, ProcessedLogprobsOnDemand) {
  Sampler sampler(4, 4);
  SamplingState state;
  const SamplingParams params = {
      .temperature = 0.5f, .banned_token_ids = {0}, .num_logprobs = 4, .logprob_mode = LogprobMode::kProcessed};
  const auto sample =
      sampler.sample({.logits = std::vector<float>{9, 0, -1, -2}, .params = params, .state = state, .seed = 3});
  ASSERT_TRUE(sample.is_ok());
  const TokenLogprobs& got = sample.value().logprobs;
  ASSERT_EQ(got.top.size(), 3u);  // the banned one has none
  EXPECT_EQ(got.top[0].token_id, 1);
  EXPECT_NEAR(got.top[0].logprob, -std::log(1 + std::exp(-2.0) + std::exp(-4.0)), 1e-5);
}

TEST(Sampler, LogprobsNeverHoldInfinities) {
  Sampler sampler(3, 3);
  const auto got = sampler.logprobs_of(std::vector<float>{0, -kInfinity, 1}, 1, 3);
  ASSERT_TRUE(got.is_ok());
  EXPECT_EQ(got.value().logprob, -9999.0f);
  EXPECT_EQ(got.value().rank, 3);
  EXPECT_EQ(got.value().top.size(), 2u);
}

TEST(Sampler, LogprobsOfALargeRowAreExact) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> logits(50257);
  for (float& logit : logits) logit = normal(random);
  double total = 0.0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit));
  Sampler sampler(50257, 50257);
  std::vector<size_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  const auto got = sampler.logprobs_of(logits, static_cast<int32_t>(order[123]), 20);
  ASSERT_TRUE(got.is_ok());
  EXPECT_EQ(got.value().rank, 124);
  EXPECT_NEAR(got.value().logprob, static_cast<double>(logits[order[123]]) - std::log(total), 1e-6);
  for (size_t i = 0; i < 20; ++i) EXPECT_EQ(got.value().top[i].token_id, static_cast<int32_t>(order[i]));
}

TEST(Sampler, LogitsThatAreNotNumbersAreAnError) {
  Sampler sampler(3, 3);
  SamplingState state;
  for (const std::vector<float>& logits :
       {std::vector<float>{0, std::nanf(""), 1}, {0, kInfinity, 1}, {-kInfinity, -kInfinity, -kInfinity}}) {
    for (const float temperature : {0.0f, 1.0f}) {
      EXPECT_FALSE(sampler.sample({.logits = logits, .params = {.temperature = temperature}, .state = state}).is_ok());
    }
  }
}

TEST(Sampler, ADrawDependsOnSeedChoiceAndPositionAlone) {
  Sampler sampler(100, 100);
  Sampler other(100, 100);
  const std::vector<float> logits(100, 0.0f);
  std::vector<int32_t> first;
  for (int i = 0; i < 50; ++i) first.push_back(sample_once(sampler, logits, {}, 42, i));
  for (int i = 49; i >= 0; --i) {
    sample_once(other, logits, {}, 1, i);
    EXPECT_EQ(sample_once(other, logits, {}, 42, i), first[static_cast<size_t>(i)]);
  }
  int num_equal = 0;
  for (int i = 0; i < 50; ++i) num_equal += sample_once(sampler, logits, {}, 43, i) == first[static_cast<size_t>(i)];
  EXPECT_LT(num_equal, 10);
}

}  // namespace
}  // namespace quire

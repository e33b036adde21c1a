// sample, as its plain loops define it: greedy, every cut against sorted doubles, how often each token is drawn, and
// rows that are not numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "ops/reference/reference_ops.h"
#include "ops/sample_rows.h"
#include "ops/tests/op_test.h"
#include "ops/tests/sample_cases.h"

namespace quire {
namespace {

int32_t sample_one(const std::vector<float>& logits, SamplingRow row) {
  if (row.num_token_ids == 0) row.num_token_ids = static_cast<int32_t>(logits.size());
  ReferenceOps ops;
  Arena arena = make_test_arena(1024);
  OpContext context{arena};
  int32_t id = -7;
  ops.sample(context, TensorView(&id, DType::kI32, {1}),
             ConstTensorView(logits.data(), DType::kF32, {1, static_cast<int64_t>(logits.size())}), &row);
  return id;
}

TEST(Sample, GreedyTakesTheGreatestAndOfEqualOnesTheFirst) {
  EXPECT_EQ(sample_one({1, 5, -3, 5}, {}), 1);
  EXPECT_EQ(sample_one({-INFINITY, -INFINITY, -2}, {}), 2);
  EXPECT_EQ(sample_one({1, 2, 3}, {.num_token_ids = 2}), 1);
}

TEST(Sample, WhatIsNoNumberIsTold) {
  EXPECT_EQ(sample_one({1, NAN, 3}, {}), -1);
  EXPECT_EQ(sample_one({1, INFINITY, 3}, {}), -1);
  EXPECT_EQ(sample_one({-INFINITY, -INFINITY}, {}), -1);
  EXPECT_EQ(sample_one({1, 2, NAN}, {.num_token_ids = 2}), 1);
}

// The tokens that may be drawn, by doubles.
std::vector<int32_t> allowed(const float* logits, int64_t size, const SamplingRow& row) {
  std::vector<int32_t> ids(static_cast<size_t>(size));
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  const double best = double{logits[ids[0]]};
  const auto x_of = [&](int32_t id) { return (double{logits[id]} - best) * double{row.inverse_temperature}; };
  std::erase_if(ids, [&](int32_t id) { return x_of(id) < double{row.lowest}; });
  if (row.top_k > 0 && static_cast<size_t>(row.top_k) < ids.size()) ids.resize(static_cast<size_t>(row.top_k));
  double total = 0;
  for (const int32_t id : ids) total += std::exp(x_of(id));
  double reached = 0;
  size_t count = 0;
  while (count < ids.size() && reached < double{row.top_p} * total) reached += std::exp(x_of(ids[count++]));
  ids.resize(std::max<size_t>(count, 1));
  return ids;
}

TEST(Sample, OnlyTokensThatTheCutsLeaveAreDrawn) {
  TestRandom random(3);
  SCOPED_TRACE(random.trace());
  for (const int64_t size : {1, 2, 33, 1000}) {
    const SampleCase test = make_sample_case(random, size);
    for (size_t r = 0; r < test.rows.size(); ++r) {
      const SamplingRow& row = test.rows[r];
      const float* logits = test.logits.data() + static_cast<int64_t>(r) * size;
      const int32_t id = sample_one({logits, logits + size}, row);
      const int64_t num_ids = std::min<int64_t>(size, row.num_token_ids);
      ASSERT_TRUE(id >= 0 && id < num_ids);
      if (row.inverse_temperature == 0) continue;
      const std::vector<int32_t> ids = allowed(logits, num_ids, row);
      EXPECT_TRUE(std::find(ids.begin(), ids.end(), id) != ids.end()) << "row " << r << " of " << size;
    }
  }
}

TEST(Sample, EachTokenIsDrawnAsOftenAsItsWeightSays) {
  const std::vector<float> logits = {0.0f, 1.0f, -1.0f, 2.0f, 0.5f};
  constexpr int kDraws = 20000;
  std::vector<double> expected;
  double total = 0;
  for (const float logit : logits) total += expected.emplace_back(std::exp(double{logit} * 0.5));
  std::vector<int> counts(logits.size());
  for (int i = 0; i < kDraws; ++i) {
    SamplingRow row;
    row.inverse_temperature = 0.5f;
    row.uniform_bits = (uint64_t{1} << 53) / kDraws * static_cast<uint64_t>(i);
    ++counts[static_cast<size_t>(sample_one(logits, row))];
  }
  for (size_t i = 0; i < logits.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(counts[i]) / kDraws, expected[i] / total, 2.0 / kDraws) << i;
  }
}

}  // namespace
}  // namespace quire

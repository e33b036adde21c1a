// adjust_logits and logprobs as their plain loops define them: values worked out by hand, and log-probabilities against
// sums of doubles.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "ops/reference/reference_ops.h"
#include "ops/tests/logits_cases.h"
#include "ops/tests/op_test.h"

namespace quire {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

TEST(AdjustLogits, PenaltiesThenBiasesThenTheMask) {
  std::vector<float> logits = {9, 9, 9, 9, 9, /**/ 4, -1, 2, 8, 3};
  std::vector<float> kept(10, 0.0f);
  const std::vector<PenalizedToken> penalized = {{7, 7}, {0, 0}, {1, 3}, {2, 1}};
  const std::vector<TokenBias> biases = {{-1, 1.0f}, {0, 0.5f}, {3, 1e9f}, {3, -1e9f}, {4, 2.0f}};
  const std::vector<uint32_t> mask = {~0u, ~(1u << 4)};
  const std::vector<LogitsAdjustment> rows = {
      {.row = 1,
       .kept_row = 1,
       .first_penalized = 1,
       .num_penalized = 3,
       .num_biases = 5,
       .first_mask_word = 1,
       .penalties = {.repetition = 2.0f, .presence = 0.25f, .frequency = 0.5f}}};
  ReferenceOps ops;
  Arena arena = make_test_arena(1024);
  OpContext context{arena};
  ops.adjust_logits(context, TensorView(logits.data(), DType::kF32, {2, 5}),
                    {.num_rows = 1,
                     .rows = rows.data(),
                     .penalized = penalized.data(),
                     .biases = biases.data(),
                     .mask_words = mask.data(),
                     .kept = TensorView(kept.data(), DType::kF32, {2, 5})});
  EXPECT_EQ(logits, (std::vector<float>{9, 9, 9, 9, 9, /**/ 2.5f, -3.75f, 0.25f, 0, kNever}));
  EXPECT_EQ(kept, (std::vector<float>{0, 0, 0, 0, 0, /**/ 4, -1, 2, 8, 3}));
}

TEST(AdjustLogits, AMaskHidesNothingThatIsNoNumber) {
  std::vector<float> logits = {NAN, 1, INFINITY};
  const uint32_t none = 0;
  const LogitsAdjustment row = {.first_mask_word = 0, .penalties = {}};
  adjust_rows(TensorView(logits.data(), DType::kF32, {1, 3}),
              {.num_rows = 1, .rows = &row, .mask_words = &none, .kept = {}});
  EXPECT_TRUE(std::isnan(logits[0]));
  EXPECT_EQ(logits[1], kNever);
  EXPECT_EQ(logits[2], INFINITY);
}

TEST(Logprobs, AreThoseOfDoubles) {
  TestRandom random(11);
  SCOPED_TRACE(random.trace());
  for (const int64_t size : {1, 4, 33, 1000, 20000}) {
    const LogprobsCase test = make_logprobs_case(random, size);
    std::vector<LogprobsResult> results(test.rows.size());
    std::vector<TopToken> top(test.rows.size() * static_cast<size_t>(test.most_top));
    const ConstTensorView logits(test.logits.data(), DType::kF32, {test.num_rows, size});
    ReferenceOps ops;
    Arena arena = make_test_arena(1024);
    OpContext context{arena};
    ops.logprobs(context, logits,
                 {.num_rows = static_cast<int>(test.rows.size()),
                  .rows = test.rows.data(),
                  .ids = test.ids.data(),
                  .kept = logits,
                  .results = results.data(),
                  .top = top.data(),
                  .most_top = test.most_top});
    for (size_t r = 0; r < test.rows.size(); ++r) {
      const LogprobsRow& row = test.rows[r];
      SCOPED_TRACE("row " + std::to_string(r) + " of " + std::to_string(size));
      const int64_t num_ids = std::min<int64_t>(size, row.num_token_ids);
      const float* const values = test.logits.data() + (row.kept_row >= 0 ? row.kept_row : row.row) * size;
      const int32_t in_row = test.ids[static_cast<size_t>(row.row)];
      const int32_t drawn = in_row >= 0 && row.given_id >= 0 ? row.given_id : in_row;
      if (drawn < 0 || drawn >= num_ids) {
        EXPECT_EQ(results[r].total, 0u);
        continue;
      }
      std::vector<int32_t> order(static_cast<size_t>(num_ids));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return values[a] > values[b]; });
      const double best = values[order[0]];
      if (std::isinf(best)) continue;
      double total = 0.0;
      for (const int32_t id : order) total += std::exp((double{values[id]} - best) * double{row.scale});
      EXPECT_NEAR(std::log(static_cast<double>(results[r].total) / kWeightSumScale), std::log(total), 2e-6);
      EXPECT_EQ(results[r].best, values[order[0]]);
      EXPECT_EQ(results[r].drawn, values[drawn]);
      EXPECT_EQ(order[static_cast<size_t>(results[r].rank - 1)], drawn);
      std::erase_if(order, [&](int32_t id) { return values[id] == kNever; });
      ASSERT_EQ(static_cast<size_t>(results[r].num_top), std::min(order.size(), static_cast<size_t>(row.num_top)));
      for (int32_t i = 0; i < results[r].num_top; ++i) {
        const TopToken& entry = top[r * static_cast<size_t>(test.most_top) + static_cast<size_t>(i)];
        EXPECT_EQ(entry.token_id, order[static_cast<size_t>(i)]);
        EXPECT_EQ(entry.logit, values[entry.token_id]);
      }
    }
  }
}

}  // namespace
}  // namespace quire

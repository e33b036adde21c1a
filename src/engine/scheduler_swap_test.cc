// Sequences that gave way and come back: from the swap space or by computing again.
#include <gtest/gtest.h>

#include "engine/testing/scheduler_harness.h"

namespace quire {
namespace {

using Harness = testing::SchedulerHarness;
using testing::run_until_done;
using testing::small_config;

// ---- Swapping
// --------------------------------------------------------------------------------------------------------

TEST(SchedulerSwap, PagesComeBackInsteadOfBeingComputed) {
  SchedulerConfig config = small_config();
  config.preemption = PreemptionMode::kSwap;
  Harness h(10, config, /*has_cache=*/false, /*num_host_pages=*/10);
  Sequence* first = h.add(40, {});
  Sequence* second = h.add(36, {.first_token = 9});
  run_until_done(h, {first, second}, 20);
  EXPECT_GE(h.num_copied_out, 1);
  EXPECT_EQ(h.num_copied_out, h.num_copied_in);
  EXPECT_EQ(h.num_computed_tokens, 40 + 36 + 2 * 19);  // nothing twice
  EXPECT_EQ(h.space->pool().num_used(), 0);
}

TEST(SchedulerSwap, AFullSpaceMeansComputingAgain) {
  SchedulerConfig config = small_config();
  config.preemption = PreemptionMode::kSwap;
  Harness h(10, config, /*has_cache=*/false, /*num_host_pages=*/2);
  Sequence* first = h.add(40, {});
  Sequence* second = h.add(36, {.first_token = 9});
  run_until_done(h, {first, second}, 20);
  EXPECT_EQ(h.num_copied_out, 0);
  EXPECT_GT(h.num_computed_tokens, 40 + 36 + 2 * 19);
}

// Choices share the pages of their prompt: in the swap space, and when they come back.
TEST(SchedulerSwap, ForksAreKeptOnceAndShareAgain) {
  for (const bool has_cache : {false, true}) {
    SchedulerConfig config = small_config();
    config.preemption = PreemptionMode::kSwap;
    Harness h(14, config, has_cache, /*num_host_pages=*/16);
    Sequence* oldest = h.add(40, {.first_token = 11});  // five pages
    Sequence* parent = h.add(34, {.num_seats = 3});     // four full pages, two tokens over
    h.compute();
    h.scheduler->keep_pages(*oldest);
    oldest->token_ids.push_back(7);
    h.compute();
    h.scheduler->keep_pages(*oldest);
    oldest->token_ids.push_back(7);
    h.compute();
    h.scheduler->keep_pages(*oldest);
    oldest->token_ids.push_back(7);
    ASSERT_EQ(parent->num_computed_tokens, 34);
    h.scheduler->keep_pages(*parent);
    std::vector<Sequence*> forks = {parent};
    for (int c = 1; c < 3; ++c) forks.push_back(h.scheduler->fork(*parent, c));
    for (Sequence* fork : forks) fork->token_ids.push_back(40 + fork->choice_index);
    // The oldest is the last that ends, so it pushes them out one by one.
    std::vector<Sequence*> all = forks;
    all.push_back(oldest);
    int num_swapped = 0;
    int most_host_pages = 0;
    for (int i = 0; !all.empty(); ++i) {
      ASSERT_LT(i, 2000);
      num_swapped += h.step().num_swapped_out;
      most_host_pages = std::max(most_host_pages, h.space->pool().num_used());
      std::erase_if(all, [&](Sequence* sequence) {
        if (sequence->num_output_tokens() < (sequence == oldest ? 60 : 30)) return false;
        h.scheduler->finish(sequence);
        return true;
      });
    }
    EXPECT_GE(num_swapped, 2);
    EXPECT_LE(most_host_pages, 4 + 3 * 5);
    EXPECT_EQ(h.num_computed_tokens, 40 + 34 + 59 + 3 * 29);
    EXPECT_EQ(h.pool.num_used(), 0);
    EXPECT_EQ(h.space->pool().num_used(), 0);
  }
}

TEST(SchedulerSwap, TheCheaperByTheRates) {
  const PreemptionCosts costs = {.prefill_tokens_per_second = 1000, .swap_bytes_per_second = 1e6, .page_bytes = 1000};
  // 2 ms a page there and back, 1 ms a token.
  EXPECT_TRUE(costs.is_swap_cheaper(/*num_tokens=*/64, /*num_pages=*/4));
  EXPECT_FALSE(costs.is_swap_cheaper(/*num_tokens=*/8, /*num_pages=*/4));
  EXPECT_FALSE(PreemptionCosts{.prefill_tokens_per_second = 1000}.is_swap_cheaper(64, 4));
  EXPECT_TRUE((PreemptionCosts{.swap_bytes_per_second = 1, .page_bytes = 1000}.is_swap_cheaper(1, 4)));
}

}  // namespace
}  // namespace quire

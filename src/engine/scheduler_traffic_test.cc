// Random traffic through the scheduler over pages that remember: arrivals, lengths, shared beginnings, prompts whose
// every position wants a row of logits, forks, aborts, failures, priorities and keys, over a pool that is always short
// of pages, with and without a prefix cache and a swap space. Every step is checked (testing/scheduler_harness),
// everything ends, and all pages come back.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "engine/testing/scheduler_harness.h"

namespace quire {
namespace {

struct Traffic {
  bool has_cache = false;
  std::vector<int> windows = {0};
  int num_pages = 26;
  int num_host_pages = 0;
  PreemptionMode preemption = PreemptionMode::kAuto;
  int num_requests = 400;
  bool is_planning_ahead = false;
};

struct Outcome {
  int num_preempted = 0;
  int num_swapped_out = 0;
  int num_swapped_in = 0;
  int num_forked = 0;
  int num_prompt_logits = 0;  // steps of a prompt that wants them
  int num_waits = 0;          // steps in which somebody waited for another's pages
  int most_passed_over = 0;
};

void run_random_traffic(unsigned seed, const Traffic& traffic, Outcome* outcome) {
  SchedulerConfig config{.max_num_seqs = 8,
                         .max_num_batched_tokens = 32,
                         .max_logit_rows = 8,
                         .max_model_len = 400,
                         .page_size = 8,
                         .group_windows = traffic.windows,
                         .preemption = traffic.preemption,
                         .costs = {.prefill_tokens_per_second = 100, .swap_bytes_per_second = 2800, .page_bytes = 100},
                         .max_passed_over = 40,
                         .max_stalled_steps = 40};
  testing::SchedulerHarness h(traffic.num_pages, config, traffic.has_cache, traffic.num_host_pages);
  h.is_planning_ahead = traffic.is_planning_ahead;
  std::mt19937 random(seed);
  const auto below = [&](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
  std::map<Sequence*, int64_t> ends;  // unfinished: at how many tokens they end
  int num_added = 0;
  int num_finished = 0;
  int num_idle = 0;
  const auto end = [&](Sequence* sequence) {
    ends.erase(sequence);
    h.scheduler->finish(sequence);
    ++num_finished;
  };
  for (int i = 0; num_finished < num_added || num_added < traffic.num_requests; ++i) {
    ASSERT_LT(i, 100000) << "no end in sight";
    // Alone, in pairs and in crowds that share their beginning.
    for (int crowd = below(3) == 0 ? 1 + below(5) : 0; crowd > 0 && num_added < traffic.num_requests; --crowd) {
      const int length = 1 + below(120);
      const int output = 1 + below(60);
      if (!h.scheduler->check_fits(length, output).is_ok()) continue;
      Sequence* sequence = h.add(length, {.priority = below(3) - 1,
                                          .first_token = below(3),
                                          .share_key = static_cast<uint64_t>(below(4)),
                                          .num_seats = below(5) == 0 ? 2 : 1,
                                          .adapter_id = below(4) == 0 ? 1 : 0});
      ends[sequence] = length + output;
      ++num_added;
      if (below(5) == 0) sequence->next_prompt_logit = 0;
    }
    const StepPlan& plan = h.compute();
    if (::testing::Test::HasFatalFailure()) return;
    outcome->num_preempted += plan.num_preempted;
    outcome->num_swapped_out += plan.num_swapped_out;
    outcome->num_swapped_in += plan.num_swapped_in;
    for (const auto& waiting : h.scheduler->waiting()) {
      outcome->num_waits += waiting->awaited != nullptr ? 1 : 0;
      outcome->most_passed_over = std::max(outcome->most_passed_over, waiting->num_passed_over);
    }
    num_idle = plan.rows.empty() && !ends.empty() ? num_idle + 1 : 0;
    ASSERT_LT(num_idle, 3) << "work is queued and nothing moves";
    const std::vector<StepRow> rows = plan.rows;
    for (const StepRow& row : rows) {
      Sequence* sequence = row.sequence;
      ASSERT_TRUE(ends.contains(sequence));
      if (row.num_logit_rows == 0) continue;
      if (sequence->wants_prompt_logits()) {
        ASSERT_EQ(row.end_position() - row.num_logit_rows, sequence->next_prompt_logit);
        sequence->next_prompt_logit = std::min(row.end_position(), sequence->num_prompt_tokens - 1);
        ++outcome->num_prompt_logits;
      }
      if (below(100) == 0) {  // its logits are not numbers
        h.scheduler->forget_pages(*sequence);
        end(sequence);
        continue;
      }
      h.scheduler->keep_pages(*sequence);
      if (row.end_position() != sequence->num_tokens()) continue;
      if (sequence->num_seats > 1) {
        Sequence* child = h.scheduler->fork(*sequence, 1);
        ends[child] = ends[sequence] + below(5);
        child->token_ids.push_back(8);
        ++num_added;
        ++outcome->num_forked;
      }
      sequence->token_ids.push_back(7);
      if (sequence->num_tokens() >= ends[sequence]) end(sequence);
    }
    if (below(40) == 0 && !ends.empty()) {  // an abort
      auto it = ends.begin();
      std::advance(it, below(static_cast<int>(ends.size())));
      end(it->first);
    }
    if (i % 16 == 0) {
      h.pool.check_consistency();
      if (h.space != nullptr) h.space->pool().check_consistency();
    }
  }
  EXPECT_EQ(h.pool.num_used(), 0);
  EXPECT_EQ(h.pool.num_available(), traffic.num_pages);
  if (h.space != nullptr) {
    EXPECT_EQ(h.space->pool().num_used(), 0);
  }
}

TEST(SchedulerTraffic, Recompute) {
  Outcome outcome;
  for (unsigned seed = 1; seed <= 4; ++seed) {
    run_random_traffic(seed, {}, &outcome);
    run_random_traffic(seed, {.has_cache = true}, &outcome);
    run_random_traffic(seed, {.has_cache = true, .windows = {0, 20}, .num_pages = 44}, &outcome);
  }
  EXPECT_GT(outcome.num_preempted, 30);
  EXPECT_EQ(outcome.num_swapped_out, 0);
  EXPECT_GT(outcome.num_forked, 30);
  EXPECT_GT(outcome.num_waits, 30);
  EXPECT_GT(outcome.num_prompt_logits, 100);
  EXPECT_LE(outcome.most_passed_over, 40);
}

// With what decodes planned while the step before runs.
TEST(SchedulerTraffic, PlannedAhead) {
  for (const int num_host_pages : {0, 6, 40}) {
    Outcome outcome;
    for (unsigned seed = 1; seed <= 4; ++seed) {
      Traffic traffic{.has_cache = seed % 2 == 0,
                      .num_host_pages = num_host_pages,
                      .preemption = num_host_pages > 0 ? PreemptionMode::kSwap : PreemptionMode::kAuto,
                      .is_planning_ahead = true};
      run_random_traffic(seed, traffic, &outcome);
      traffic.windows = {0, 20};
      traffic.num_pages = 44;
      run_random_traffic(seed, traffic, &outcome);
    }
    EXPECT_GT(outcome.num_preempted, 30);
    EXPECT_EQ(outcome.num_swapped_out > 30, num_host_pages > 0);
    EXPECT_GT(outcome.num_forked, 30);
  }
}

TEST(SchedulerTraffic, Swap) {
  for (const bool has_cache : {false, true}) {
    Outcome outcome;
    for (unsigned seed = 1; seed <= 3; ++seed) {
      Traffic traffic{.has_cache = has_cache, .num_host_pages = 40, .preemption = PreemptionMode::kSwap};
      run_random_traffic(seed, traffic, &outcome);
      traffic.num_host_pages = 6;  // often full
      run_random_traffic(seed, traffic, &outcome);
      traffic.windows = {0, 20};
      traffic.num_pages = 44;
      traffic.num_host_pages = 60;
      run_random_traffic(seed, traffic, &outcome);
    }
    EXPECT_GT(outcome.num_swapped_out, 30);
    EXPECT_GT(outcome.num_swapped_in, 30);
    EXPECT_GT(outcome.num_preempted, outcome.num_swapped_out);  // the space was full at times
    EXPECT_GT(outcome.num_forked, 30);
  }
}

TEST(SchedulerTraffic, WhateverIsCheaper) {
  Outcome outcome;
  for (unsigned seed = 1; seed <= 3; ++seed) {
    run_random_traffic(seed, {.has_cache = true, .num_host_pages = 40}, &outcome);
  }
  EXPECT_GT(outcome.num_swapped_out, 3);
  EXPECT_GT(outcome.num_preempted, outcome.num_swapped_out + 3);
}

}  // namespace
}  // namespace quire

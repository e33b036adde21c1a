// The scheduler without any model: scenarios, and random traffic with the invariants checked at every step.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "engine/testing/scheduler_harness.h"

namespace quire {
namespace {

using Harness = testing::SchedulerHarness;
using testing::small_config;

TEST(Scheduler, AChunkFillsWhatDecodesLeave) {
  Harness h(100, small_config());
  Sequence* first = h.add(20, {});
  const StepPlan* plan = &h.step();
  ASSERT_EQ(plan->rows.size(), 1u);
  EXPECT_EQ(plan->rows[0].num_tokens, 20);
  EXPECT_EQ(plan->rows[0].num_logit_rows, 1);
  Sequence* second = h.add(70, {});
  plan = &h.step();  // a token for the first, 31 for the second
  ASSERT_EQ(plan->rows.size(), 2u);
  EXPECT_EQ(plan->rows[0].sequence, first);
  EXPECT_EQ(plan->rows[0].num_tokens, 1);
  EXPECT_EQ(plan->rows[1].sequence, second);
  EXPECT_EQ(plan->rows[1].num_tokens, 31);
  EXPECT_EQ(plan->rows[1].num_logit_rows, 0);
  plan = &h.step();
  EXPECT_EQ(plan->rows[1].first_position, 31);
  plan = &h.step();  // the last 8, and their logits
  EXPECT_EQ(plan->rows[1].num_tokens, 8);
  EXPECT_EQ(plan->rows[1].num_logit_rows, 1);
  EXPECT_EQ(plan->num_tokens, 9);
  plan = &h.step();
  EXPECT_EQ(plan->num_decode_rows, 2);
}

TEST(Scheduler, SeatsAndOrder) {
  Harness h(100, small_config());
  for (int i = 0; i < 6; ++i) h.add(4, {});
  Sequence* urgent = h.add(4, {.priority = -1});
  const StepPlan& plan = h.step();
  ASSERT_EQ(plan.rows.size(), 4u);
  EXPECT_EQ(plan.rows[0].sequence, urgent);
  EXPECT_EQ(plan.rows[1].sequence->request_id, 1u);
  EXPECT_EQ(h.scheduler->num_waiting(), 3);
  h.scheduler->finish(urgent);
  EXPECT_EQ(h.step().rows.size(), 4u);  // its seat is taken in the very next step
}

TEST(Scheduler, WhatCanNeverFitIsRefused) {
  SchedulerConfig config = small_config();
  Harness h(10, config);
  EXPECT_TRUE(h.scheduler->check_fits(70, 10).is_ok());
  const Status pages = h.scheduler->check_fits(70, 11);
  ASSERT_FALSE(pages.is_ok());
  EXPECT_NE(pages.message().find("11 KV pages"), std::string::npos) << pages.message();
  const Status context = h.scheduler->check_fits(400, 1);
  ASSERT_FALSE(context.is_ok());
  EXPECT_NE(context.message().find("400"), std::string::npos);
  EXPECT_FALSE(h.scheduler->check_fits(401, 0).is_ok());
}

TEST(Scheduler, TwoThatFillThePoolBothFinish) {
  SchedulerConfig config = small_config();
  Harness h(10, config);
  Sequence* first = h.add(40, {});  // five pages each
  Sequence* second = h.add(40, {});
  std::map<Sequence*, int> computed;
  int num_preempted = 0;
  std::set<Sequence*> unfinished = {first, second};
  for (int i = 0; i < 200 && !unfinished.empty(); ++i) {
    num_preempted += h.step().num_preempted;
    for (Sequence* sequence : {first, second}) {
      if (unfinished.contains(sequence) && sequence->num_output_tokens() >= 20) {
        h.scheduler->finish(sequence);
        unfinished.erase(sequence);
      }
    }
    h.pool.check_consistency();
  }
  EXPECT_TRUE(unfinished.empty());
  EXPECT_GE(num_preempted, 1);
  EXPECT_EQ(h.pool.num_used(), 0);
}

TEST(Scheduler, TheNewestGivesWayAndComesBackFirst) {
  Harness h(9, small_config());
  Sequence* oldest = h.add(16, {});
  h.add(16, {});
  Sequence* newest = h.add(16, {});
  h.add(30, {});  // does not fit yet
  bool was_preempted = false;
  for (int i = 0; i < 30 && !was_preempted; ++i) {
    was_preempted = h.step().num_preempted > 0;
  }
  ASSERT_TRUE(was_preempted);
  EXPECT_EQ(h.scheduler->waiting().front().get(), newest);
  EXPECT_EQ(newest->num_computed_tokens, 0);
  EXPECT_GT(newest->num_output_tokens(), 0);  // its tokens are kept
  h.scheduler->finish(oldest);
  h.step();
  h.step();
  EXPECT_EQ(h.scheduler->running().back().get(), newest);
}

TEST(Scheduler, PromptLogitsBoundTheChunk) {
  Harness h(100, small_config());
  Sequence* sequence = h.add(20, {});
  sequence->next_prompt_logit = 0;
  int64_t next = 0;
  while (next < 20) {
    const StepPlan& plan = h.scheduler->schedule();
    ASSERT_EQ(plan.rows.size(), 1u);
    EXPECT_LE(plan.num_logit_rows, 8);
    EXPECT_EQ(plan.rows[0].num_logit_rows, plan.rows[0].num_tokens);
    next = plan.rows[0].end_position();
    sequence->next_prompt_logit = std::min<int64_t>(next, 19);
    h.scheduler->complete();
  }
  EXPECT_EQ(next, 20);
}

TEST(Scheduler, WhoHasOnlyALogitLeftToComputeWaitsForItsRow) {
  Harness h(100, small_config(), /*has_cache=*/true);
  h.scheduler->finish((h.add(17, {}), h.step().rows[0].sequence));
  Sequence* reader = h.add(testing::stem_and_tail(0, 20, 60), {});
  reader->next_prompt_logit = 0;
  Sequence* cached = h.add(17, {});
  const StepPlan* plan = &h.scheduler->schedule();
  ASSERT_EQ(plan->rows.size(), 1u);
  EXPECT_EQ(plan->rows[0].sequence, reader);
  EXPECT_EQ(plan->num_logit_rows, 8);  // all that a step has
  EXPECT_EQ(cached->num_computed_tokens, 0);
  h.scheduler->complete();
  h.scheduler->finish(reader);
  plan = &h.step();
  ASSERT_EQ(plan->rows.size(), 1u);
  EXPECT_EQ(plan->rows[0].sequence, cached);
  EXPECT_EQ(plan->rows[0].first_position, 16);
}

TEST(Scheduler, TwoWholePagesLeaveOnePositionToCompute) {
  for (const int length : {15, 16, 17}) {
    Harness h(100, small_config(), /*has_cache=*/true);
    Sequence* sequence = h.add(length, {});
    h.step();
    h.scheduler->finish(sequence);
    h.add(length, {});
    const StepPlan& plan = h.step();
    ASSERT_EQ(plan.rows.size(), 1u);
    EXPECT_EQ(plan.rows[0].first_position, length == 17 ? 16 : 8) << length;
    EXPECT_GT(plan.rows[0].num_tokens, 0);
    EXPECT_EQ(plan.rows[0].num_logit_rows, 1);
  }
}

}  // namespace
}  // namespace quire

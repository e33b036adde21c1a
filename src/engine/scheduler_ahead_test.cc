// Rows that are planned while a step runs: what becomes of them when the step has ended.
#include <gtest/gtest.h>

#include "engine/testing/scheduler_harness.h"

namespace quire {
namespace {

using testing::SchedulerHarness;
using testing::small_config;

// Computes a step, and plans ahead what it samples; those get their token, but for `ended`.
void step_ahead(SchedulerHarness& h, Sequence* ended = nullptr) {
  h.is_planning_ahead = true;
  const std::vector<StepRow> rows = h.compute().rows;
  for (const StepRow& row : rows) {
    if (row.num_logit_rows == 0 || row.end_position() != row.sequence->num_tokens()) continue;
    if (row.sequence == ended) {
      h.scheduler->finish(ended);
    } else {
      row.sequence->token_ids.push_back(7);
    }
  }
}

TEST(SchedulerAhead, PagesAreGrownWhileTheStepRuns) {
  SchedulerHarness h(20, small_config());
  Sequence* sequence = h.add(8, {});  // a page of prompt: the first output needs another
  step_ahead(h);
  EXPECT_TRUE(sequence->is_planned_ahead);
  EXPECT_EQ(h.pool.num_used(), 2);
  const StepPlan& plan = h.compute();
  ASSERT_EQ(plan.rows.size(), 1u);
  EXPECT_EQ(plan.num_decode_rows, 1);
  EXPECT_EQ(plan.rows[0].first_position, 8);
  EXPECT_EQ(plan.num_tokens, 1);
}

TEST(SchedulerAhead, WhatHasEndedIsDropped) {
  SchedulerHarness h(20, small_config());
  Sequence* first = h.add(8, {});
  Sequence* second = h.add(8, {.first_token = 20});
  step_ahead(h, first);
  EXPECT_EQ(h.pool.num_used(), 2);
  Sequence* third =
      h.add(8, {.first_token = 30});  // it came meanwhile, and waits no longer than without planning ahead
  const StepPlan& plan = h.compute();
  ASSERT_EQ(plan.rows.size(), 2u);
  EXPECT_EQ(plan.rows[0].sequence, second);
  EXPECT_EQ(plan.rows[1].sequence, third);
  EXPECT_EQ(plan.num_decode_rows, 1);
  h.scheduler->finish(second);
  h.scheduler->finish(third);
  EXPECT_EQ(h.pool.num_used(), 0);
}

// Nobody gives way for a row that may not come true.
TEST(SchedulerAhead, NobodyGivesWayWhileTheStepRuns) {
  SchedulerHarness h(2, small_config());
  Sequence* first = h.add(8, {});
  Sequence* second = h.add(8, {.first_token = 20});
  step_ahead(h);
  if (second->num_computed_tokens == 0) step_ahead(h);
  EXPECT_FALSE(first->is_planned_ahead && second->is_planned_ahead);
  const StepPlan& plan = h.compute();
  EXPECT_LE(plan.num_preempted, 1);
  ASSERT_GE(plan.rows.size(), 1u);
  EXPECT_EQ(plan.rows[0].sequence, first);
}

// The parent of a fork copies its last page, so that it is planned only when the step has ended; the newer one, which
// was planned ahead, then gives way and its row is dropped.
TEST(SchedulerAhead, AnOlderOneTakesThePageBack) {
  for (const bool is_swap : {false, true}) {
    SchedulerConfig config = small_config();
    config.preemption = is_swap ? PreemptionMode::kSwap : PreemptionMode::kRecompute;
    SchedulerHarness h(4, config, /*has_cache=*/false, is_swap ? 8 : 0);
    Sequence* parent = h.add(12, {.num_seats = 2});
    Sequence* newest = h.add(8, {.first_token = 20});
    h.is_planning_ahead = true;
    const std::vector<StepRow> rows = h.compute().rows;
    ASSERT_EQ(rows.size(), 2u);
    EXPECT_TRUE(newest->is_planned_ahead);  // it has the last page
    EXPECT_EQ(h.pool.num_available(), 0);
    newest->token_ids.push_back(7);
    Sequence* child = h.scheduler->fork(*parent, 1);
    parent->token_ids.push_back(7);
    child->token_ids.push_back(8);
    const StepPlan& plan = h.compute();
    EXPECT_EQ(plan.num_preempted, 1);
    ASSERT_EQ(plan.rows.size(), 2u);
    EXPECT_EQ(plan.rows[0].sequence, parent);
    EXPECT_EQ(plan.rows[1].sequence, child);
    EXPECT_EQ(newest->is_swapped_out(), is_swap);
    EXPECT_FALSE(newest->is_planned_ahead);
    parent->token_ids.push_back(7);
    child->token_ids.push_back(8);
    h.scheduler->finish(parent);
    h.scheduler->finish(child);
    testing::run_until_done(h, {newest}, 20);  // what it had computed is read back, and right
  }
}

// As the engine does on a GPU: the next step is launched while one runs, and both are read in turn.
TEST(SchedulerAhead, LaunchedBeforeTheStepIsRead) {
  SchedulerHarness h(40, small_config());
  Sequence* sequences[] = {h.add(6, {}), h.add(6, {.first_token = 20}), h.add(6, {.first_token = 30})};
  step_ahead(h);
  const int64_t first_step = h.pool.begin_step();
  h.scheduler->schedule();
  h.scheduler->launch();
  for (Sequence* sequence : sequences) h.scheduler->plan_ahead(*sequence);
  ASSERT_TRUE(h.scheduler->can_launch_ahead());
  const int64_t second_step = h.pool.begin_step();
  EXPECT_EQ(h.scheduler->launch_ahead().rows.size(), 3u);

  // The first step is read: one ends, whose pages the second may still use.
  h.pool.end_step(first_step);
  h.scheduler->complete();
  sequences[0]->token_ids.push_back(7);
  h.scheduler->finish(sequences[1]);
  sequences[2]->token_ids.push_back(7);
  EXPECT_EQ(h.pool.num_retired(), 1);

  // The second has lost its row; the others' logits are where they were.
  const StepPlan& plan = h.scheduler->take_launched();
  h.scheduler->launch();
  ASSERT_EQ(plan.rows.size(), 2u);
  EXPECT_EQ(plan.rows[0].sequence, sequences[0]);
  EXPECT_EQ(plan.rows[1].sequence, sequences[2]);
  EXPECT_EQ(plan.rows[1].first_logit_row, 2);
  EXPECT_EQ(plan.rows[1].first_position, 7);
  EXPECT_EQ(sequences[2]->num_computed_tokens, 8);
  // What it draws does not lie as the rows of a third step would.
  h.scheduler->plan_ahead(*sequences[0]);
  h.scheduler->plan_ahead(*sequences[2]);
  EXPECT_FALSE(h.scheduler->can_launch_ahead());
  h.pool.end_step(second_step);
  h.scheduler->complete();
  EXPECT_EQ(h.pool.num_retired(), 0);
  sequences[0]->token_ids.push_back(7);
  sequences[2]->token_ids.push_back(7);
  EXPECT_EQ(h.scheduler->schedule().rows.size(), 2u);
  h.scheduler->complete();
}

TEST(SchedulerAhead, NotLaunchedWhereOthersCouldCome) {
  SchedulerConfig config = small_config();
  config.max_num_seqs = 2;
  SchedulerHarness h(40, config);
  Sequence* first = h.add(6, {});
  step_ahead(h);
  h.scheduler->schedule();
  h.scheduler->launch();
  h.scheduler->plan_ahead(*first);
  EXPECT_TRUE(h.scheduler->can_launch_ahead());
  Sequence* second = h.add(6, {.first_token = 20});
  EXPECT_FALSE(h.scheduler->can_launch_ahead());  // there is a seat
  h.scheduler->complete();
  first->token_ids.push_back(7);
  h.scheduler->schedule();
  h.scheduler->launch();
  h.scheduler->plan_ahead(*first);
  EXPECT_FALSE(h.scheduler->can_launch_ahead());  // the second reads its prompt
  h.scheduler->plan_ahead(*second);
  h.add(6, {.first_token = 30});
  h.scheduler->complete();
  first->token_ids.push_back(7);
  second->token_ids.push_back(7);
  h.scheduler->schedule();
  h.scheduler->launch();
  h.scheduler->plan_ahead(*first);
  h.scheduler->plan_ahead(*second);
  EXPECT_TRUE(h.scheduler->can_launch_ahead());  // one waits, but all seats are taken
  h.scheduler->complete();
  first->token_ids.push_back(7);
  second->token_ids.push_back(7);
}

}  // namespace
}  // namespace quire

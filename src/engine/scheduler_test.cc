// The scheduler without any model: scenarios, and random traffic with the invariants checked at every step.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace quire {
namespace {

class Harness {
 public:
  Harness(int num_pages, SchedulerConfig the_config, bool has_cache = false)
      : config(std::move(the_config)), pool(num_pages) {
    if (has_cache) {
      std::vector<PrefixCache::GroupShape> shapes;
      for (const int window : config.group_windows) shapes.push_back({window});
      cache = std::make_unique<PrefixCache>(&pool, config.page_size, shapes);
    }
    scheduler = std::make_unique<Scheduler>(config, &pool, cache.get());
  }

  Sequence* add(int num_prompt_tokens, int priority = 0, int32_t first_token = 0) {
    auto sequence = std::make_unique<Sequence>();
    sequence->request_id = next_id++;
    sequence->priority = priority;
    for (int i = 0; i < num_prompt_tokens; ++i) sequence->token_ids.push_back((first_token + i) % 50);
    sequence->num_prompt_tokens = num_prompt_tokens;
    return scheduler->add(std::move(sequence));
  }

  // Schedules and "computes" a step: every sequence whose last token was computed gets another one.
  const StepPlan& step() {
    const StepPlan& plan = scheduler->schedule();
    scheduler->complete();
    for (const StepRow& row : plan.rows) {
      if (row.end_position() != row.sequence->num_tokens()) continue;
      scheduler->keep_pages(*row.sequence);
      row.sequence->token_ids.push_back(7);
    }
    return plan;
  }

  SchedulerConfig config;
  PagePool pool;
  std::unique_ptr<PrefixCache> cache;
  std::unique_ptr<Scheduler> scheduler;
  RequestId next_id = 1;
};

SchedulerConfig small_config() {
  return {.max_num_seqs = 4,
          .max_num_batched_tokens = 32,
          .max_logit_rows = 8,
          .max_model_len = 400,
          .page_size = 8,
          .group_windows = {0}};
}

TEST(Scheduler, AChunkFillsWhatDecodesLeave) {
  Harness h(100, small_config());
  Sequence* first = h.add(20);
  const StepPlan* plan = &h.step();
  ASSERT_EQ(plan->rows.size(), 1u);
  EXPECT_EQ(plan->rows[0].num_tokens, 20);
  EXPECT_EQ(plan->rows[0].num_logit_rows, 1);
  Sequence* second = h.add(70);
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
  for (int i = 0; i < 6; ++i) h.add(4);
  Sequence* urgent = h.add(4, /*priority=*/-1);
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
  Sequence* first = h.add(40);  // five pages each
  Sequence* second = h.add(40);
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
  Sequence* oldest = h.add(16);
  h.add(16);
  Sequence* newest = h.add(16);
  h.add(30);  // does not fit yet
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
  Sequence* sequence = h.add(20);
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

TEST(Scheduler, TwoWholePagesLeaveOnePositionToCompute) {
  for (const int length : {15, 16, 17}) {
    Harness h(100, small_config(), /*has_cache=*/true);
    Sequence* sequence = h.add(length);
    h.step();
    h.scheduler->finish(sequence);
    h.add(length);
    const StepPlan& plan = h.step();
    ASSERT_EQ(plan.rows.size(), 1u);
    EXPECT_EQ(plan.rows[0].first_position, length == 17 ? 16 : 8) << length;
    EXPECT_GT(plan.rows[0].num_tokens, 0);
    EXPECT_EQ(plan.rows[0].num_logit_rows, 1);
  }
}

// Random arrivals, lengths, forks, aborts and priorities over a pool that is always short of pages.
void run_random_traffic(unsigned seed, bool has_cache, std::vector<int> windows, int num_pages) {
  SchedulerConfig config = small_config();
  config.max_num_seqs = 8;
  config.group_windows = std::move(windows);
  Harness h(num_pages, config, has_cache);
  std::mt19937 random(seed);
  const auto below = [&](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
  std::map<Sequence*, int64_t> ends;  // unfinished: at how many tokens they end
  int num_added = 0;
  int num_finished = 0;
  int num_preempted = 0;
  int num_forked = 0;
  int num_idle = 0;
  const int num_requests = 400;
  for (int i = 0; num_finished < num_added || num_added < num_requests; ++i) {
    ASSERT_LT(i, 100000) << "no end in sight";
    if (num_added < num_requests && below(3) == 0) {
      const int length = 1 + below(120);
      const int output = 1 + below(60);
      if (h.scheduler->check_fits(length, output).is_ok()) {
        Sequence* sequence = h.add(length, below(3) - 1, below(3));
        if (below(5) == 0) sequence->num_seats = 2;
        ends[sequence] = length + output;
        ++num_added;
      }
    }
    const StepPlan& plan = h.scheduler->schedule();
    num_preempted += plan.num_preempted;
    // Budgets and rows.
    ASSERT_LE(plan.num_tokens, config.max_num_batched_tokens);
    ASSERT_LE(plan.num_logit_rows, config.max_logit_rows);
    ASSERT_LE(h.scheduler->num_seats_taken(), config.max_num_seqs);
    std::set<Sequence*> seen;
    std::set<int64_t> written;
    int num_tokens = 0;
    for (const StepRow& row : plan.rows) {
      ASSERT_TRUE(ends.contains(row.sequence));
      ASSERT_TRUE(seen.insert(row.sequence).second);
      ASSERT_GT(row.num_tokens, 0);
      ASSERT_EQ(row.first_position, row.sequence->num_computed_tokens);
      ASSERT_LE(row.end_position(), row.sequence->num_tokens());
      num_tokens += row.num_tokens;
      for (size_t g = 0; g < row.sequence->tables.size(); ++g) {
        const PageTable& table = row.sequence->tables[g];
        for (int64_t p = row.first_position; p < row.end_position(); ++p) {
          // A slot is written by one only, and by nobody else's reader: its page is its own and not kept.
          ASSERT_TRUE(written.insert(table.slot(p)).second);
          ASSERT_FALSE(h.pool.is_cached(static_cast<int32_t>(table.slot(p) / config.page_size)));
        }
        const int64_t first_seen =
            table.window() > 0 ? std::max<int64_t>(0, row.first_position - table.window() + 1) : 0;
        for (int64_t p = first_seen; p < row.end_position(); ++p) ASSERT_GE(table.slot(p), 0);
      }
    }
    ASSERT_EQ(num_tokens, plan.num_tokens);
    num_idle = plan.rows.empty() && !ends.empty() ? num_idle + 1 : 0;
    ASSERT_LT(num_idle, 3) << "work is queued and nothing moves";
    h.scheduler->complete();
    const std::vector<StepRow> rows = plan.rows;
    for (const StepRow& row : rows) {
      Sequence* sequence = row.sequence;
      if (row.end_position() != sequence->num_tokens()) continue;
      h.scheduler->keep_pages(*sequence);
      if (sequence->num_seats > 1) {
        Sequence* child = h.scheduler->fork(*sequence, 1);
        ends[child] = ends[sequence] + below(5);
        child->token_ids.push_back(8);
        ++num_added;
        ++num_forked;
      }
      sequence->token_ids.push_back(7);
      if (sequence->num_tokens() >= ends[sequence]) {
        ends.erase(sequence);
        h.scheduler->finish(sequence);
        ++num_finished;
      }
    }
    if (below(40) == 0 && !ends.empty()) {  // an abort
      auto it = ends.begin();
      std::advance(it, below(static_cast<int>(ends.size())));
      h.scheduler->finish(it->first);
      ends.erase(it);
      ++num_finished;
    }
    if (i % 16 == 0) h.pool.check_consistency();
  }
  EXPECT_EQ(h.pool.num_used(), 0);
  EXPECT_EQ(h.pool.num_available(), num_pages);
  EXPECT_GT(num_preempted, 3);
  EXPECT_GT(num_forked, 3);
}

TEST(Scheduler, RandomTrafficEndsAndKeepsItsBudgets) {
  for (unsigned seed = 1; seed <= 4; ++seed) {
    run_random_traffic(seed, false, {0}, 26);
    run_random_traffic(seed, true, {0}, 26);
    run_random_traffic(seed, true, {0, 20}, 44);
  }
}

}  // namespace
}  // namespace quire

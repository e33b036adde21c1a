// Priorities, keys, and the bound on how long anybody is passed over.
#include <gtest/gtest.h>

#include <map>

#include "engine/testing/scheduler_harness.h"

namespace quire {
namespace {

using Harness = testing::SchedulerHarness;
using testing::small_config;
using testing::wide_config;

// ---- Justice
// ---------------------------------------------------------------------------------------------------------

// One seat, and urgent requests without end: the patient one runs after the bound.
TEST(SchedulerJustice, LowPriorityIsPassedOverABoundedNumberOfTimes) {
  SchedulerConfig config = small_config();
  config.max_num_seqs = 1;
  config.max_logit_rows = 1;
  config.max_passed_over = 10;
  Harness h(100, config);
  h.add(4, {.priority = -1});
  Sequence* patient = h.add(4, {.priority = 3});
  int num_served_before = 0;
  for (int i = 0; i < 100 && patient->num_computed_tokens == 0; ++i) {
    h.add(4, {.priority = -1});
    h.step();
    if (patient->num_computed_tokens > 0) break;
    ++num_served_before;
    h.scheduler->finish(h.scheduler->running().front().get());
  }
  EXPECT_EQ(num_served_before, 1 + 10);  // the one that came first, and ten that came later
}

// Once it is due it keeps its pages too, whatever comes.
TEST(SchedulerJustice, WhoIsDueIsNotPreemptedByLaterOnes) {
  SchedulerConfig config = small_config();
  config.max_passed_over = 3;
  Harness h(16, config);
  Sequence* patient = h.add(30, {.priority = 3});
  std::vector<Sequence*> urgent;
  int64_t num_steps = 0;
  while (patient->num_output_tokens() < 40) {
    ASSERT_LT(++num_steps, 2000);
    if (urgent.size() < 6) urgent.push_back(h.add(30, {.priority = 0}));
    h.step();
    std::erase_if(urgent, [&](Sequence* sequence) {
      if (sequence->num_output_tokens() < 30) return false;
      h.scheduler->finish(sequence);
      return true;
    });
  }
  EXPECT_TRUE(patient->is_due);
  EXPECT_LE(patient->num_preemptions, 4);
}

TEST(SchedulerJustice, APromptIsNotStalledForEver) {
  SchedulerConfig config = small_config();
  config.max_stalled_steps = 5;
  Harness h(400, config);
  Sequence* patient = h.add(100, {.priority = 3});
  h.step();
  const int64_t num_before = patient->num_computed_tokens;
  std::vector<Sequence*> urgent;
  for (int i = 0; i < 12; ++i) {  // each of these fills a step
    urgent.push_back(h.add(64, {.priority = 0}));
    if (urgent.size() > 3) {
      h.scheduler->finish(urgent.front());
      urgent.erase(urgent.begin());
    }
    h.step();
  }
  EXPECT_GT(patient->num_computed_tokens, num_before);
  EXPECT_TRUE(patient->is_due);
}

// A key with a hundred requests waiting and one with a few: tokens come to both alike.
TEST(SchedulerJustice, KeysGetEqualSharesOfTheTokens) {
  SchedulerConfig config = small_config();
  Harness h(400, config);
  for (int i = 0; i < 100; ++i) h.add(16, {.share_key = 1});
  std::map<uint64_t, int64_t> served;
  const auto run = [&](int num_steps) {
    served.clear();
    for (int i = 0; i < num_steps; ++i) {
      const StepPlan& plan = h.step();
      for (const StepRow& row : plan.rows) served[row.sequence->share_key] += row.num_tokens;
      std::vector<Sequence*> done;
      for (const auto& sequence : h.scheduler->running()) {
        if (sequence->num_output_tokens() >= 8) done.push_back(sequence.get());
      }
      for (Sequence* sequence : done) h.scheduler->finish(sequence);
    }
  };
  run(20);
  EXPECT_GT(served[1], 0);
  for (int i = 0; i < 40; ++i) h.add(16, {.share_key = 2});  // comes late, and gets no more than half either
  run(60);
  EXPECT_GT(served[2], 0);
  EXPECT_LT(std::abs(static_cast<double>(served[1] - served[2])), 0.2 * static_cast<double>(served[1] + served[2]));
  while (!h.scheduler->running().empty()) h.scheduler->finish(h.scheduler->running().front().get());
  while (!h.scheduler->waiting().empty()) h.scheduler->finish(h.scheduler->waiting().front().get());
}

TEST(SchedulerJustice, ChunksGoToTheKeyThatHadLess) {
  SchedulerConfig config = small_config();
  Harness h(400, config);
  Sequence* greedy = h.add(320, {.share_key = 1});
  h.step();
  Sequence* other = h.add(96, {.share_key = 2});
  for (int i = 0; i < 6; ++i) h.step();
  EXPECT_EQ(other->num_computed_tokens, 96);
  EXPECT_LT(greedy->num_computed_tokens, 32 * 5);
}

TEST(SchedulerJustice, SharesDoNotSaveUpClaims) {
  TokenShares shares;
  TokenShare* busy = shares.join(1);
  busy->num_served = 1000;
  TokenShare* late = shares.join(2);
  EXPECT_EQ(late->num_served, 1000);
  late->num_served = 1500;
  shares.leave(late);
  EXPECT_EQ(shares.join(2)->num_served, 1500);  // nor is it forgotten what they had
  shares.leave(busy);
  EXPECT_EQ(shares.num_active_keys(), 1);
  EXPECT_EQ(shares.join(3)->num_served, 1500);
  for (uint64_t key = 10; key < 10 + 2 * TokenShares::kMostKeys; ++key) shares.leave(shares.join(key));
  EXPECT_EQ(shares.join(2)->num_served, 1500);
}

// A stream that decodes, and then a prompt of thousands of tokens: the stream gets a token every step.
TEST(SchedulerJustice, ALongPromptDelaysAStreamByAChunkAtMost) {
  Harness h(1000, wide_config());
  Sequence* stream = h.add(10, {});
  h.step();
  Sequence* giant = h.add(3900, {.first_token = 9});
  for (int i = 0; i < 20 && giant->num_output_tokens() == 0; ++i) {
    const int64_t before = stream->num_tokens();
    const int64_t read = giant->num_computed_tokens;
    const StepPlan& plan = h.step();
    EXPECT_LE(plan.num_tokens, 256);
    EXPECT_EQ(stream->num_tokens(), before + 1);
    EXPECT_GT(giant->num_computed_tokens, read);
  }
  EXPECT_EQ(giant->num_output_tokens(), 1);
}

}  // namespace
}  // namespace quire

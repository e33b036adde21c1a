// Pages that another sequence is computing: waiting for them, taking over, and never in anybody's way.
#include <gtest/gtest.h>

#include "engine/testing/scheduler_harness.h"

namespace quire {
namespace {

using Harness = testing::SchedulerHarness;
using testing::run_until_done;
using testing::stem_and_tail;
using testing::wide_config;

// ---- Pages that are being computed
// -----------------------------------------------------------------------------------

TEST(SchedulerPrefix, EightAtOnceComputeTheirPrefixOnce) {
  for (const std::vector<int>& windows : {std::vector<int>{0}, std::vector<int>{0, 100}}) {
    SchedulerConfig config = wide_config();
    config.group_windows = windows;
    Harness h(1000, config, /*has_cache=*/true);
    std::vector<Sequence*> sequences;
    for (int i = 0; i < 8; ++i) sequences.push_back(h.add(stem_and_tail(1000, 20, 50 + i), {}));
    run_until_done(h, sequences, 4);
    // 1,020 of the first; of each other one what lies after the last whole page of the prefix; three outputs each.
    EXPECT_EQ(h.num_computed_tokens, 1020 + 7 * (1020 - 992) + 8 * 3);
  }
}

TEST(SchedulerPrefix, GoesOnAsSoonAsTheSharedPartIsThere) {
  Harness h(1000, wide_config(), /*has_cache=*/true);
  Sequence* owner = h.add(stem_and_tail(400, 2000, 50), {});
  Sequence* waiter = h.add(stem_and_tail(400, 5, 51), {.share_key = 2});
  Sequence* stranger = h.add(stem_and_tail(0, 30, 60), {});
  h.step();  // the whole budget goes to the owner
  for (int i = 0; i < 3 && waiter->num_computed_tokens == 0; ++i) h.step();
  EXPECT_EQ(waiter->num_cached_tokens, 400);
  EXPECT_LT(owner->num_computed_tokens, 1100);  // long before its end
  run_until_done(h, {owner, waiter, stranger}, 2);
}

TEST(SchedulerPrefix, WhoWaitsForPagesHoldsUpNobodyBehind) {
  SchedulerConfig config = wide_config();
  Harness h(1000, config, /*has_cache=*/true);
  Sequence* owner = h.add(stem_and_tail(200, 20, 50), {});
  Sequence* waiter = h.add(stem_and_tail(200, 20, 51), {});
  Sequence* stranger = h.add(stem_and_tail(0, 30, 60), {});
  h.step();
  EXPECT_EQ(owner->num_computed_tokens, 220);
  EXPECT_EQ(waiter->num_computed_tokens, 0);
  EXPECT_EQ(waiter->awaited, owner);
  EXPECT_EQ(stranger->num_computed_tokens, 30);
  h.step();
  EXPECT_EQ(waiter->num_computed_tokens, 220);
  EXPECT_EQ(waiter->num_cached_tokens, 192);
  run_until_done(h, {owner, waiter, stranger}, 2);
}

TEST(SchedulerPrefix, TheNextTakesOverWhenTheOwnerGoes) {
  enum class End { kAborted, kFailed };
  for (const End end : {End::kAborted, End::kFailed}) {
    Harness h(1000, wide_config(), /*has_cache=*/true);
    Sequence* owner = h.add(stem_and_tail(1000, 10, 50), {});
    h.step();
    std::vector<Sequence*> waiters;
    for (int i = 0; i < 3; ++i) waiters.push_back(h.add(stem_and_tail(1000, 20, 51 + i), {.share_key = 2}));
    h.step();  // both keys have had as much: who came first
    h.step();
    for (Sequence* waiter : waiters) EXPECT_EQ(waiter->awaited, owner);
    EXPECT_EQ(owner->num_computed_tokens, 768);
    if (end == End::kFailed) h.scheduler->forget_pages(*owner);
    h.scheduler->finish(owner);
    EXPECT_EQ(waiters[0]->awaited, nullptr);
    h.step();
    EXPECT_GT(waiters[0]->num_computed_tokens, 0);
    if (end == End::kAborted) {
      EXPECT_EQ(waiters[1]->awaited, waiters[0]);
    }
    // An aborted owner's pages that are known to be good are used; a failed one's are not.
    EXPECT_EQ(waiters[0]->num_cached_tokens, end == End::kAborted ? 768 : 0);
    // One that waits and goes is missed by nobody.
    h.scheduler->finish(waiters[1]);
    run_until_done(h, {waiters[0], waiters[2]}, 3);
  }
}

TEST(SchedulerPrefix, TheNextTakesOverWhenTheOwnerGivesWay) {
  SchedulerConfig config = wide_config();
  config.max_num_batched_tokens = 32;
  Harness h(30, config, /*has_cache=*/true);
  Sequence* decoding = h.add(stem_and_tail(0, 100, 60), {});
  for (int i = 0; i < 4; ++i) h.step();
  Sequence* owner = h.add(stem_and_tail(300, 10, 50), {});
  h.step();
  Sequence* waiter = h.add(stem_and_tail(300, 12, 51), {.share_key = 2});
  h.step();
  EXPECT_EQ(waiter->awaited, owner);
  // The one that decodes grows until the owner has to go, if it is still reading then.
  run_until_done(h, {decoding, owner, waiter}, 150);
}

TEST(SchedulerPrefix, NobodyWaitsForOneOfLowerPriorityOrAnotherScope) {
  Harness h(1000, wide_config(), /*has_cache=*/true);
  h.add(stem_and_tail(1000, 10, 50), {.priority = 5});
  h.step();
  Sequence* urgent = h.add(stem_and_tail(1000, 10, 51), {.priority = 0});
  Sequence* adapted = h.add(stem_and_tail(1000, 10, 51), {.priority = 9, .adapter_id = 3});
  h.step();
  EXPECT_EQ(urgent->awaited, nullptr);
  EXPECT_GT(urgent->num_computed_tokens, 0);
  for (int i = 0; i < 12; ++i) h.step();
  EXPECT_EQ(adapted->num_cached_tokens, 0);
  EXPECT_GT(adapted->num_computed_tokens, 0);
  while (!h.scheduler->running().empty()) h.scheduler->finish(h.scheduler->running().front().get());
}

// F048: the same prompt for the base and an adapter, and for an adapter that was loaded again under its name: nothing shared.
TEST(SchedulerPrefix, AdaptersAndTheirLoadsShareNothing) {
  Harness h(1000, wide_config(), /*has_cache=*/true);
  struct Case {
    int64_t adapter_id;  // numbers the loads; none is used twice
    int64_t num_cached;
  };
  for (const Case& c : {Case{0, 0}, Case{1, 0}, Case{2, 0}, Case{1, 96}, Case{0, 96}}) {
    Sequence* sequence = h.add(stem_and_tail(100, 3, 50), {.adapter_id = c.adapter_id});
    h.step();
    EXPECT_EQ(sequence->num_cached_tokens, c.num_cached) << c.adapter_id;
    h.scheduler->finish(sequence);
  }
}

}  // namespace
}  // namespace quire

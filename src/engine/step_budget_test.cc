// The tokens of a step follow how fast steps are. A machine is a function from tokens to seconds; there is no clock.
#include "engine/step_budget.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

namespace quire {
namespace {

constexpr StepBudget::Bounds kBounds = {.step_seconds = 0.25, .least = 32, .most = 1024};

// Steps that are full of prompt.
void run_full(StepBudget& budget, int num_steps, const std::function<double(int)>& seconds_of) {
  for (int i = 0; i < num_steps; ++i) {
    budget.observe(budget.num_tokens(), budget.num_tokens(), seconds_of(budget.num_tokens()));
  }
}

TEST(StepBudget, BeginsWithWhatWasMeasured) {
  const auto first = [](double rate) { return StepBudget(kBounds, rate).num_tokens(); };
  EXPECT_EQ(first(800.0), 192);  // 200 in tiles of 16
  EXPECT_EQ(first(10.0), 32);
  EXPECT_EQ(first(0.0), 32);
  EXPECT_EQ(first(1e12), 1024);
  EXPECT_EQ(StepBudget::largest_for(64), 512);
  EXPECT_EQ(StepBudget::largest_for(2048), 2048);
  EXPECT_EQ(StepBudget::largest_for(4096), 4096);
}

TEST(StepBudget, AStartOnABusyMachineIsForgotten) {
  StepBudget budget(kBounds, 200.0);
  ASSERT_EQ(budget.num_tokens(), 48);
  run_full(budget, 40, [](int num_tokens) { return num_tokens / 1600.0; });
  EXPECT_EQ(budget.num_tokens(), 384);  // just under 400
}

TEST(StepBudget, AStartOnAnIdleMachineIsForgotten) {
  StepBudget budget(kBounds, 1600.0);
  ASSERT_EQ(budget.num_tokens(), 400);
  run_full(budget, 40, [](int num_tokens) { return num_tokens / 400.0; });
  EXPECT_EQ(budget.num_tokens(), 96);
  run_full(budget, 40, [](int num_tokens) { return num_tokens / 1600.0; });
  EXPECT_EQ(budget.num_tokens(), 384);
}

// Each step costs 100 ms whatever it has: the rest of the 250 is for tokens.
TEST(StepBudget, StepsTakeWhatTheyMayWithFixedCostsToo) {
  StepBudget budget(kBounds, 100.0);
  const auto seconds_of = [](int num_tokens) { return 0.1 + num_tokens / 2000.0; };
  run_full(budget, 200, seconds_of);
  EXPECT_LE(seconds_of(budget.num_tokens()), 0.25);
  EXPECT_GE(seconds_of(budget.num_tokens()), 0.22);
}

TEST(StepBudget, OneStepThatWasHeldUpChangesLittle) {
  StepBudget budget(kBounds, 1600.0);
  run_full(budget, 1, [](int) { return 30.0; });
  EXPECT_GE(budget.num_tokens(), 304);
  run_full(budget, 20, [](int num_tokens) { return num_tokens / 1600.0; });
  EXPECT_EQ(budget.num_tokens(), 384);
}

TEST(StepBudget, SmallStepsTellOnlyWhatTheyCan) {
  StepBudget budget(kBounds, 1600.0);
  // Fixed costs make them look slow.
  for (int i = 0; i < 100; ++i) budget.observe(10, 10, 0.1);
  EXPECT_EQ(budget.num_tokens(), 400);
  // Neither do decodes tell anything.
  for (int i = 0; i < 100; ++i) budget.observe(400, 100, 10.0);
  EXPECT_EQ(budget.num_tokens(), 400);
  // Too long is too long.
  for (int i = 0; i < 20; ++i) budget.observe(100, 100, 1.0);
  EXPECT_LT(budget.num_tokens(), 200);
  // And fast is fast.
  for (int i = 0; i < 40; ++i) budget.observe(40, 40, 0.01);
  EXPECT_EQ(budget.num_tokens(), 992);  // 4,000 tokens/s are 1,000
}

TEST(StepBudget, StaysInsideItsBoundsAndComesBack) {
  StepBudget budget(kBounds, 800.0);
  run_full(budget, 1000, [](int) { return 1e9; });
  EXPECT_EQ(budget.num_tokens(), 32);
  run_full(budget, 30, [](int) { return 1e-9; });
  EXPECT_EQ(budget.num_tokens(), 1024);
  run_full(budget, 1000, [](int) { return 1e-9; });
  EXPECT_EQ(budget.num_tokens(), 1024);
  run_full(budget, 20, [](int num_tokens) { return num_tokens / 400.0; });
  EXPECT_LT(budget.num_tokens(), 256);
  // A clock that says nothing sensible.
  for (const double seconds :
       {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    budget.observe(100, 100, seconds);
    EXPECT_GE(budget.num_tokens(), 32);
    EXPECT_LE(budget.num_tokens(), 1024);
  }
  budget.observe(0, 0, 1.0);
}

}  // namespace
}  // namespace quire

#include "base/status.h"

#include <gtest/gtest.h>

#include <memory>

namespace quire {
namespace {

Result<int> half(int number) {
  if (number % 2 != 0) return invalid_argument("give an even number, not " + std::to_string(number));
  return number / 2;
}

Result<int> quarter(int number) {
  ASSIGN_OR_RETURN(const int halved, half(number));
  return half(halved);
}

TEST(StatusTest, ErrorsTravelOutwardsWithTheirMessage) {
  EXPECT_EQ(quarter(8).value(), 2);
  const Result<int> failed = quarter(6);
  ASSERT_FALSE(failed.is_ok());
  EXPECT_EQ(failed.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(failed.status().with_context("quartering").message(), "quartering: give an even number, not 3");
}

TEST(StatusTest, ResultHoldsMoveOnlyValues) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(7);
  std::unique_ptr<int> value = std::move(result).value();
  EXPECT_EQ(*value, 7);
}

TEST(CheckDeathTest, PrintsBothValues) {
  const std::string text = "abc";
  EXPECT_DEATH(CHECK(text.size() + 1 == 3), "CHECK\\(text.size\\(\\) \\+ 1 == 3\\) failed: 4 == 3");
  EXPECT_DEATH(CHECK(text.empty() && true), "failed");
  EXPECT_DEATH((void)half(1).value(), "failed");
}

TEST(CheckTest, ComparesAcrossSignednessAsNumbers) {
  const std::size_t large = ~std::size_t{0};
  CHECK(large != -1);
  CHECK(-1 < large);
}

}  // namespace
}  // namespace quire

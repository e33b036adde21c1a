// The test recipe itself: it must fail what is wrong.
#include "ops/tests/op_test.h"

namespace quire {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

TEST(OpTest, NearFailsOnNaNOnEitherSideAndOnSizes) {
  EXPECT_TRUE(all_near({1, 2}, {1, 2.1}, 0.11));
  EXPECT_FALSE(all_near({1, 2}, {1, 2.1}, 0.09));
  EXPECT_FALSE(all_near({1, kNaN, 2}, {1, 5, 2}, 1e9));
  EXPECT_FALSE(all_near({1, 1, 2}, {1, std::nan(""), 2}, 1e9));
  EXPECT_FALSE(all_near({1}, {1}, std::nan("")));
  EXPECT_FALSE(all_near({1}, {1, 2}, 1e9));
  EXPECT_FALSE(all_near({std::numeric_limits<float>::infinity()}, {1}, 1e9));
  EXPECT_TRUE(all_near({}, {}, 0));
}

TEST(OpTest, NearReportsTheWorstElement) {
  const auto result = all_near({1, 5, 3}, {1, 2, 3.5}, 0.1);
  EXPECT_NE(std::string(result.message()).find("element 1 of 3: 5, expected 2"), std::string::npos) << result.message();
}

TEST(OpTest, ToleranceIsTwiceThePlainErrorAndOneRounding) {
  EXPECT_DOUBLE_EQ(kernel_tolerance({1.5f, 2}, {1, 2}, {.mantissa_bits = 2}), 2 * 0.5 + 2 * 0.25);
  EXPECT_DOUBLE_EQ(kernel_tolerance({1.5f, 2}, {1, 2}, {2, 4}), 2 * 0.5 + 4 * 0.25);
  EXPECT_TRUE(kernel_is_close({1.9f}, {1.5f}, {1.0}));
  EXPECT_FALSE(kernel_is_close({2.1f}, {1.5f}, {1.0}));
}

TEST(OpTest, EqualBitsTellsZerosApart) {
  EXPECT_TRUE(equal_bits({kNaN, 1}, {kNaN, 1}));
  EXPECT_FALSE(equal_bits({0.0f}, {-0.0f}));
  EXPECT_FALSE(equal_bits({0.0f}, {}));
}

TEST(OpTest, GuardsSeeAWriteBetweenRowsAndAtBothEnds) {
  GuardedMatrix matrix(3, 5, 2);
  EXPECT_TRUE(matrix.guards_are_intact());
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t c = 0; c < 5; ++c) {
      EXPECT_TRUE(std::isnan(matrix.at(r, c)));
      matrix.row(r)[c] = 1;
    }
  }
  EXPECT_TRUE(matrix.guards_are_intact());
  EXPECT_EQ(matrix.values().size(), 15u);
  for (const int64_t place : {-1, 5, 6, 3 * 7}) {
    GuardedMatrix touched(3, 5, 2);
    touched.row(0)[place] = 0;
    EXPECT_FALSE(touched.guards_are_intact()) << place;
  }
}

}  // namespace
}  // namespace quire

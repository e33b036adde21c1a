#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace quire {
namespace {

TEST(DTypeTest, EveryF16SurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    const float value = f16_to_f32(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(value))));
    } else {
      ASSERT_EQ(f32_to_f16(value), half);
    }
  }
}

// Between two neighbouring halves the nearer one is taken, and the even one at the midpoint.
TEST(DTypeTest, F16RoundsToNearestEven) {
  for (uint16_t half = 0; half < 0x7bff; ++half) {
    const double low = f16_to_f32(half);
    const double high = f16_to_f32(static_cast<uint16_t>(half + 1));
    const float middle = static_cast<float>((low + high) / 2);
    const uint16_t even = (half & 1) == 0 ? half : static_cast<uint16_t>(half + 1);
    ASSERT_EQ(f32_to_f16(middle), even);
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, 0.0f)), half);
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, 1e9f)), half + 1);
  }
  EXPECT_EQ(f32_to_f16(65519.996f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(-std::numeric_limits<float>::infinity()), 0xfc00);
}

TEST(DTypeTest, Bf16RoundsToNearestEven) {
  EXPECT_EQ(f32_to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(DTypeTest, F8E4M3RoundsToTheNearest) {
  for (int code = 0; code < 256; ++code) {
    const float value = f8e4m3_to_f32(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_TRUE(std::isnan(f8e4m3_to_f32(f32_to_f8e4m3(value))));
      continue;
    }
    EXPECT_EQ(f32_to_f8e4m3(value), code);
    if ((code & 0x7f) >= 0x7e) continue;
    const float next = f8e4m3_to_f32(static_cast<uint8_t>(code + 1));
    const float middle = (value + next) / 2;
    EXPECT_EQ(f32_to_f8e4m3(middle), code % 2 == 0 ? code : code + 1);
    EXPECT_EQ(f32_to_f8e4m3(std::nextafter(middle, value)), code);
    EXPECT_EQ(f32_to_f8e4m3(std::nextafter(middle, next)), code + 1);
  }
  EXPECT_EQ(f8e4m3_to_f32(0x7e), 448.0f);
  EXPECT_EQ(f8e4m3_to_f32(0x08), 0x1p-6f);
  EXPECT_EQ(f8e4m3_to_f32(0x01), 0x1p-9f);
  EXPECT_EQ(f32_to_f8e4m3(1e9f), 0x7e);
  EXPECT_EQ(f32_to_f8e4m3(-std::numeric_limits<float>::infinity()), 0xfe);
}

}  // namespace
}  // namespace quire

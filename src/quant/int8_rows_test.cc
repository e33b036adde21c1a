// Rows rounded to int8: codes, scales, and what no code can tell.
#include "quant/int8_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "quant/dequantize.h"
#include "tensor/dtype.h"

namespace quire {
namespace {

Weight f32_weight(const std::vector<float>& values, int64_t n, int64_t k) {
  Weight weight;
  weight.format = FormatId::kF32;
  weight.n = n;
  weight.k = k;
  weight.parts[0] = std::as_bytes(std::span(values));
  return weight;
}

TEST(Int8Rows, AreAsCloseAsTheirScaleAllows) {
  ThreadPool pool(2);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  constexpr int64_t kN = 37;
  constexpr int64_t kK = 96;
  std::vector<float> values(kN * kK);
  for (float& x : values) x = normal(random);
  for (int64_t i = 0; i < kK; ++i) values[static_cast<size_t>(3 * kK + i)] = 0;       // a row of zeros
  for (int64_t i = 0; i < kK; ++i) values[static_cast<size_t>(4 * kK + i)] *= 1e-6f;  // scales of few bits
  const Weight rounded = round_to_int8(pool, f32_weight(values, kN, kK));
  EXPECT_EQ(rounded.format, FormatId::kQ8_0);
  EXPECT_EQ(rounded.n, kN);
  EXPECT_EQ(rounded.num_bytes(), kN * kK / 32 * 34);
  std::vector<float> row(kK);
  for (int64_t r = 0; r < kN; ++r) {
    const std::byte* bytes = rounded.parts[0].data() + r * kK / 32 * 34;
    dequantize_row(FormatId::kQ8_0, bytes, row.data(), kK);
    float largest = 0;
    for (int64_t i = 0; i < kK; ++i) largest = std::fmax(largest, std::fabs(values[static_cast<size_t>(r * kK + i)]));
    uint16_t scales[3];
    for (int block = 0; block < 3; ++block) std::memcpy(&scales[block], bytes + 34 * block, 2);
    EXPECT_EQ(scales[0], scales[1]);
    EXPECT_EQ(scales[0], scales[2]);
    const float step = f16_to_f32(scales[0]);
    if (r != 3) {
      EXPECT_NEAR(step, largest / 127.0f, largest / 127.0f * 0x1p-11f + 0x1p-24f);
    }
    for (int64_t i = 0; i < kK; ++i) {
      // Half a step, and what the largest lose where the scale was rounded down.
      EXPECT_NEAR(row[static_cast<size_t>(i)], values[static_cast<size_t>(r * kK + i)],
                  step * 0.5001f + (r == 4 ? 127 * 0x1p-25f : largest * 0x1p-11f));
    }
  }
}

TEST(Int8Rows, TiesGoToEvenAndTheLargestIs127) {
  ThreadPool pool(1);
  std::vector<float> values(32, 0.0f);
  values[0] = 127.0f;
  values[1] = -127.0f;
  values[2] = 2.5f;
  values[3] = -3.5f;
  values[4] = 1.5f;
  const Weight rounded = round_to_int8(pool, f32_weight(values, 1, 32));
  const auto code = [&](int i) { return static_cast<int8_t>(rounded.parts[0][static_cast<size_t>(2 + i)]); };
  EXPECT_EQ(code(0), 127);
  EXPECT_EQ(code(1), -127);
  EXPECT_EQ(code(2), 2);
  EXPECT_EQ(code(3), -4);
  EXPECT_EQ(code(4), 2);
}

TEST(Int8Rows, NanStaysInItsRow) {
  ThreadPool pool(1);
  std::vector<float> values(64, 1.0f);
  values[40] = std::numeric_limits<float>::quiet_NaN();
  const Weight rounded = round_to_int8(pool, f32_weight(values, 2, 32));
  std::vector<float> rows(64);
  dequantize_row(FormatId::kQ8_0, rounded.parts[0].data(), rows.data(), 64);
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(std::isnan(rows[i]), i >= 32);
}

TEST(Int8Rows, OnlyFloatsOfWholeBlocks) {
  EXPECT_FALSE(can_round_to_int8(f32_weight({}, 1, 48)));
  Weight weight = f32_weight({}, 1, 64);
  EXPECT_TRUE(can_round_to_int8(weight));
  weight.format = FormatId::kQ4_0;
  EXPECT_FALSE(can_round_to_int8(weight));
}

}  // namespace
}  // namespace quire

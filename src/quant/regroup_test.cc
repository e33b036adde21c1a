// Weights of int4_g128 regrouped for kernels of groups of 32 are the same numbers.
#include "quant/regroup.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "quant/dequantize.h"

namespace quire {
namespace {

std::vector<float> values_of(const Weight& weight) {
  std::vector<float> values(static_cast<size_t>(weight.num_experts * weight.n * weight.k));
  dequantize_row(weight.format, weight.parts[0].data(), values.data(), static_cast<int64_t>(values.size()));
  return values;
}

TEST(Regroup, KeepsEveryValue) {
  ThreadPool pool(2);
  std::mt19937 random(1);
  for (const bool is_symmetric : {true, false}) {
    Weight weight;
    weight.format = FormatId::kInt4G128;
    weight.n = 37;
    weight.k = 384;
    weight.num_experts = 2;
    std::vector<std::byte> bytes(static_cast<size_t>(2 * weight.n * weight.quant().row_bytes(weight.k)));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    for (size_t block = 0; block < bytes.size(); block += 67) {
      bytes[block + 1] &= std::byte{0xbf};  // no infinities
      if (is_symmetric) bytes[block + 2] = std::byte{8};
    }
    weight.parts[0] = bytes;
    const Weight regrouped = regroup_int4(pool, weight);
    EXPECT_EQ(regrouped.format, is_symmetric ? FormatId::kQ4_0 : FormatId::kQ5_0);
    EXPECT_EQ(regrouped.n, weight.n);
    EXPECT_EQ(regrouped.k, weight.k);
    const std::vector<float> expected = values_of(weight);
    const std::vector<float> actual = values_of(regrouped);
    ASSERT_EQ(expected.size(), actual.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(expected[i]), std::bit_cast<uint32_t>(actual[i])) << i;
    }
  }
}

TEST(Regroup, IsFoundByTheNamesOfMethods) {
  EXPECT_EQ(find_format_by_name("awq"), FormatId::kInt4G128);
  EXPECT_EQ(find_format_by_name("gptq"), FormatId::kInt4G128);
}

// The first code and zero point by hand: 0.5 * (13 - 3) and, in the upper half of a byte, 0.5 * (2 - 3).
TEST(Regroup, Int4BlocksAreScaleZeroAndNibbles) {
  std::vector<std::byte> block(67);
  block[1] = std::byte{0x38};  // 0.5
  block[2] = std::byte{3};
  block[3] = std::byte{0x2d};
  std::vector<float> values(128);
  dequantize_row(FormatId::kInt4G128, block.data(), values.data(), 128);
  EXPECT_EQ(values[0], 5.0f);
  EXPECT_EQ(values[64], -0.5f);
  EXPECT_EQ(values[1], -1.5f);
  block[2] = std::byte{200};  // as 16
  dequantize_row(FormatId::kInt4G128, block.data(), values.data(), 128);
  EXPECT_EQ(values[0], -1.5f);
}

}  // namespace
}  // namespace quire

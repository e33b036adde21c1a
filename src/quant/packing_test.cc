// Packed weights give back, bit for bit, the numbers that the file's rows stand for.
#include "quant/packing.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "quant/dequantize.h"

namespace quire {
namespace {

// Any bytes are a block of an integer format; float formats may come out as NaN, so only bits are compared.
Weight random_weight(FormatId format, int64_t n, int64_t k, int64_t num_experts, std::vector<std::byte>& bytes) {
  std::mt19937 random(7 + static_cast<unsigned>(format));
  bytes.resize(static_cast<size_t>(num_experts * n * quant_format(format).row_bytes(k)));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  Weight weight;
  weight.format = format;
  weight.n = n;
  weight.k = k;
  weight.num_experts = num_experts;
  weight.parts[0] = bytes;
  return weight;
}

TEST(Packing, KeepsEveryValueOfEveryFormat) {
  ThreadPool pool(2);
  for (const QuantFormat& quant : kQuantFormats) {
    for (const int64_t n : {1, 15, 16, 17, 40}) {
      for (const int64_t k : quant.is_float ? std::vector<int64_t>{1, 5, 64} : std::vector<int64_t>{256, 768}) {
        std::vector<std::byte> bytes;
        const Weight weight = random_weight(quant.id, n, k, 2, bytes);
        const PanelBytes size = packed_bytes(weight);
        std::vector<std::byte> codes(static_cast<size_t>(size.codes), std::byte{0xa5});
        std::vector<std::byte> scales(static_cast<size_t>(size.scales), std::byte{0xa5});
        pack_cpu_panels(pool, weight, codes, scales);
        for (int64_t expert = 0; expert < 2; ++expert) {
          Weight packed = weight;
          packed.layout = Layout::kCpuPanels;
          packed.num_experts = 1;
          packed.parts[0] = std::span(codes).subspan(codes.size() / 2 * static_cast<size_t>(expert));
          packed.parts[1] = std::span(scales).subspan(scales.size() / 2 * static_cast<size_t>(expert));
          std::vector<float> expected(static_cast<size_t>(k));
          std::vector<float> actual(static_cast<size_t>(k));
          for (int64_t row = 0; row < n; ++row) {
            const int64_t row_bytes = quant.row_bytes(k);
            dequantize_row(quant.id, bytes.data() + (expert * n + row) * row_bytes, expected.data(), k);
            dequantize_packed_row(packed, row, actual.data());
            for (size_t i = 0; i < expected.size(); ++i) {
              if (std::isnan(expected[i]) && std::isnan(actual[i])) continue;
              ASSERT_EQ(std::bit_cast<uint32_t>(expected[i]), std::bit_cast<uint32_t>(actual[i]))
                  << quant.name << " row " << row << " k " << i << ": " << expected[i] << " " << actual[i];
            }
          }
        }
      }
    }
  }
}

TEST(Packing, StaysCloseToTheSizeOfTheFile) {
  for (const QuantFormat& quant : kQuantFormats) {
    const PanelBytes size = panel_bytes(quant.id, 1024);
    const double bits_per_value = 8.0 * static_cast<double>(size.codes + size.scales) / (16 * 1024);
    EXPECT_GE(bits_per_value, quant.bits_per_value()) << quant.name;
    EXPECT_LE(bits_per_value, quant.bits_per_value() + 0.13) << quant.name;
  }
}

TEST(Packing, FillsTheLanesPastTheLastOutputWithZeros) {
  ThreadPool pool(1);
  std::vector<std::byte> bytes;
  const Weight weight = random_weight(FormatId::kQ6_K, 17, 256, 1, bytes);
  const PanelBytes size = packed_bytes(weight);
  std::vector<std::byte> codes(static_cast<size_t>(size.codes), std::byte{0xa5});
  std::vector<std::byte> scales(static_cast<size_t>(size.scales), std::byte{0xa5});
  pack_cpu_panels(pool, weight, codes, scales);
  for (size_t i = codes.size() / 2; i < codes.size(); ++i) {
    if (i % 64 < 4) continue;  // lane 0 is output 16
    EXPECT_EQ(codes[i], std::byte{0}) << i;
  }
}

}  // namespace
}  // namespace quire

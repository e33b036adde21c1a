#include "quant/int8_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "base/check.h"
#include "quant/dequantize.h"
#include "tensor/dtype.h"

namespace quire {

namespace {

constexpr float kLeastF16 = 0x1p-24f;
constexpr int64_t kBlock = 32;

// Adding and taking away 1.5 * 2^23 rounds numbers of this size to the nearest, ties to even. NaN becomes -127.
int8_t code_of(float x) {
  constexpr float kRounding = 0x1.8p23f;
  const float rounded = (x + kRounding) - kRounding;
  return static_cast<int8_t>(rounded > 127.0f ? 127.0f : rounded > -127.0f ? rounded : -127.0f);
}

// Not zero, but for rows of zeros, which any scale suits.
uint16_t scale_of(const std::vector<float>& row) {
  float largest = 0;
  for (const float x : row) {
    if (std::isnan(x)) return f32_to_f16(std::numeric_limits<float>::quiet_NaN());
    largest = std::max(largest, std::fabs(x));
  }
  if (largest == 0) return f32_to_f16(1.0f);
  return f32_to_f16(std::max(largest / 127.0f, kLeastF16));
}

}  // namespace

bool can_round_to_int8(const Weight& weight) {
  static_assert(quant_format(FormatId::kQ8_0).values_per_block == kBlock);
  return weight.layout == Layout::kRowMajor && weight.quant().is_float && weight.k % kBlock == 0;
}

Weight round_to_int8(ThreadPool& pool, const Weight& weight) {
  CHECK(can_round_to_int8(weight));
  Weight rounded = weight;
  rounded.format = FormatId::kQ8_0;
  const QuantFormat& format = rounded.quant();
  const int64_t num_rows = weight.num_experts * weight.n;
  const int64_t from_bytes = weight.quant().row_bytes(weight.k);
  const int64_t row_bytes = format.row_bytes(weight.k);
  const auto rows = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(num_rows * row_bytes));
  pool.parallel_for(num_rows, 1, [&](const WorkRange& range) {
    std::vector<float> row(static_cast<size_t>(weight.k));
    for (int64_t r = range.begin; r < range.end; ++r) {
      dequantize_row(weight.format, weight.parts[0].data() + r * from_bytes, row.data(), weight.k);
      const uint16_t scale = scale_of(row);
      const float step = f16_to_f32(scale);
      std::byte* out = rows->data() + r * row_bytes;
      for (int64_t i = 0; i < weight.k; i += kBlock, out += format.bytes_per_block) {
        std::memcpy(out, &scale, sizeof(scale));
        int8_t codes[kBlock];
        for (int64_t j = 0; j < kBlock; ++j) codes[j] = code_of(row[static_cast<size_t>(i + j)] / step);
        std::memcpy(out + sizeof(scale), codes, sizeof(codes));
      }
    }
  });
  rounded.parts = {};
  rounded.parts[0] = *rows;
  rounded.owner = rows;
  return rounded;
}

}  // namespace quire

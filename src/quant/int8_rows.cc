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
  return weight.layout == Layout::kRowMajor && weight.quant().is_float &&
         weight.k % quant_format(FormatId::kQ8_0).values_per_block == 0;
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
      for (size_t i = 0; i < row.size(); ++i) {
        const size_t in_block = i % static_cast<size_t>(format.values_per_block);
        if (in_block == 0) {
          if (i > 0) out += format.bytes_per_block;
          std::memcpy(out, &scale, sizeof(scale));
        }
        // fmin and fmax leave no NaN.
        const float code = std::fmax(-127.0f, std::fmin(127.0f, std::nearbyint(row[i] / step)));
        out[2 + in_block] = static_cast<std::byte>(static_cast<int8_t>(code));
      }
    }
  });
  rounded.parts = {};
  rounded.parts[0] = *rows;
  rounded.owner = rows;
  return rounded;
}

}  // namespace quire

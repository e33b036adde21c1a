#include "quant/random_rows.h"

#include <cstring>

#include "base/check.h"
#include "tensor/dtype.h"

namespace quire {

namespace {

constexpr float kDeviation = 0.02f;

// SplitMix64 (Steele et al., 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t x = state_ += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }

 private:
  uint64_t state_;
};

// Where a block keeps its f16 numbers, and what they are for random codes to come to kDeviation around zero.
struct BlockScales {
  int scale_offset;
  float scale;  // over kDeviation
  int min_offset;
  float min;  // over scale
};

BlockScales block_scales(FormatId format) {
  switch (format) {
    case FormatId::kQ4_0:
      return {0, 0.22f, -1, 0};
    case FormatId::kQ4_1:
      return {0, 0.22f, 2, -7.5f};
    case FormatId::kQ5_0:
      return {0, 0.11f, -1, 0};
    case FormatId::kQ5_1:
      return {0, 0.11f, 2, -15.5f};
    case FormatId::kQ8_0:
      return {0, 0.0135f, -1, 0};
    case FormatId::kQ2_K:
      return {80, 0.12f, 82, 1.5f};
    case FormatId::kQ3_K:
      return {108, 0.025f, -1, 0};
    case FormatId::kQ4_K:
      return {0, 0.0065f, 2, 7.5f};
    case FormatId::kQ5_K:
      return {0, 0.0035f, 2, 15.5f};
    case FormatId::kQ6_K:
      return {208, 0.00075f, -1, 0};
    case FormatId::kIQ4_NL:
      return {0, 0.014f, -1, 0};
    case FormatId::kIQ4_XS:
      return {0, 0.0008f, -1, 0};
    case FormatId::kInt4G128:
      return {0, 0.22f, -1, 0};
    case FormatId::kF32:
    case FormatId::kF16:
    case FormatId::kBF16:
      break;
  }
  return {-1, 0, -1, 0};
}

void store(std::byte* out, uint16_t value) {
  std::memcpy(out, &value, sizeof(value));
}

}  // namespace

void fill_random_rows(FormatId format, std::span<std::byte> rows, uint64_t seed) {
  const QuantFormat& quant = quant_format(format);
  CHECK(rows.size() % static_cast<size_t>(quant.bytes_per_block) == 0);
  Random random(seed);
  if (quant.is_float) {
    // Evenly spread: sqrt(3) deviations to each side.
    constexpr float kStep = 1.7320508f * kDeviation * 0x1p-31f;
    for (size_t i = 0; i < rows.size(); i += static_cast<size_t>(quant.bytes_per_block)) {
      const float value = static_cast<float>(static_cast<int32_t>(random.next() >> 32)) * kStep;
      if (format == FormatId::kF32) std::memcpy(rows.data() + i, &value, sizeof(value));
      if (format == FormatId::kF16) store(rows.data() + i, f32_to_f16(value));
      if (format == FormatId::kBF16) store(rows.data() + i, f32_to_bf16(value));
    }
    return;
  }
  size_t i = 0;
  for (; i + 8 <= rows.size(); i += 8) {
    const uint64_t bits = random.next();
    std::memcpy(rows.data() + i, &bits, 8);
  }
  for (; i < rows.size(); ++i) rows[i] = static_cast<std::byte>(random.next());
  const BlockScales scales = block_scales(format);
  const float scale = scales.scale * kDeviation;
  const size_t block_bytes = static_cast<size_t>(quant.bytes_per_block);
  // Codes without a minimum reach one further down than up: signs in turns, or a model's sums would drift away from
  // zero, layer by layer, out of what f16 holds.
  bool is_negative = false;
  for (size_t block = 0; block < rows.size(); block += block_bytes) {
    std::byte* bytes = rows.data() + block;
    store(bytes + scales.scale_offset, f32_to_f16(is_negative ? -scale : scale));
    if (scales.min_offset < 0) is_negative = !is_negative;
    if (format == FormatId::kInt4G128) bytes[2] = std::byte{8};
    if (scales.min_offset >= 0) store(bytes + scales.min_offset, f32_to_f16(scale * scales.min));
  }
}

}  // namespace quire

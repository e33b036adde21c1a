// Seeded random inputs for tests and benchmarks of ops: numbers, and weights as files hold them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "quant/dequantize.h"
#include "quant/format.h"
#include "quant/weight.h"
#include "tensor/dtype.h"

namespace quire {

// Random numbers that are the same in every run; SCOPED_TRACE(random.trace()) prints the seed with a failure.
class TestRandom {
 public:
  explicit TestRandom(uint64_t seed) : seed_(seed), engine_(seed) {}

  std::string trace() const { return "seed " + std::to_string(seed_); }
  uint64_t bits() { return engine_(); }
  int64_t below(int64_t bound) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(bound)); }
  float uniform(float low, float high) { return low + (high - low) * (static_cast<float>(engine_() >> 40) * 0x1p-24f); }
  float normal() { return normal_(engine_); }
  std::vector<float> normals(int64_t count, float scale = 1.0f) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = scale * normal();
    return values;
  }

 private:
  uint64_t seed_;
  std::mt19937_64 engine_;
  std::normal_distribution<float> normal_;
};

// A row-major weight as a file would hold it: any codes, scales of a size that keeps products near 1.
struct FileWeight {
  std::vector<std::byte> bytes;
  Weight weight;
};

// Offsets of the f16 numbers of a block; -1: none.
struct HalfOffsets {
  int scale;
  int min;
};
inline HalfOffsets half_offsets(FormatId format) {
  switch (format) {
    case FormatId::kQ4_1:
    case FormatId::kQ5_1:
    case FormatId::kQ4_K:
    case FormatId::kQ5_K:
      return {0, 2};
    case FormatId::kQ4_0:
    case FormatId::kQ5_0:
    case FormatId::kQ8_0:
    case FormatId::kIQ4_NL:
    case FormatId::kIQ4_XS:
    case FormatId::kInt4G128:
      return {0, -1};
    case FormatId::kQ2_K:
      return {80, 82};
    case FormatId::kQ3_K:
      return {108, -1};
    case FormatId::kQ6_K:
      return {208, -1};
    case FormatId::kF32:
    case FormatId::kF16:
    case FormatId::kBF16:
      break;
  }
  return {-1, -1};
}

inline void store_u16(std::byte* out, uint16_t value) {
  out[0] = static_cast<std::byte>(value);
  out[1] = static_cast<std::byte>(value >> 8);
}

inline FileWeight make_file_weight(TestRandom& random, FormatId format, int64_t n, int64_t k, int64_t num_experts = 1) {
  const QuantFormat& quant = quant_format(format);
  FileWeight result;
  const int64_t num_blocks = num_experts * n * (k / quant.values_per_block);
  result.bytes.resize(static_cast<size_t>(num_blocks * quant.bytes_per_block));
  for (std::byte& byte : result.bytes) byte = static_cast<std::byte>(random.bits());
  const HalfOffsets offsets = half_offsets(format);
  // Super-blocks multiply by scales up to 63.
  const float size = quant.values_per_block == 256 ? 0.0004f : 0.01f;
  for (int64_t b = 0; b < num_blocks; ++b) {
    std::byte* block = result.bytes.data() + b * quant.bytes_per_block;
    if (offsets.scale >= 0) store_u16(block + offsets.scale, f32_to_f16(random.uniform(-size, size)));
    if (offsets.min >= 0) store_u16(block + offsets.min, f32_to_f16(random.uniform(-3 * size, 3 * size)));
    if (format == FormatId::kInt4G128) block[2] = static_cast<std::byte>(random.bits() % (kMaxInt4Zero + 1));
    const float value = 0.2f * random.normal();
    if (format == FormatId::kF32) std::memcpy(block, &value, sizeof(value));
    if (format == FormatId::kF16) store_u16(block, f32_to_f16(value));
    if (format == FormatId::kBF16) store_u16(block, f32_to_bf16(value));
  }
  result.weight.format = format;
  result.weight.n = n;
  result.weight.k = k;
  result.weight.num_experts = num_experts;
  result.weight.parts[0] = result.bytes;
  return result;
}

}  // namespace quire

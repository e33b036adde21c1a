// The recipe that tests of all ops share: seeded inputs, outputs that begin as NaN between guards, and the tolerance
// rule err(kernel) <= 2 * err(plain loop in the same type) + one rounding, both against float64. Has tests of its own
// (op_test_test.cc).
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "quant/format.h"
#include "quant/weight.h"
#include "tensor/arena.h"
#include "tensor/dtype.h"
#include "tensor/tensor.h"

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

// A matrix of floats whose rows may lie apart. Everything starts as NaN; what lies between rows and around the whole
// must still be the very same NaN at the end.
class GuardedMatrix {
 public:
  GuardedMatrix(int64_t num_rows, int64_t num_columns, int64_t gap = 0)
      : num_rows_(num_rows), num_columns_(num_columns), stride_(num_columns + gap) {
    storage_.assign(static_cast<size_t>(kGuard + num_rows * stride_ + kGuard), guard_value());
  }

  TensorView view() {
    TensorView whole(data(), DType::kF32, {num_rows_, stride_});
    return whole.slice(1, 0, num_columns_);
  }
  ConstTensorView const_view() { return view(); }
  float* row(int64_t index) { return data() + index * stride_; }
  float at(int64_t row_index, int64_t column) { return row(row_index)[column]; }
  void fill(const std::vector<float>& values) {
    for (int64_t r = 0; r < num_rows_; ++r) {
      for (int64_t c = 0; c < num_columns_; ++c) row(r)[c] = values[static_cast<size_t>(r * num_columns_ + c)];
    }
  }
  // The elements without gaps.
  std::vector<float> values() {
    std::vector<float> all;
    for (int64_t r = 0; r < num_rows_; ++r) all.insert(all.end(), row(r), row(r) + num_columns_);
    return all;
  }
  testing::AssertionResult guards_are_intact() {
    for (size_t i = 0; i < storage_.size(); ++i) {
      const int64_t inner = static_cast<int64_t>(i) - kGuard;
      const bool is_element = inner >= 0 && inner < num_rows_ * stride_ && inner % stride_ < num_columns_;
      if (is_element || std::bit_cast<uint32_t>(storage_[i]) == kGuardBits) continue;
      return testing::AssertionFailure() << "wrote " << storage_[i] << " outside, at element " << inner << " of "
                                         << num_rows_ << " rows, stride " << stride_;
    }
    return testing::AssertionSuccess();
  }

 private:
  static constexpr int64_t kGuard = 64;
  static constexpr uint32_t kGuardBits = 0x7fc0dead;
  static float guard_value() { return std::bit_cast<float>(kGuardBits); }
  float* data() { return storage_.data() + kGuard; }

  int64_t num_rows_;
  int64_t num_columns_;
  int64_t stride_;
  std::vector<float> storage_;
};

// Every |actual - exact| <= tolerance; a NaN on either side fails. Reports the worst element.
inline testing::AssertionResult all_near(const std::vector<float>& actual, const std::vector<double>& exact,
                                         double tolerance) {
  if (actual.size() != exact.size()) {
    return testing::AssertionFailure() << actual.size() << " elements, expected " << exact.size();
  }
  double worst_error = -1;
  size_t worst = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double error = std::fabs(static_cast<double>(actual[i]) - exact[i]);
    if (std::isnan(error)) {
      worst = i;
      worst_error = error;
      break;
    }
    if (error > worst_error) {
      worst = i;
      worst_error = error;
    }
  }
  if (actual.empty() || worst_error <= tolerance) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "worst at element " << worst << " of " << actual.size() << ": " << actual[worst]
                                     << ", expected " << exact[worst] << ", error " << worst_error << ", tolerance "
                                     << tolerance;
}

// 2 * the largest error of the plain loop + one rounding to `mantissa_bits` bits. What is rounded is at least as large
// as the largest exact value; `largest_partial` says how large the sums on the way became, where they cancel.
struct Rounding {
  int mantissa_bits = 24;
  double largest_partial = 0;
};
inline double kernel_tolerance(const std::vector<float>& plain, const std::vector<double>& exact,
                               const Rounding& rounding = {}) {
  double plain_error = 0;
  double largest = rounding.largest_partial;
  for (size_t i = 0; i < exact.size(); ++i) {
    plain_error = std::fmax(plain_error, std::fabs(static_cast<double>(plain[i]) - exact[i]));
    largest = std::fmax(largest, std::fabs(exact[i]));
  }
  return 2 * plain_error + largest * std::ldexp(1.0, -rounding.mantissa_bits);
}

inline testing::AssertionResult kernel_is_close(const std::vector<float>& actual, const std::vector<float>& plain,
                                                const std::vector<double>& exact, const Rounding& rounding = {}) {
  return all_near(actual, exact, kernel_tolerance(plain, exact, rounding));
}

inline testing::AssertionResult equal_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return testing::AssertionFailure() << a.size() << " and " << b.size() << " elements";
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint32_t>(a[i]) == std::bit_cast<uint32_t>(b[i])) continue;
    return testing::AssertionFailure() << "bits differ at element " << i << " of " << a.size() << ": " << a[i]
                                       << " and " << b[i];
  }
  return testing::AssertionSuccess();
}

// Scratch memory for a test.
inline Arena make_test_arena(int64_t num_bytes) {
  void* data = std::aligned_alloc(256, static_cast<size_t>((num_bytes + 255) / 256 * 256));
  return Arena(DeviceBuffer(data, num_bytes, Device{}, [](void* block) { std::free(block); }));
}

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

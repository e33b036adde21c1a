// The recipe that tests of all ops share: seeded inputs, outputs that begin as NaN between guards, and the tolerance
// rule err(kernel) <= 2 * err(plain loop in the same type) + one rounding, both against float64. Has tests of its own
// (op_test_test.cc).
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "ops/tests/op_test_data.h"
#include "tensor/arena.h"
#include "tensor/dtype.h"
#include "tensor/tensor.h"

namespace quire {

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

}  // namespace quire

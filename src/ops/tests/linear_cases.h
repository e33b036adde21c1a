// What the tests of linear layers on the CPU share: a product with its inputs, run by any row, judged by float64.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "ops/cpu/linear.h"
#include "ops/tests/cpu_rows.h"
#include "ops/tests/op_test.h"
#include "quant/dequantize.h"
#include "quant/packing.h"

namespace quire::cpu {

inline constexpr int64_t kScratchBytes = 64 << 20;
// The plain loop's error is taken over at least so many outputs: a single one may be right by luck.
inline constexpr int64_t kMinJudgedOutputs = 64;

inline std::vector<float> dequantize(const FileWeight& file) {
  const QuantFormat& quant = file.weight.quant();
  const size_t num_blocks = file.bytes.size() / static_cast<size_t>(quant.bytes_per_block);
  std::vector<float> values(num_blocks * static_cast<size_t>(quant.values_per_block));
  dequantize_row(quant.id, file.bytes.data(), values.data(), static_cast<int64_t>(values.size()));
  return values;
}

// What the int8 kernels make of activations, from the words of linear_kernels.h: x is replaced by d * q.
inline void quantize_activations(std::vector<float>& scales, std::vector<float>& codes, const std::vector<float>& x) {
  scales.assign(x.size(), 0);
  codes.assign(x.size(), 0);
  for (size_t begin = 0; begin < x.size(); begin += 32) {
    float largest = 0;
    for (size_t i = begin; i < begin + 32; ++i) largest = std::fmax(largest, std::fabs(x[i]));
    if (largest == 0) continue;
    for (size_t i = begin; i < begin + 32; ++i) codes[i] = std::nearbyint(x[i] * (127.0f / largest));
    float products[16];
    float squares = 0;
    for (size_t i = 0; i < 16; ++i) {
      const size_t first = begin + i;
      products[i] = std::fma(x[first + 16], codes[first + 16], x[first] * codes[first]);
      squares += codes[first] * codes[first] + codes[first + 16] * codes[first + 16];
    }
    for (size_t apart = 8; apart > 0; apart /= 2) {
      for (size_t i = 0; i < apart; ++i) products[i] += products[i + apart];
    }
    for (size_t i = begin; i < begin + 32; ++i) scales[i] = products[0] / squares;
  }
}

// One product with all that is needed to run and to judge it.
struct Case {
  FormatId format;
  int64_t num_tokens;
  int64_t n;
  int64_t k;
  Compute compute;
  bool has_bias = false;
  bool has_residual = false;
  int64_t gap = 0;

  std::string text() const {
    return std::string(quant_format(format).name) + " tokens " + std::to_string(num_tokens) + " n " +
           std::to_string(n) + " k " + std::to_string(k) + (compute == Compute::kF32 ? " f32" : " auto") +
           (has_bias ? " bias" : "") + (has_residual ? " residual" : "");
  }
};

class LinearTest : public testing::Test {
 protected:
  struct Inputs {
    FileWeight file;
    Weight packed;
    std::vector<float> x;
    std::vector<float> bias;
    std::vector<float> residual;
  };

  Inputs make_inputs(const Case& c, uint64_t seed) {
    TestRandom random(seed);
    Inputs inputs;
    inputs.file = make_file_weight(random, c.format, std::max(c.n, kMinJudgedOutputs), c.k);
    inputs.file.weight.n = c.n;
    Result<Weight> packed = pack_weight(pool_, memory_, inputs.file.weight);
    EXPECT_TRUE(packed.is_ok());
    inputs.packed = packed.value();
    inputs.x = random.normals(c.num_tokens * c.k);
    inputs.bias = random.normals(c.n);
    inputs.residual = random.normals(c.num_tokens * c.n);
    return inputs;
  }

  // y as the row computes it; the residual, where there is one, is y itself.
  std::vector<float> run(const Case& c, Inputs& inputs, const KernelRow<LinearCall>* row, ThreadPool& pool) {
    GuardedMatrix x(c.num_tokens, c.k, c.gap);
    x.fill(inputs.x);
    GuardedMatrix y(c.num_tokens, c.n, c.gap);
    Epilogue epilogue;
    if (c.has_bias) epilogue.bias = ConstTensorView(inputs.bias.data(), DType::kF32, {c.n});
    if (c.has_residual) {
      y.fill(inputs.residual);
      epilogue.residual = y.view();
    }
    const LinearCall call{pool, scratch_, features_, c.compute, y.view(), x.const_view(), inputs.packed, epilogue};
    if (row == nullptr) {
      linear(call);
    } else {
      if (!row->accepts(call)) return {};
      linear(call, row->name);
    }
    EXPECT_EQ(scratch_.used_bytes(), 0);
    EXPECT_TRUE(y.guards_are_intact());
    EXPECT_TRUE(x.guards_are_intact());
    return y.values();
  }

  void judge(const Case& c, uint64_t seed) {
    SCOPED_TRACE(c.text() + " seed " + std::to_string(seed));
    Inputs inputs = make_inputs(c, seed);
    const std::vector<float> w = dequantize(inputs.file);
    const bool is_int8 = c.compute == Compute::kAuto && !quant_format(c.format).is_float;
    std::vector<float> scales(inputs.x.size(), 1);
    std::vector<float> codes = inputs.x;
    if (is_int8) quantize_activations(scales, codes, inputs.x);
    if (c.compute == Compute::kAuto && c.format == FormatId::kBF16) {
      for (float& code : codes) code = bf16_to_f32(f32_to_bf16(code));
    }
    std::vector<double> exact;         // of the outputs that the call has
    std::vector<double> judged_exact;  // of all
    std::vector<float> judged_plain;
    double largest_partial = 0;
    const int64_t num_judged = std::max(c.n, kMinJudgedOutputs);
    for (int64_t t = 0; t < c.num_tokens; ++t) {
      for (int64_t o = 0; o < num_judged; ++o) {
        double sum = 0;
        float plain_sum = 0;
        for (int64_t i = 0; i < c.k; ++i) {
          const size_t xi = static_cast<size_t>(t * c.k + i);
          const float weight = w[static_cast<size_t>(o * c.k + i)];
          sum += static_cast<double>(scales[xi]) * static_cast<double>(codes[xi]) * static_cast<double>(weight);
          plain_sum += scales[xi] * codes[xi] * weight;
          largest_partial = std::fmax(largest_partial, std::fabs(sum));
        }
        const float bias = c.has_bias && o < c.n ? inputs.bias[static_cast<size_t>(o)] : 0;
        const float residual = c.has_residual && o < c.n ? inputs.residual[static_cast<size_t>(t * c.n + o)] : 0;
        sum += static_cast<double>(bias) + static_cast<double>(residual);
        judged_exact.push_back(sum);
        judged_plain.push_back((plain_sum + bias) + residual);
        if (o < c.n) exact.push_back(sum);
      }
    }
    const double tolerance = kernel_tolerance(judged_plain, judged_exact, {.largest_partial = largest_partial});
    std::map<std::string_view, std::vector<float>> by_order;
    int num_rows = 0;
    for (const KernelRow<LinearCall>& row : linear_rows()) {
      SCOPED_TRACE(std::string(row.name));
      const std::vector<float> y = run(c, inputs, &row, pool_);
      if (y.empty() && c.num_tokens > 0) continue;
      ++num_rows;
      EXPECT_TRUE(all_near(y, exact, tolerance));
      EXPECT_TRUE(equal_bits(y, run(c, inputs, &row, pool_))) << "the second run differs";
      const auto [first, is_new] = by_order.emplace(row.reduction_order, y);
      if (!is_new) {
        EXPECT_TRUE(equal_bits(first->second, y)) << "rows of order " << row.reduction_order << " differ";
      }
    }
    EXPECT_GE(num_rows, 1);
  }

  CpuFeatures features_ = detect_cpu_features();
  ThreadPool pool_{2};
  WeightMemory memory_;
  Arena scratch_ = make_test_arena(kScratchBytes);
};

}  // namespace quire::cpu

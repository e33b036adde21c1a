// Linear layers on the CPU where numbers are at the edges of their kind: the largest codes, subnormals, scales that
// overflow or count as zero, activations that are not finite, and how far rounding to 8 bits may go.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "ops/tests/linear_cases.h"

namespace quire::cpu {
namespace {

// Rows that multiply floats flush what the processor's products of bf16 flush, and no more: finishing does not.
TEST_F(LinearTest, RowsOfBF16AgreeOnSubnormals) {
  TestRandom random(77);
  Case c{FormatId::kBF16, 5, 48, 133, Compute::kAuto};
  c.has_bias = true;
  Inputs inputs = make_inputs(c, 77);
  // Weights around 2^-120, activations around 2^-8: products and sums are subnormal, or nearly.
  uint16_t* bits = reinterpret_cast<uint16_t*>(inputs.file.bytes.data());
  for (int64_t i = 0; i < c.n * c.k; ++i) bits[i] = f32_to_bf16(random.normals(1)[0] * 0x1p-120f);
  inputs.packed = pack_weight(pool_, memory_, inputs.file.weight).value();
  for (float& x : inputs.x) x *= 0x1p-8f;
  for (int64_t i = 0; i < 40; ++i) inputs.x[static_cast<size_t>(3 * i)] = 0x1p-127f;  // subnormal themselves
  for (float& bias : inputs.bias) bias *= 0x1p-130f;
  std::vector<float> first;
  int num_rows = 0;
  for (const KernelRow<LinearCall>& row : linear_rows()) {
    SCOPED_TRACE(std::string(row.name));
    const std::vector<float> y = run(c, inputs, &row, pool_);
    if (y.empty()) continue;
    if (++num_rows == 1) first = y;
    EXPECT_TRUE(equal_bits(first, y));
  }
  EXPECT_GE(num_rows, 1);
  EXPECT_TRUE(std::any_of(first.begin(), first.end(), [](float y) { return y != 0 && std::fabs(y) < 0x1p-126f; }));
}

TEST_F(LinearTest, HalvesAreRoundedWhereAskedFor) {
  BackendOptions options;
  options.kind = BackendKind::kCpu;
  options.num_threads = 2;
  options.compute = Compute::kBF16;
  const auto ops = CpuOps::create(options).value();
  OpContext context{scratch_};
  Case c{FormatId::kF16, 3, 40, 96, Compute::kAuto};
  Inputs inputs = make_inputs(c, 78);
  Inputs rounded = inputs;
  rounded.file.weight.format = FormatId::kBF16;
  std::vector<uint16_t> bf16;
  for (const float w : dequantize(inputs.file)) bf16.push_back(f32_to_bf16(w));
  rounded.file.weight.parts = {std::as_bytes(std::span(bf16))};
  c.format = FormatId::kBF16;
  rounded.packed = pack_weight(pool_, memory_, rounded.file.weight).value();
  const Weight packed = ops->pack(inputs.file.weight).value();
  EXPECT_EQ(packed.format, FormatId::kBF16);
  GuardedMatrix y(c.num_tokens, c.n);
  ops->linear(context, y.view(), ConstTensorView(inputs.x.data(), DType::kF32, {c.num_tokens, c.k}), packed, {});
  EXPECT_TRUE(equal_bits(y.values(), run(c, rounded, nullptr, pool_)));
}

// The largest sums that can occur, which 16-bit partial sums must hold.
TEST_F(LinearTest, ExtremeCodesDoNotSaturate) {
  for (const QuantFormat& quant : kQuantFormats) {
    if (quant.is_float) continue;
    for (const int code_byte : {0x00, 0xff, 0x80, 0x7f}) {
      for (const float sign : {1.0f, -1.0f}) {
        Case c{quant.id, 2, 16, 256, Compute::kAuto};
        SCOPED_TRACE(c.text() + " byte " + std::to_string(code_byte));
        TestRandom random(5);
        Inputs inputs;
        inputs.file = make_file_weight(random, c.format, c.n, c.k);
        const HalfOffsets halves = half_offsets(c.format);
        for (size_t b = 0; b < inputs.file.bytes.size(); b += static_cast<size_t>(quant.bytes_per_block)) {
          std::byte* block = inputs.file.bytes.data() + b;
          std::memset(block, code_byte, static_cast<size_t>(quant.bytes_per_block));
          store_u16(block + halves.scale, 0x3c00);
          if (halves.min >= 0) store_u16(block + halves.min, 0);
        }
        Result<Weight> packed = pack_weight(pool_, memory_, inputs.file.weight);
        ASSERT_TRUE(packed.is_ok());
        inputs.packed = packed.value();
        inputs.x.assign(static_cast<size_t>(c.num_tokens * c.k), sign * 127.0f);
        const std::vector<float> w = dequantize(inputs.file);
        for (const KernelRow<LinearCall>& row : linear_rows()) {
          const std::vector<float> y = run(c, inputs, &row, pool_);
          if (y.empty()) continue;
          double exact = 0;
          for (int64_t i = 0; i < c.k; ++i)
            exact += static_cast<double>(w[static_cast<size_t>(i)]) * 127.0 * static_cast<double>(sign);
          for (const float value : y) EXPECT_EQ(static_cast<double>(value), exact) << row.name;
        }
      }
    }
  }
}

// A token that is not finite spoils itself and nobody else; zeros and the tiniest numbers stay finite.
TEST_F(LinearTest, StrangeActivationsStayInTheirToken) {
  for (const FormatId format : {FormatId::kQ4_1, FormatId::kQ8_0, FormatId::kQ6_K, FormatId::kF32}) {
    for (const Compute compute : {Compute::kAuto, Compute::kF32}) {
      const Case c{format, 5, 20, 256, compute};
      SCOPED_TRACE(c.text());
      Inputs inputs = make_inputs(c, 6000);
      float* x = inputs.x.data();
      x[0 * 256 + 40] = std::numeric_limits<float>::quiet_NaN();
      x[1 * 256 + 77] = std::numeric_limits<float>::infinity();
      for (int i = 0; i < 256; ++i) x[2 * 256 + i] = 0;
      for (int i = 0; i < 256; ++i) x[3 * 256 + i] = i % 2 == 0 ? 1e-40f : -1e-45f;
      for (const KernelRow<LinearCall>& row : linear_rows()) {
        SCOPED_TRACE(std::string(row.name));
        const std::vector<float> y = run(c, inputs, &row, pool_);
        for (size_t i = 0; i < y.size(); ++i) {
          if (i < 20) {
            EXPECT_TRUE(std::isnan(y[i])) << i;
          } else if (i < 40) {
            EXPECT_FALSE(std::isfinite(y[i])) << i;
          } else if (i < 60) {
            EXPECT_EQ(y[i], 0.0f) << i;
          } else {
            EXPECT_TRUE(std::isfinite(y[i])) << i;
          }
        }
      }
    }
  }
}

// Blocks of activations whose scale is at an end of what floats hold: sums that overflow, the least scale that counts,
// the largest one that counts as zero, and zeros below zero.
TEST_F(LinearTest, RowsAgreeOnScalesAtTheEdges) {
  for (const FormatId format : {FormatId::kQ4_1, FormatId::kQ8_0, FormatId::kQ6_K}) {
    const Case c{format, 6, 20, 256, Compute::kAuto};
    SCOPED_TRACE(c.text());
    Inputs inputs = make_inputs(c, 6500);
    const float least = 127.0f * 0x1p-126f;
    for (int i = 0; i < 256; ++i) {
      float* x = inputs.x.data() + i;
      x[0 * 256] = i % 3 == 0 ? 3e38f : -3e38f;
      x[1 * 256] = i % 32 == 5 ? 3e38f : 1.0f;
      x[2 * 256] = i % 32 == 7 ? least : -0.3f * least;
      x[3 * 256] = i % 32 == 31 ? std::nextafterf(least, 0.0f) : 0.5f * least;
      x[4 * 256] = -0.0f;
    }
    std::vector<float> expected;
    for (const KernelRow<LinearCall>& row : linear_rows()) {
      const std::vector<float> y = run(c, inputs, &row, pool_);
      if (y.empty()) continue;
      if (expected.empty()) expected = y;
      for (size_t i = 0; i < y.size(); ++i) {
        if (std::isnan(expected[i]) && std::isnan(y[i])) continue;
        ASSERT_EQ(std::bit_cast<uint32_t>(expected[i]), std::bit_cast<uint32_t>(y[i])) << row.name << " " << i;
      }
    }
    ASSERT_FALSE(expected.empty());
    EXPECT_TRUE(std::any_of(expected.begin() + 40, expected.begin() + 60, [](float y) { return y != 0.0f; }));
    EXPECT_TRUE(std::all_of(expected.begin() + 60, expected.begin() + 100, [](float y) { return y == 0.0f; }));
  }
}

// 8-bit activations may be off by half a step each, and no more.
TEST_F(LinearTest, QuantizedActivationsAreWithinHalfAStep) {
  const Case c{FormatId::kQ4_1, 4, 64, 576, Compute::kAuto};
  Inputs inputs = make_inputs(c, 7000);
  const std::vector<float> w = dequantize(inputs.file);
  std::vector<float> scales;
  std::vector<float> codes;
  quantize_activations(scales, codes, inputs.x);
  const std::vector<float> y = run(c, inputs, nullptr, pool_);
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    for (int64_t o = 0; o < c.n; ++o) {
      double exact = 0;
      double bound = 1e-5;
      for (int64_t i = 0; i < c.k; ++i) {
        const double weight = static_cast<double>(w[static_cast<size_t>(o * c.k + i)]);
        exact += static_cast<double>(inputs.x[static_cast<size_t>(t * c.k + i)]) * weight;
        bound += 0.5001 * static_cast<double>(scales[static_cast<size_t>(t * c.k + i)]) * std::fabs(weight);
      }
      EXPECT_LE(std::fabs(static_cast<double>(y[static_cast<size_t>(t * c.n + o)]) - exact), bound);
    }
  }
}

}  // namespace
}  // namespace quire::cpu

// Weights quantized to int8 while they are packed: what they become, and the rows that multiply them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/tests/cuda_quantizing_ops.h"
#include "ops/tests/cuda_test_support.h"
#include "quant/dequantize.h"
#include "quant/int8_rows.h"

namespace quire {
namespace {

// The definition of the row `int8` for one token: codes of x, a scale, sums of integers.
struct Int8Token {
  explicit Int8Token(const float* x, int64_t k) : codes(static_cast<size_t>(k)) {
    float largest = 0;
    for (int64_t i = 0; i < k; ++i) largest = std::fmax(largest, std::fabs(x[i]));
    scale = largest > 0 ? largest / 127.0f : 1.0f;
    const float inverse = 1.0f / scale;
    for (int64_t i = 0; i < k; ++i) {
      codes[static_cast<size_t>(i)] = std::clamp(static_cast<int>(std::nearbyint(x[i] * inverse)), -127, 127);
    }
  }
  std::vector<int> codes;
  float scale;
};

TEST(CudaInt8, WeightsAndProducts) {
  const std::unique_ptr<CudaOps> ops = create_quantizing_ops(WeightQuantization::kI8);
  const std::unique_ptr<Gpu> gpu = Gpu::create();  // for its matrices
  SKIP_WITHOUT_GPU(gpu);
  ThreadPool pool(2);
  TestRandom random(91);
  SCOPED_TRACE(random.trace());
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    // Tiles that are not full, k that is no whole stage, parts of k and none.
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{520, 4096}, {64, 14336}, {136, 576}, {40, 64}, {8, 32}}) {
      const FileWeight file = make_file_weight(random, FormatId::kBF16, n, k);
      const Weight packed = ops->pack(file.weight).value();
      EXPECT_EQ(packed.layout, Layout::kCudaI8);
      std::vector<int32_t> ids(static_cast<size_t>(n));
      std::iota(ids.begin(), ids.end(), 0);
      const DeviceBuffer device_ids = gpu->upload(ids);
      DeviceMatrix rows(*gpu, DType::kF32, n, k);
      gpu->synchronize();
      ops->embedding(gpu->context(), rows.view(), packed, ConstTensorView(device_ids.data(), DType::kI32, {n}), 1.0f);
      ops->synchronize(gpu->context());
      const Weight rounded = round_to_int8(pool, file.weight);
      std::vector<float> w(static_cast<size_t>(n * k));
      dequantize_row(rounded.format, rounded.parts[0].data(), w.data(), n * k);
      EXPECT_TRUE(equal_bits(rows.values(), w));
      std::vector<float> w_scales;
      std::vector<int> w_codes(w.size());
      for (int64_t r = 0; r < n; ++r) {
        uint16_t bits;
        std::memcpy(&bits, rounded.parts[0].data() + r * rounded.quant().row_bytes(k), sizeof(bits));
        w_scales.push_back(f16_to_f32(bits));
        for (int64_t i = r * k; i < (r + 1) * k; ++i) {
          w_codes[static_cast<size_t>(i)] = static_cast<int>(std::lrint(w[static_cast<size_t>(i)] / w_scales.back()));
        }
      }
      const std::vector<float> bias_values = random.normals(n);
      const DeviceBuffer device_bias = gpu->upload(bias_values);
      for (const int64_t num_tokens : {1, 2, 9, 17, 33, 100, 129, 600}) {
        if (num_tokens > 200 && k > 4096) continue;
        SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " " << num_tokens << " " << n << " " << k);
        const std::vector<float> x = round_all(dtype, random.normals(num_tokens * k));
        const std::vector<float> residual = round_all(dtype, random.normals(num_tokens * n));
        DeviceMatrix device_x(*gpu, dtype, num_tokens, k, 8);
        DeviceMatrix y(*gpu, dtype, num_tokens, n, 8);
        DeviceMatrix y_floats(*gpu, DType::kF32, num_tokens, n);
        device_x.fill(x);
        y.fill(residual);
        gpu->synchronize();
        const ConstTensorView bias(device_bias.data(), DType::kF32, {n});
        ops->linear(gpu->context(), y.view(), device_x.view(), packed, {.bias = bias, .residual = y.view()});
        ops->linear(gpu->context(), y_floats.view(), device_x.view(), packed, {});
        ops->synchronize(gpu->context());
        const std::vector<float> values = y.values();
        const std::vector<float> floats = y_floats.values();
        double worst = 0;  // of its tolerance
        for (int64_t t = 0; t < num_tokens; ++t) {
          const Int8Token token(x.data() + t * k, k);
          for (int64_t o = 0; o < n; ++o) {
            double sum = 0;
            double size = 0;
            if (num_tokens == 1 && k >= 256) {
              // `gemv`: activations are not rounded, but to 11 bits of the largest.
              for (int64_t i = 0; i < k; ++i) {
                const double product = double{x[static_cast<size_t>(i)]} * double{w[static_cast<size_t>(o * k + i)]};
                sum += product;
                size += product * product;
              }
              size = 0.03 * std::sqrt(size);
            } else {
              int64_t integer = 0;
              for (int64_t i = 0; i < k; ++i) {
                integer += int64_t{token.codes[static_cast<size_t>(i)]} * w_codes[static_cast<size_t>(o * k + i)];
              }
              sum = static_cast<double>(integer) * double{w_scales[static_cast<size_t>(o)]} * double{token.scale};
            }
            const size_t at = static_cast<size_t>(t * n + o);
            worst = std::fmax(worst, std::fabs(double{floats[at]} - sum) / (size + 1e-6 * std::fabs(sum) + 1e-12));
            const double with_both = sum + double{bias_values[static_cast<size_t>(o)]} + double{residual[at]};
            const double allowed = size + std::ldexp(std::fabs(with_both), -mantissa_bits(dtype)) + 1e-5;
            worst = std::fmax(worst, std::fabs(double{values[at]} - with_both) / allowed);
          }
        }
        EXPECT_TRUE(worst <= 1.0) << worst;
      }
    }
  }
}

// Sums are exact: a token's bits do not depend on how many there are.
TEST(CudaInt8, OneTokenHasTheSameBitsAmongAnyOthers) {
  const std::unique_ptr<CudaOps> ops = create_quantizing_ops(WeightQuantization::kI8);
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  TestRandom random(92);
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1024, 4096}, {4096, 1040}, {208, 576}}) {
    Weight shape;
    shape.format = FormatId::kBF16;
    shape.n = n;
    shape.k = k;
    const Weight weight = ops->make_random_weight(shape, 6).value();
    const std::vector<float> x = round_all(DType::kBF16, random.normals(1000 * k));
    std::vector<float> expected;
    for (const int64_t num_tokens : {2, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 256, 257, 1000}) {
      DeviceMatrix device_x(*gpu, DType::kBF16, num_tokens, k);
      device_x.fill({x.begin(), x.begin() + num_tokens * k});
      DeviceMatrix y(*gpu, DType::kBF16, num_tokens, n);
      gpu->synchronize();
      ops->linear(gpu->context(), y.view(), device_x.view(), weight, {});
      ops->synchronize(gpu->context());
      std::vector<float> values = y.values();
      values.resize(static_cast<size_t>(2 * n));
      if (expected.empty()) expected = values;
      EXPECT_TRUE(equal_bits(values, expected)) << num_tokens << " tokens, " << n << " x " << k;
    }
  }
}

TEST(CudaInt8, NanStaysWithItsToken) {
  const std::unique_ptr<CudaOps> ops = create_quantizing_ops(WeightQuantization::kI8);
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  TestRandom random(93);
  Weight shape;
  shape.format = FormatId::kBF16;
  shape.n = 256;
  shape.k = 512;
  const Weight weight = ops->make_random_weight(shape, 7).value();
  std::vector<float> x = round_all(DType::kBF16, random.normals(3 * shape.k));
  x[static_cast<size_t>(shape.k) + 5] = std::numeric_limits<float>::quiet_NaN();
  DeviceMatrix device_x(*gpu, DType::kBF16, 3, shape.k);
  device_x.fill(x);
  DeviceMatrix y(*gpu, DType::kBF16, 3, shape.n);
  gpu->synchronize();
  ops->linear(gpu->context(), y.view(), device_x.view(), weight, {});
  ops->synchronize(gpu->context());
  const std::vector<float> values = y.values();
  for (int64_t i = 0; i < 3 * shape.n; ++i) {
    EXPECT_EQ(std::isnan(values[static_cast<size_t>(i)]), i / shape.n == 1) << i;
  }
}

TEST(CudaInt8, FusedNormAndGate) {
  const std::unique_ptr<CudaOps> ops = create_quantizing_ops(WeightQuantization::kI8);
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  TestRandom random(94);
  expect_fused_equals_plain(*ops, *gpu, random, {1, 2, 9, 33, 128, 130, 300});
}

}  // namespace
}  // namespace quire

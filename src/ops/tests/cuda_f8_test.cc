// Weights quantized to e4m3 while they are packed: what they become, and the rows that multiply them.
#include <gtest/gtest.h>

#include <numeric>

#include "ops/tests/cuda_quantizing_ops.h"
#include "ops/tests/cuda_test_support.h"

namespace quire {
namespace {

TEST(CudaF8, WeightsAndProducts) {
  const std::unique_ptr<CudaOps> quantizing = create_quantizing_ops(WeightQuantization::kF8);
  const std::unique_ptr<Gpu> gpu = Gpu::create();  // for its matrices
  SKIP_WITHOUT_GPU(gpu);
  CudaOps& ops = *quantizing;
  TestRandom random(81);
  SCOPED_TRACE(random.trace());
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{512, 4096}, {64, 14336}, {130, 576}, {40, 64}}) {
      const FileWeight file = make_file_weight(random, FormatId::kBF16, n, k);
      const Weight packed = ops.pack(file.weight).value();
      EXPECT_EQ(packed.layout, Layout::kCudaF8);
      std::vector<int32_t> ids(static_cast<size_t>(n));
      std::iota(ids.begin(), ids.end(), 0);
      const DeviceBuffer device_ids = gpu->upload(ids);
      DeviceMatrix rows(*gpu, DType::kF32, n, k);
      gpu->synchronize();
      ops.embedding(gpu->context(), rows.view(), packed, ConstTensorView(device_ids.data(), DType::kI32, {n}), 1.0f);
      ops.synchronize(gpu->context());
      const std::vector<float> w = rows.values();
      for (int64_t r = 0; r < n; ++r) {
        float largest = 0;
        for (int64_t i = 0; i < k; ++i) {
          uint16_t bits = 0;
          std::memcpy(&bits, file.bytes.data() + 2 * (r * k + i), 2);
          largest = std::fmax(largest, std::fabs(bf16_to_f32(bits)));
        }
        for (int64_t i = 0; i < k; ++i) {
          uint16_t bits = 0;
          std::memcpy(&bits, file.bytes.data() + 2 * (r * k + i), 2);
          const float exact = bf16_to_f32(bits);
          // Half a step of 3 bits, or of the smallest step, 2^-9.
          const float allowed = std::fmax(std::fabs(exact) / 16, largest / 448 * 0x1p-10f) * 1.001f;
          ASSERT_LE(std::fabs(w[static_cast<size_t>(r * k + i)] - exact), allowed) << r << " " << i;
        }
      }
      for (const int64_t num_tokens : {1, 2, 17, 64, 65, 250}) {
        SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " " << num_tokens << " " << n << " " << k);
        const std::vector<float> x = round_all(dtype, random.normals(num_tokens * k));
        const std::vector<float> residual = round_all(dtype, random.normals(num_tokens * n));
        DeviceMatrix device_x(*gpu, dtype, num_tokens, k);
        DeviceMatrix y(*gpu, dtype, num_tokens, n);
        device_x.fill(x);
        y.fill(residual);
        gpu->synchronize();
        ops.linear(gpu->context(), y.view(), device_x.view(), packed, {.bias = {}, .residual = y.view()});
        ops.synchronize(gpu->context());
        const std::vector<float> values = y.values();
        double error = 0;
        double norm = 0;
        for (int64_t t = 0; t < num_tokens; ++t) {
          for (int64_t o = 0; o < n; ++o) {
            double sum = double{residual[static_cast<size_t>(t * n + o)]};
            for (int64_t i = 0; i < k; ++i) {
              sum += double{x[static_cast<size_t>(t * k + i)]} * double{w[static_cast<size_t>(o * k + i)]};
            }
            error += std::pow(sum - double{values[static_cast<size_t>(t * n + o)]}, 2);
            norm += sum * sum;
          }
        }
        // Activations are rounded to 3 bits, but for one token where `gemv` takes it.
        const double relative = std::sqrt(error / norm);
        EXPECT_TRUE(relative <= (num_tokens == 1 && k >= 256 ? 0.004 : 0.04)) << relative;
      }
    }
  }
}

TEST(CudaF8, FusedNormAndGate) {
  const std::unique_ptr<CudaOps> ops = create_quantizing_ops(WeightQuantization::kF8);
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  TestRandom random(82);
  expect_fused_equals_plain(*ops, *gpu, random, {1, 2, 9, 33, 64, 128, 130});
}

// A token of `few_tokens` has the same bits whatever stands beside it, in every run.
TEST(CudaF8, TokensDoNotDependOnTheBatch) {
  const std::unique_ptr<CudaOps> quantizing = create_quantizing_ops(WeightQuantization::kF8);
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  CudaOps& ops = *quantizing;
  TestRandom random(83);
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{176, 576}, {1040, 4096}, {24, 14336}}) {
    Weight shape;
    shape.format = FormatId::kBF16;
    shape.n = n;
    shape.k = k;
    const Weight weight = ops.make_random_weight(shape, 6).value();
    constexpr int64_t kMost = 64;
    const std::vector<float> x = round_all(DType::kBF16, random.normals(kMost * k));
    const auto run = [&](int64_t count) {  // the last tokens
      DeviceMatrix device_x(*gpu, DType::kBF16, count, k);
      DeviceMatrix y(*gpu, DType::kF32, count, n);
      device_x.fill(std::vector<float>(x.end() - count * k, x.end()));
      gpu->synchronize();
      ops.linear(gpu->context(), y.view(), device_x.view(), weight, {});
      ops.synchronize(gpu->context());
      return y.values();
    };
    const std::vector<float> whole = run(kMost);
    for (int64_t count = 2; count <= kMost; ++count) {
      EXPECT_TRUE(equal_bits(run(count), std::vector<float>(whole.end() - count * n, whole.end())))
          << count << " of " << n << " x " << k;
    }
  }
}

}  // namespace
}  // namespace quire

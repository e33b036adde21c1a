// A CUDA backend that quantizes weights while it packs them, and what the tests of all such formats ask of it.
#pragma once

#include <cmath>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "ops/tests/cuda_test_support.h"

namespace quire {

// Null where this machine has no GPU.
inline std::unique_ptr<CudaOps> create_quantizing_ops(WeightQuantization quantization) {
  BackendOptions options;
  options.kind = BackendKind::kCuda;
  options.num_threads = 2;
  options.weight_quantization = quantization;
  Result<std::unique_ptr<CudaOps>> created = CudaOps::create(options);
  return created.is_ok() ? std::move(created).value() : nullptr;
}

// Norm, product and gated activation at once, against the plain ops one after another.
inline void expect_fused_equals_plain(CudaOps& ops, Gpu& gpu, TestRandom& random,
                                      std::initializer_list<int64_t> token_counts) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1024, 4096}, {208, 576}, {4096, 1040}, {16, 64}}) {
      Weight shape;
      shape.format = FormatId::kBF16;
      shape.n = n;
      shape.k = k;
      const Weight weight = ops.make_random_weight(shape, 5).value();
      const DeviceBuffer norm_values = gpu.upload(random.normals(k));
      const DeviceBuffer bias_values = gpu.upload(random.normals(n, 0.1f));
      gpu.synchronize();
      for (const int64_t num_tokens : token_counts) {
        for (int flags = 0; flags < 4; ++flags) {
          SCOPED_TRACE(testing::Message()
                       << dtype_name(dtype) << " " << num_tokens << " " << n << " " << k << " " << flags);
          InputNorm norm;
          ConstTensorView bias;
          if ((flags & 1) != 0) norm = {ConstTensorView(norm_values.data(), DType::kF32, {k}), 1e-5f};
          if ((flags & 2) != 0) bias = ConstTensorView(bias_values.data(), DType::kF32, {n});
          DeviceMatrix x(gpu, dtype, num_tokens, k, 8);
          x.fill(round_all(dtype, random.normals(num_tokens * k, 3.0f)));
          const auto is_close = [&](const std::vector<float>& a, const std::vector<float>& b) {
            double error = 0;
            double square = 0;
            for (size_t i = 0; i < a.size(); ++i) {
              error += std::pow(double{a[i]} - double{b[i]}, 2);
              square += std::pow(double{b[i]}, 2);
            }
            return std::sqrt(error) <= 0.004 * std::sqrt(square);
          };
          DeviceMatrix fused(gpu, dtype, num_tokens, n);
          DeviceMatrix plain(gpu, dtype, num_tokens, n);
          DeviceMatrix gated(gpu, dtype, num_tokens, n / 2, 8);
          DeviceMatrix plain_gated(gpu, dtype, num_tokens, n / 2, 8);
          gpu.synchronize();
          const Epilogue epilogue{.bias = bias, .residual = {}};
          ops.norm_linear(gpu.context(), fused.view(), x.view(), norm, weight, epilogue);
          ops.Ops::norm_linear(gpu.context(), plain.view(), x.view(), norm, weight, epilogue);
          ops.norm_gated_linear(gpu.context(), gated.view(), x.view(), norm, weight, bias, Activation::kSilu);
          ops.Ops::norm_gated_linear(gpu.context(), plain_gated.view(), x.view(), norm, weight, bias,
                                     Activation::kSilu);
          ops.synchronize(gpu.context());
          EXPECT_TRUE(is_close(fused.values(), plain.values()));
          EXPECT_TRUE(is_close(gated.values(), plain_gated.values()));
        }
      }
    }
  }
}

}  // namespace quire

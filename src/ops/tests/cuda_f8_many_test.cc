// e4m3 products of many tokens: every way to multiply that may be chosen, parts of k too, and activations that the op
// before has rounded already.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "ops/cuda/linear_cublaslt.h"
#include "ops/cuda/product_tuner.h"
#include "ops/tests/cuda_test_support.h"
#include "tensor/dtype.h"

namespace quire {
namespace {

struct Problem {
  int64_t num_tokens;
  int64_t n;
  int64_t k;
};

std::vector<uint8_t> random_codes(TestRandom& random, int64_t count) {
  std::vector<uint8_t> codes;
  for (const float value : random.normals(count, 20.0f)) codes.push_back(f32_to_f8e4m3(value));
  return codes;
}

TEST(CudaF8Many, EveryWayToMultiplyIsRight) {
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  cuda::LinearLibrary& library = *gpu->ops().linear_library();
  if (!library.has_f8()) GTEST_SKIP() << "the library multiplies no e4m3 here";
  TestRandom random(91);
  SCOPED_TRACE(random.trace());
  int num_with_parts = 0;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const auto& [num_tokens, n, k] :
         {Problem{65, 528, 2048}, {128, 256, 14336}, {250, 1040, 4096}, {96, 64, 1024}}) {
      const std::vector<uint8_t> w = random_codes(random, n * k);
      const std::vector<uint8_t> x = random_codes(random, num_tokens * k);
      std::vector<float> w_scales = random.normals(n);
      std::vector<float> x_scales = random.normals(num_tokens);
      for (float& scale : w_scales) scale = std::fabs(scale) * 0.01f + 1e-3f;
      for (float& scale : x_scales) scale = std::fabs(scale) * 0.01f + 1e-3f;
      const std::vector<float> residual = round_all(dtype, random.normals(num_tokens * n));
      // A few outputs of every token.
      std::vector<std::pair<int64_t, double>> expected;
      std::vector<double> allowed;
      for (int64_t t = 0; t < num_tokens; ++t) {
        for (int64_t o = t % 7; o < n; o += n / 3) {
          double sum = 0;
          double sizes = 0;
          for (int64_t i = 0; i < k; ++i) {
            const double product = double{f8e4m3_to_f32(w[static_cast<size_t>(o * k + i)])} *
                                   double{f8e4m3_to_f32(x[static_cast<size_t>(t * k + i)])};
            sum += product;
            sizes += std::fabs(product);
          }
          const double scale = double{w_scales[static_cast<size_t>(o)]} * double{x_scales[static_cast<size_t>(t)]};
          expected.emplace_back(t * n + o, sum * scale);
          allowed.push_back(sizes * scale * 0x1p-10 + 1e-6);  // what sums of e4m3 lose
        }
      }
      const DeviceBuffer device_w = gpu->upload(w);
      const DeviceBuffer device_x = gpu->upload(x);
      const DeviceBuffer device_w_scales = gpu->upload(w_scales);
      const DeviceBuffer device_x_scales = gpu->upload(x_scales);
      DeviceMatrix other(*gpu, dtype, num_tokens, n, 8);
      other.fill(residual);
      for (const char* residual_kind : {"none", "apart", "y"}) {
        const bool has_residual = residual_kind != std::string("none");
        DeviceMatrix y(*gpu, dtype, num_tokens, n, 16);
        const bool is_y = residual_kind == std::string("y");
        const cuda::MatmulShape shape{.num_tokens = num_tokens,
                                      .n = n,
                                      .k = k,
                                      .dtype = DType::kF8E4M3,
                                      .y_dtype = dtype,
                                      .x_stride = k,
                                      .y_stride = y.view().stride(0),
                                      .residual_stride = !has_residual ? 0
                                                         : is_y        ? y.view().stride(0)
                                                                       : other.view().stride(0)};
        for (const cuda::ProductWay& way : library.ways(shape)) {
          SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " " << num_tokens << " " << n << " " << k
                                          << " residual " << residual_kind << " parts " << way.num_parts);
          num_with_parts += way.num_parts > 0 ? 1 : 0;
          y.fill(residual);
          library.run(nullptr, shape,
                      {.y = y.view().raw_data(),
                       .x = device_x.data(),
                       .w = device_w.data(),
                       .residual = !has_residual ? nullptr
                                   : is_y        ? y.view().raw_data()
                                                 : other.view().raw_data(),
                       .w_scales = static_cast<const float*>(device_w_scales.data()),
                       .x_scales = static_cast<const float*>(device_x_scales.data())},
                      way);
          const std::vector<float> values = y.values();
          for (size_t i = 0; i < expected.size(); ++i) {
            const size_t at = static_cast<size_t>(expected[i].first);
            const double exact = expected[i].second + (has_residual ? double{residual[at]} : 0.0);
            const double rounding = std::fabs(exact) * std::ldexp(1.0, 1 - mantissa_bits(dtype));
            ASSERT_NEAR(values[at], exact, allowed[i] + rounding) << at;
          }
        }
      }
    }
  }
  EXPECT_GT(num_with_parts, 0);
}

// What was chosen is taken up by a later backend; parts of k are refused for a shape that has none.
TEST(CudaF8Many, PartsAreTakenUpAgain) {
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  cuda::LinearLibrary& library = *gpu->ops().linear_library();
  if (!library.has_f8()) GTEST_SKIP() << "the library multiplies no e4m3 here";
  const auto shape_of = [](int64_t num_tokens) {
    return cuda::MatmulShape{.num_tokens = num_tokens,
                             .n = 512,
                             .k = 4096,
                             .dtype = DType::kF8E4M3,
                             .y_dtype = DType::kBF16,
                             .x_stride = 4096,
                             .y_stride = 512,
                             .residual_stride = 0};
  };
  for (const cuda::ProductWay& way : library.ways(shape_of(128))) {
    BackendOptions options;
    options.kind = BackendKind::kCuda;
    options.tuned_products = {{128, 512, 4096, DType::kF8E4M3, DType::kBF16, false, cuda::way_text(way)}};
    const auto later = CudaOps::create(options);
    ASSERT_TRUE(later.is_ok()) << later.status().message();
    EXPECT_TRUE(later.value()->tuned_products() == options.tuned_products);
    if (way.num_parts == 0) continue;
    options.tuned_products[0].num_tokens = 64;
    const auto refused = CudaOps::create(options);
    ASSERT_FALSE(refused.is_ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  }
}

// The product behind a gated activation takes what that has rounded, and the same bits come out as where it rounds by
// itself; what another op has written since is what counts.
TEST(CudaF8Many, GatedActivationsAreRoundedOnce) {
  const std::unique_ptr<Gpu> gpu = Gpu::create({}, Compute::kAuto, WeightQuantization::kF8);
  SKIP_WITHOUT_GPU(gpu);
  CudaOps& ops = gpu->ops();
  TestRandom random(92);
  SCOPED_TRACE(random.trace());
  const auto make_weight = [&](int64_t n, int64_t k, uint64_t seed) {
    Weight shape;
    shape.format = FormatId::kBF16;
    shape.n = n;
    shape.k = k;
    return ops.make_random_weight(shape, seed).value();
  };
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const auto& [hidden, intermediate] : {std::pair<int64_t, int64_t>{1024, 4096}, {64, 176}, {256, 16400}}) {
      const Weight gate_up = make_weight(2 * intermediate, hidden, 1);
      const Weight down = make_weight(hidden, intermediate, 2);
      for (const int64_t num_tokens : {1, 64, 65, 130, 300}) {
        if (num_tokens * intermediate > 3'000'000) continue;  // the scratch memory of tests
        for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
          SCOPED_TRACE(testing::Message()
                       << dtype_name(dtype) << " " << num_tokens << " " << hidden << " " << intermediate);
          DeviceMatrix x(*gpu, dtype, num_tokens, hidden);
          DeviceMatrix gated(*gpu, dtype, num_tokens, intermediate);
          DeviceMatrix y(*gpu, dtype, num_tokens, hidden);
          x.fill(round_all(dtype, random.normals(num_tokens * hidden)));
          const std::vector<float> others = round_all(dtype, random.normals(num_tokens * intermediate));
          // What `between` does comes between the two ops.
          const auto run = [&](const std::function<void()>& between) {
            ops.norm_gated_linear(gpu->context(), gated.view(), x.view(), {}, gate_up, {}, activation);
            between();
            ops.linear(gpu->context(), y.view(), gated.view(), down, {});
            return y.values();
          };
          (void)run([] {});  // the products are chosen
          const std::vector<float> usual = run([] {});
          EXPECT_TRUE(equal_bits(run([&] { gpu->synchronize(); }), usual));
          EXPECT_FALSE(equal_bits(run([&] { gated.fill(others); }), usual));
          const std::vector<float> of_others = y.values();
          gated.fill(others);
          ops.linear(gpu->context(), y.view(), gated.view(), down, {});
          EXPECT_TRUE(equal_bits(y.values(), of_others));
          // The rounded rows are not those of some of the tokens.
          if (num_tokens < 130) continue;
          const std::vector<float> whole = run([] {});
          DeviceMatrix some(*gpu, dtype, 100, hidden);
          ops.norm_gated_linear(gpu->context(), gated.view(), x.view(), {}, gate_up, {}, activation);
          ops.linear(gpu->context(), some.view(), gated.view().slice(0, 20, 120), down, {});
          const std::vector<float> of_some = some.values();
          double error = 0;
          double square = 0;
          for (size_t i = 0; i < of_some.size(); ++i) {
            const double expected = double{whole[i + 20 * static_cast<size_t>(hidden)]};
            error += std::pow(double{of_some[i]} - expected, 2);
            square += expected * expected;
          }
          EXPECT_LE(error, square * 1e-4);
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire

// Fused ops on the GPU against the plain ones that they stand for.
#include <gtest/gtest.h>

#include "ops/tests/cuda_test_support.h"
#include "quant/random_rows.h"
#include "tensor/paged_kv.h"

namespace quire {
namespace {

// Fused and plain sums differ in order: before they are rounded to the same dtype, by far less than its step.
testing::AssertionResult nearly_equal(const std::vector<float>& a, const std::vector<float>& b, DType dtype,
                                      float largest) {
  if (a.size() != b.size()) return testing::AssertionFailure() << "sizes differ";
  const float step = std::ldexp(1.0f, 1 - mantissa_bits(dtype));
  for (size_t i = 0; i < a.size(); ++i) {
    const float allowed = step * std::fabs(b[i]) + largest * 0x1p-16f;
    if (!(std::fabs(a[i] - b[i]) <= allowed)) {
      return testing::AssertionFailure() << "at " << i << ": " << a[i] << " and " << b[i];
    }
  }
  return testing::AssertionSuccess();
}

float largest_of(const std::vector<float>& values) {
  float largest = 0;
  for (const float value : values) largest = std::fmax(largest, std::fabs(value));
  return largest;
}

struct LinearCase {
  FormatId format;
  DType dtype;
  int64_t num_tokens;
  int64_t n;
  int64_t k;
  bool has_float_stream = false;  // x is f32 beside activations of dtype
};

// Norm, product, bias and residual, and norm, product and gated activation, fused and one after another.
void compare_linears(Gpu& gpu, TestRandom& random, const LinearCase& c) {
  const auto [format, dtype, num_tokens, n, k, has_float_stream] = c;
  const DType x_dtype = has_float_stream ? DType::kF32 : dtype;
  for (int flags = 0; flags < 4; ++flags) {
    SCOPED_TRACE(testing::Message() << quant_format(format).name << " " << dtype_name(dtype) << " " << num_tokens << " "
                                    << n << " " << k << " " << flags << (has_float_stream ? " of floats" : ""));
    Weight shape;
    shape.format = format;
    shape.n = n;
    shape.k = k;
    const Weight weight = gpu.ops().make_random_weight(shape, 3).value();
    DeviceMatrix x(gpu, x_dtype, num_tokens, k);
    x.fill(round_all(x_dtype, random.normals(num_tokens * k, 3.0f)));
    const DeviceBuffer norm_values = gpu.upload(random.normals(k));
    const DeviceBuffer bias_values = gpu.upload(random.normals(n, 0.1f));
    const InputNorm norm = {ConstTensorView(norm_values.data(), DType::kF32, {k}), 1e-5f, dtype};
    ConstTensorView bias;
    if ((flags & 1) != 0) bias = ConstTensorView(bias_values.data(), DType::kF32, {n});
    DeviceMatrix fused(gpu, dtype, num_tokens, n);
    DeviceMatrix plain(gpu, dtype, num_tokens, n);
    const std::vector<float> residual = round_all(dtype, random.normals(num_tokens * n));
    fused.fill(residual);
    plain.fill(residual);
    Epilogue fused_epilogue{.bias = bias, .residual = {}};
    Epilogue plain_epilogue{.bias = bias, .residual = {}};
    if ((flags & 2) != 0) {
      fused_epilogue.residual = fused.view();
      plain_epilogue.residual = plain.view();
    }
    gpu.ops().norm_linear(gpu.context(), fused.view(), x.view(), norm, weight, fused_epilogue);
    gpu.ops().Ops::norm_linear(gpu.context(), plain.view(), x.view(), norm, weight, plain_epilogue);
    const std::vector<float> expected = plain.values();
    // Norms that were summed in another order may round an input otherwise. Weights with a minimum nearly cancel out.
    const float slack = quant_format(format).is_float ? 1.0f : 16.0f;
    // `gemv_tokens` rounds inputs times the norm's weights, and scales sums: all inputs are rounded otherwise.
    const bool scales_sums = format == FormatId::kBF16 && num_tokens <= 8;
    EXPECT_TRUE(nearly_equal(fused.values(), expected, dtype, (scales_sums ? 256.0f : slack) * largest_of(expected)));
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
      DeviceMatrix gated(gpu, dtype, num_tokens, n / 2);
      DeviceMatrix plain_gated(gpu, dtype, num_tokens, n / 2);
      gpu.ops().norm_gated_linear(gpu.context(), gated.view(), x.view(), norm, weight, bias, activation);
      gpu.ops().Ops::norm_gated_linear(gpu.context(), plain_gated.view(), x.view(), norm, weight, bias, activation);
      const std::vector<float> expected_gated = plain_gated.values();
      // Gate and up are rounded before they are multiplied: a step of each.
      const float largest = slack * largest_of(expected_gated) * std::ldexp(1.0f, 17 - mantissa_bits(dtype));
      EXPECT_TRUE(nearly_equal(gated.values(), expected_gated, dtype, largest));
    }
  }
}

TEST(CudaFused, NormAndLinear) {
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  TestRandom random(71);
  SCOPED_TRACE(random.trace());
  for (const DType dtype : kActivationDTypes) {
    const FormatId format = dtype == DType::kF32   ? FormatId::kF32
                            : dtype == DType::kF16 ? FormatId::kF16
                                                   : FormatId::kBF16;
    for (const int64_t num_tokens : {1, 2, 13, 40}) {
      for (const auto& [n, k] :
           {std::pair<int64_t, int64_t>{6144, 4096}, {28672, 192}, {1000, 576}, {66, 14336}, {130, 264}, {2, 8}}) {
        compare_linears(*gpu, random, {format, dtype, num_tokens, n, k});
        if (dtype != DType::kF32) compare_linears(*gpu, random, {format, dtype, num_tokens, n, k, true});
      }
    }
  }
}

TEST(CudaFused, NormAndIntegerLinear) {
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  TestRandom random(72);
  SCOPED_TRACE(random.trace());
  for (const FormatId format : {FormatId::kQ4_0, FormatId::kQ4_1, FormatId::kQ4_K, FormatId::kQ8_0, FormatId::kQ5_K,
                                FormatId::kQ5_1, FormatId::kIQ4_NL, FormatId::kInt4G128}) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const int64_t num_tokens : {1, 24, 100}) {
        // Few chunks of k and many, few panels and more than blocks run.
        for (const auto& [n, k] : {std::pair<int64_t, int64_t>{32, 256}, {9248, 1280}, {96, 14336}, {2144, 4096}}) {
          compare_linears(*gpu, random, {format, dtype, num_tokens, n, k});
          if (num_tokens == 1) compare_linears(*gpu, random, {format, dtype, num_tokens, n, k, true});
        }
      }
    }
  }
}

TEST(CudaFused, RopeAndWrite) {
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  TestRandom random(73);
  SCOPED_TRACE(random.trace());
  constexpr int kPages = 4;
  constexpr int kPageSize = 16;
  for (const DType dtype : kActivationDTypes) {
    for (const DType kv_dtype : {dtype, DType::kF32, DType::kF8E4M3, DType::kI8}) {
      for (const auto& [head_dim, rotary_dim] : {std::pair<int64_t, int64_t>{128, 128}, {64, 64}, {64, 32}, {24, 24}}) {
        for (const RopeStyle style : {RopeStyle::kHalves, RopeStyle::kInterleaved}) {
          SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " " << head_dim << " " << rotary_dim);
          const int64_t num_tokens = 5;
          const int64_t num_heads = 6;
          const int64_t num_kv_heads = 2;
          const int64_t width = (num_heads + 2 * num_kv_heads) * head_dim;
          const std::vector<float> qkv = round_all(dtype, random.normals(num_tokens * width));
          DeviceMatrix table(*gpu, DType::kF32, num_tokens, rotary_dim);
          table.fill(random.normals(num_tokens * rotary_dim));
          const std::vector<int64_t> slots = {3, 17, -1, 63, 0};
          const DeviceBuffer device_slots = gpu->upload(slots);
          const int64_t page_elements = 2 * num_kv_heads * kPageSize * head_dim;
          std::vector<std::vector<float>> queries;
          std::vector<std::vector<uint8_t>> pages;
          for (const bool is_fused : {true, false}) {
            DeviceMatrix both(*gpu, dtype, num_tokens, width);
            both.fill(qkv);
            const int64_t page_scales = has_kv_scales(kv_dtype) ? 2 * num_kv_heads * kPageSize : 0;
            const int64_t code_bytes = kPages * page_elements * dtype_bytes(kv_dtype);
            const std::vector<uint8_t> poison(static_cast<size_t>(code_bytes + kPages * page_scales * 2), 0x7f);
            const DeviceBuffer memory = gpu->upload(poison);
            const PagedKv kv{.k = memory.data(),
                             .v = static_cast<char*>(memory.data()) + page_elements / 2 * dtype_bytes(kv_dtype),
                             .dtype = kv_dtype,
                             .page_stride = page_elements,
                             .head_stride = kPageSize * head_dim,
                             .token_stride = head_dim,
                             .num_pages = kPages,
                             .page_size = kPageSize,
                             .num_kv_heads = static_cast<int>(num_kv_heads),
                             .head_dim = static_cast<int>(head_dim),
                             .k_scales = static_cast<char*>(memory.data()) + code_bytes,
                             .v_scales = static_cast<char*>(memory.data()) + code_bytes + page_scales,
                             .scale_page_stride = page_scales};
            const TensorView q = both.view().slice(1, 0, num_heads * head_dim).split_last_dimension(head_dim);
            const TensorView k = both.view()
                                     .slice(1, num_heads * head_dim, (num_heads + num_kv_heads) * head_dim)
                                     .split_last_dimension(head_dim);
            const TensorView v =
                both.view().slice(1, (num_heads + num_kv_heads) * head_dim, width).split_last_dimension(head_dim);
            const Ops::KvTarget target = {kv, ConstTensorView(device_slots.data(), DType::kI64, {num_tokens})};
            if (is_fused) {
              gpu->ops().rope_and_write_kv(gpu->context(), q, k, v, table.view(), style, target);
            } else {
              gpu->ops().Ops::rope_and_write_kv(gpu->context(), q, k, v, table.view(), style, target);
            }
            std::vector<float> values = both.values();
            std::vector<float>& own = queries.emplace_back();
            for (int64_t t = 0; t < num_tokens; ++t) {
              own.insert(own.end(), values.begin() + t * width, values.begin() + t * width + num_heads * head_dim);
            }
            std::vector<uint8_t>& written = pages.emplace_back(poison.size());
            gpu->ops().copy_to_host(gpu->context(), written.data(), memory.data(),
                                    static_cast<int64_t>(written.size()));
            gpu->synchronize();
          }
          EXPECT_TRUE(equal_bits(queries[0], queries[1]));
          EXPECT_TRUE(pages[0] == pages[1]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire

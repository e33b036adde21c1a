// Norms, sums, activations, rotations, gathers and page writes on the GPU: every dtype against the reference backend
// and double.
#include <functional>

#include "ops/reference/reference_ops.h"
#include "ops/tests/cuda_test_support.h"

namespace quire {
namespace {

struct Shape {
  int64_t num_rows;
  int64_t size;
  int64_t gap;
};
constexpr Shape kShapes[] = {{0, 64, 0},    {1, 1, 0},     {2, 15, 3},   {3, 16, 0},   {2, 17, 8},   {5, 100, 4},
                             {7, 1536, 16}, {33, 4096, 0}, {3, 5000, 1}, {260, 64, 0}, {2, 28672, 0}};

// Activations, and the residual stream beside them.
struct Streams {
  DType dtype;
  DType stream_dtype;
};
constexpr Streams kStreams[] = {{DType::kF32, DType::kF32},
                                {DType::kF16, DType::kF16},
                                {DType::kBF16, DType::kBF16},
                                {DType::kF16, DType::kF32},
                                {DType::kBF16, DType::kF32}};

// The plain loop in the same dtype, and the exact answer.
testing::AssertionResult judge(DType dtype, const std::vector<float>& actual, const std::vector<float>& plain,
                               const std::vector<double>& exact) {
  return kernel_is_close(actual, round_all(dtype, plain), exact, {.mantissa_bits = mantissa_bits(dtype)});
}

using Run = std::function<void(Ops& ops, OpContext& context, TensorView y, ConstTensorView a, ConstTensorView b)>;

// y and a are the residual stream, where the op takes it.
void check_binary(bool takes_stream, float scale, const Run& run,
                  const std::function<double(double, double)>& exact_of) {
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  ReferenceOps reference;
  Arena arena = make_test_arena(1024);
  OpContext context{arena};
  TestRandom random(21);
  SCOPED_TRACE(random.trace());
  for (const auto& [dtype, stream_dtype] : kStreams) {
    if (stream_dtype != dtype && !takes_stream) continue;
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " " << dtype_name(stream_dtype) << " " << shape.num_rows
                                      << " x " << shape.size);
      const std::vector<float> a = round_all(stream_dtype, random.normals(shape.num_rows * shape.size, scale));
      const std::vector<float> b = round_all(dtype, random.normals(shape.num_rows * shape.size));
      GuardedMatrix host_a(shape.num_rows, shape.size);
      GuardedMatrix host_b(shape.num_rows, shape.size);
      GuardedMatrix plain(shape.num_rows, shape.size);
      host_a.fill(a);
      host_b.fill(b);
      run(reference, context, plain.view(), host_a.view(), host_b.view());
      std::vector<double> exact;
      for (size_t i = 0; i < a.size(); ++i) exact.push_back(exact_of(double{a[i]}, double{b[i]}));

      DeviceMatrix device_a(*gpu, stream_dtype, shape.num_rows, shape.size, shape.gap);
      DeviceMatrix device_b(*gpu, dtype, shape.num_rows, shape.size);
      DeviceMatrix y(*gpu, stream_dtype, shape.num_rows, shape.size, 2 * shape.gap);
      device_a.fill(a);
      device_b.fill(b);
      run(gpu->ops(), gpu->context(), y.view(), device_a.view(), device_b.view());
      const std::vector<float> values = y.values();
      EXPECT_TRUE(judge(stream_dtype, values, plain.values(), exact));
      run(gpu->ops(), gpu->context(), device_a.view(), device_a.view(), device_b.view());
      EXPECT_TRUE(equal_bits(device_a.values(), values)) << "y is a";
    }
  }
}

TEST(CudaElementwise, Add) {
  check_binary(
      /*takes_stream=*/true, 1.0f,
      [](Ops& ops, OpContext& context, TensorView y, ConstTensorView a, ConstTensorView b) {
        ops.add(context, y, a, b);
      },
      [](double a, double b) { return a + b; });
}

TEST(CudaElementwise, Silu) {
  for (const float scale : {0.01f, 1.0f, 30.0f}) {
    check_binary(
        /*takes_stream=*/false, scale,
        [](Ops& ops, OpContext& context, TensorView y, ConstTensorView a, ConstTensorView b) {
          ops.gated_activation(context, y, a, b, Activation::kSilu);
        },
        [](double a, double b) { return a / (1 + std::exp(-a)) * b; });
  }
}

TEST(CudaElementwise, Gelu) {
  for (const float scale : {0.01f, 1.0f, 30.0f}) {
    check_binary(
        /*takes_stream=*/false, scale,
        [](Ops& ops, OpContext& context, TensorView y, ConstTensorView a, ConstTensorView b) {
          ops.gated_activation(context, y, a, b, Activation::kGeluTanh);
        },
        [](double a, double b) {
          const double u = std::sqrt(2 / 3.14159265358979323846) * (a + 0.044715 * a * a * a);
          return 0.5 * a * (1 + std::tanh(u)) * b;
        });
  }
}

TEST(CudaElementwise, SoftCap) {
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  TestRandom random(22);
  for (const float scale : {0.1f, 20.0f, 1000.0f}) {
    const std::vector<float> x = random.normals(7 * 1000, scale);
    DeviceMatrix y(*gpu, DType::kF32, 7, 1000, 5);
    y.fill(x);
    gpu->ops().soft_cap(gpu->context(), y.view(), 30.0f);
    std::vector<double> exact;
    std::vector<float> plain;
    for (const float value : x) {
      exact.push_back(30 * std::tanh(double{value} / 30));
      plain.push_back(30.0f * std::tanh(value / 30.0f));
    }
    EXPECT_TRUE(kernel_is_close(y.values(), plain, exact));
  }
}

TEST(CudaElementwise, GatherRows) {
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  TestRandom random(23);
  for (const DType dtype : kActivationDTypes) {
    const std::vector<float> x = round_all(dtype, random.normals(9 * 300));
    const std::vector<int32_t> rows = {8, 0, 3, 3};
    const DeviceBuffer device_rows = gpu->upload(rows);
    DeviceMatrix source(*gpu, dtype, 9, 300, 3);
    DeviceMatrix y(*gpu, dtype, 4, 300, 1);
    source.fill(x);
    gpu->ops().gather_rows(gpu->context(), y.view(), source.view(),
                           ConstTensorView(device_rows.data(), DType::kI32, {4}));
    std::vector<float> expected;
    for (const int32_t row : rows) expected.insert(expected.end(), x.begin() + row * 300, x.begin() + (row + 1) * 300);
    EXPECT_TRUE(equal_bits(y.values(), expected));
  }
}

std::vector<double> exact_norm(const std::vector<float>& x, const std::vector<float>& weight, float epsilon) {
  const size_t size = weight.size();
  std::vector<double> y;
  for (size_t row = 0; row < x.size(); row += size) {
    double sum = 0;
    for (size_t i = 0; i < size; ++i) sum += double{x[row + i]} * double{x[row + i]};
    const double factor = 1 / std::sqrt(sum / static_cast<double>(size) + double{epsilon});
    for (size_t i = 0; i < size; ++i) y.push_back(double{x[row + i]} * factor * double{weight[i]});
  }
  return y;
}

TEST(CudaRmsNorm, EveryShape) {
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  ReferenceOps reference;
  Arena arena = make_test_arena(1024);
  OpContext context{arena};
  TestRandom random(31);
  for (const auto& [dtype, stream_dtype] : kStreams) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " " << dtype_name(stream_dtype) << " " << shape.num_rows
                                      << " x " << shape.size);
      const std::vector<float> x = round_all(stream_dtype, random.normals(shape.num_rows * shape.size, 3.0f));
      const std::vector<float> delta = round_all(dtype, random.normals(shape.num_rows * shape.size));
      const std::vector<float> weight = random.normals(shape.size);
      const DeviceBuffer device_weight = gpu->upload(weight);
      const ConstTensorView weight_view(device_weight.data(), DType::kF32, {shape.size});
      const ConstTensorView host_weight(weight.data(), DType::kF32, {shape.size});
      const auto plain_norm = [&](const std::vector<float>& input) {
        GuardedMatrix host(shape.num_rows, shape.size);
        host.fill(input);
        reference.rms_norm(context, host.view(), host.view(), host_weight, 1e-5f);
        return host.values();
      };

      DeviceMatrix device_x(*gpu, stream_dtype, shape.num_rows, shape.size, shape.gap);
      DeviceMatrix y(*gpu, dtype, shape.num_rows, shape.size);
      device_x.fill(x);
      gpu->ops().rms_norm(gpu->context(), y.view(), device_x.view(), weight_view, 1e-5f);
      EXPECT_TRUE(judge(dtype, y.values(), plain_norm(x), exact_norm(x, weight, 1e-5f)));

      // Fused with a sum, which is rounded first.
      DeviceMatrix device_delta(*gpu, dtype, shape.num_rows, shape.size, shape.gap);
      device_delta.fill(delta);
      gpu->ops().add_rms_norm(gpu->context(), y.view(), device_x.view(), device_delta.view(), weight_view, 1e-5f);
      std::vector<float> sum = x;
      for (size_t i = 0; i < sum.size(); ++i) sum[i] = round_to(stream_dtype, x[i] + delta[i]);
      EXPECT_TRUE(equal_bits(device_x.values(), sum));
      const std::vector<float> fused = y.values();
      EXPECT_TRUE(judge(dtype, fused, plain_norm(sum), exact_norm(sum, weight, 1e-5f)));

      // By itself, and in place.
      DeviceMatrix& own_y = dtype == stream_dtype ? device_x : y;
      if (dtype != stream_dtype) y.fill(delta);
      gpu->ops().rms_norm(gpu->context(), own_y.view(), device_x.view(), weight_view, 1e-5f);
      if (shape.gap == 0) {
        EXPECT_TRUE(equal_bits(own_y.values(), fused));
      }
    }
  }
}

TEST(CudaRmsNorm, HeadsInsideWiderRows) {
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  TestRandom random(32);
  for (const DType dtype : kActivationDTypes) {
    for (const int64_t head_dim : {24, 128}) {
      const std::vector<float> x = round_all(dtype, random.normals(5 * 6 * head_dim));
      const std::vector<float> weight = random.normals(head_dim);
      const DeviceBuffer device_weight = gpu->upload(weight);
      DeviceMatrix rows(*gpu, dtype, 5, 6 * head_dim, 16);
      rows.fill(x);
      const TensorView heads = rows.heads(head_dim);
      gpu->ops().rms_norm(gpu->context(), heads, heads, ConstTensorView(device_weight.data(), DType::kF32, {head_dim}),
                          1e-6f);
      std::vector<float> plain;
      const std::vector<double> exact = exact_norm(x, weight, 1e-6f);
      for (const double value : exact) plain.push_back(static_cast<float>(value));
      EXPECT_TRUE(kernel_is_close(rows.values(), round_all(dtype, plain), exact,
                                  {.mantissa_bits = std::min(22, mantissa_bits(dtype))}));
    }
  }
}

TEST(CudaRope, BothStyles) {
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  ReferenceOps reference;
  Arena arena = make_test_arena(1024);
  OpContext context{arena};
  TestRandom random(41);
  const std::vector<int32_t> positions = {0, 1, 5, 4095, 131071};
  const int64_t num_tokens = static_cast<int64_t>(positions.size());
  for (const DType dtype : kActivationDTypes) {
    for (const auto& [head_dim, rotary_dim] : {std::pair<int64_t, int64_t>{128, 128}, {64, 16}, {7, 4}}) {
      for (const RopeStyle style : {RopeStyle::kHalves, RopeStyle::kInterleaved}) {
        SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " " << head_dim << " " << rotary_dim);
        std::vector<float> frequencies;
        for (int64_t i = 0; i < rotary_dim / 2; ++i) {
          frequencies.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(rotary_dim)));
        }
        const DeviceBuffer device_frequencies = gpu->upload(frequencies);
        const DeviceBuffer device_positions = gpu->upload(positions);
        DeviceMatrix table(*gpu, DType::kF32, num_tokens, rotary_dim, 2);
        gpu->ops().rope_table(
            gpu->context(), table.view(), ConstTensorView(device_positions.data(), DType::kI32, {num_tokens}),
            {.inverse_frequencies = ConstTensorView(device_frequencies.data(), DType::kF32, {rotary_dim / 2}),
             .attention_factor = 1.25f});
        const std::vector<float> table_values = table.values();
        std::vector<double> exact_table;
        std::vector<float> plain_table;
        for (const int32_t position : positions) {
          for (int64_t i = 0; i < rotary_dim; ++i) {
            const float angle = static_cast<float>(position) * frequencies[static_cast<size_t>(i % (rotary_dim / 2))];
            const bool is_cosine = i < rotary_dim / 2;
            exact_table.push_back(1.25 * (is_cosine ? std::cos(double{angle}) : std::sin(double{angle})));
            plain_table.push_back(1.25f * (is_cosine ? std::cos(angle) : std::sin(angle)));
          }
        }
        EXPECT_TRUE(kernel_is_close(table_values, plain_table, exact_table));

        const std::vector<float> x = round_all(dtype, random.normals(num_tokens * 3 * head_dim));
        GuardedMatrix host(num_tokens, 3 * head_dim);
        GuardedMatrix host_table(num_tokens, rotary_dim);
        host.fill(x);
        host_table.fill(table_values);
        reference.rope(context, host.view().split_last_dimension(head_dim), host_table.view(), style);
        DeviceMatrix rows(*gpu, dtype, num_tokens, 3 * head_dim, 5);
        rows.fill(x);
        gpu->ops().rope(gpu->context(), rows.heads(head_dim), table.view(), style);
        // The same products and sums, rounded once more at the end.
        EXPECT_TRUE(equal_bits(rows.values(), round_all(dtype, host.values())));
      }
    }
  }
}

TEST(CudaPages, WritesAndCopies) {
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  TestRandom random(51);
  constexpr int kHeads = 3;
  constexpr int kDim = 40;
  constexpr int kPageSize = 16;
  constexpr int kPages = 5;
  for (const DType dtype : kActivationDTypes) {
    for (const DType cache_dtype : kActivationDTypes) {
      SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " into " << dtype_name(cache_dtype));
      // A row a page: K of all heads, then V.
      DeviceMatrix pool(*gpu, cache_dtype, kPages, 2 * kHeads * kPageSize * kDim, 8);
      const std::vector<float> before = round_all(cache_dtype, random.normals(kPages * 2 * kHeads * kPageSize * kDim));
      pool.fill(before);
      PagedKv kv;
      kv.dtype = cache_dtype;
      kv.page_stride = pool.view().stride(0);
      kv.head_stride = kPageSize * kDim;
      kv.token_stride = kDim;
      kv.num_pages = kPages;
      kv.page_size = kPageSize;
      kv.num_kv_heads = kHeads;
      kv.head_dim = kDim;
      kv.k = pool.view().raw_data();
      kv.v = static_cast<char*>(kv.k) + kHeads * kv.head_stride * dtype_bytes(cache_dtype);
      const std::vector<int64_t> slots = {79, 0, -1, 17};
      const DeviceBuffer device_slots = gpu->upload(slots);
      const std::vector<float> k = round_all(dtype, random.normals(4 * kHeads * kDim));
      const std::vector<float> v = round_all(dtype, random.normals(4 * kHeads * kDim));
      DeviceMatrix device_k(*gpu, dtype, 4, kHeads * kDim, 3);
      DeviceMatrix device_v(*gpu, dtype, 4, kHeads * kDim);
      device_k.fill(k);
      device_v.fill(v);
      gpu->ops().write_kv(gpu->context(), kv, device_k.heads(kDim), device_v.heads(kDim),
                          ConstTensorView(device_slots.data(), DType::kI64, {4}));
      std::vector<float> expected = before;
      for (size_t t = 0; t < slots.size(); ++t) {
        if (slots[t] < 0) continue;
        for (int64_t h = 0; h < kHeads; ++h) {
          for (int64_t d = 0; d < kDim; ++d) {
            const int64_t at = slots[t] / kPageSize * 2 * kHeads * kPageSize * kDim +
                               (h * kPageSize + slots[t] % kPageSize) * kDim + d;
            const size_t from = t * kHeads * kDim + static_cast<size_t>(h * kDim + d);
            expected[static_cast<size_t>(at)] = round_to(cache_dtype, k[from]);
            expected[static_cast<size_t>(at + kHeads * kPageSize * kDim)] = round_to(cache_dtype, v[from]);
          }
        }
      }
      EXPECT_TRUE(equal_bits(pool.values(), expected));

      // Copies in order: page 1 goes to 2, and on to 3.
      const Ops::PageCopy copies[] = {{1, 2}, {2, 3}, {4, 4}};
      gpu->ops().copy_pages(gpu->context(), kv.k, kv.page_stride * dtype_bytes(cache_dtype), copies);
      const int64_t page = 2 * kHeads * kPageSize * kDim;
      for (const int to : {2, 3}) {
        std::copy(expected.begin() + page, expected.begin() + 2 * page, expected.begin() + to * page);
      }
      EXPECT_TRUE(equal_bits(pool.values(), expected));
    }
  }
}

TEST(CudaOps, SaysWhatIsWrong) {
  BackendOptions options;
  options.kind = BackendKind::kCuda;
  options.forced_kernels = {{"linear", "nothing"}};
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  EXPECT_EQ(CudaOps::create(options).status().code(), StatusCode::kInvalidArgument);
  const Result<DeviceBuffer> buffer = gpu->ops().allocate(int64_t{1} << 50, "a test");
  ASSERT_FALSE(buffer.is_ok());
  EXPECT_NE(buffer.status().message().find("a test"), std::string::npos);
  options.forced_kernels = {};
  options.device_index = 99;
  EXPECT_EQ(CudaOps::create(options).status().code(), StatusCode::kInvalidArgument);
  // A failed allocation leaves no error behind for the next launch.
  DeviceMatrix x(*gpu, DType::kF32, 2, 8);
  x.fill(std::vector<float>(16, 1.0f));
  gpu->ops().add(gpu->context(), x.view(), x.view(), x.view());
  EXPECT_TRUE(equal_bits(x.values(), std::vector<float>(16, 2.0f)));
}

}  // namespace
}  // namespace quire

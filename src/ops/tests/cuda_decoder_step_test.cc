// A step of one token through all layers at once, against the ops one after another and against plain loops in double.
#include <gtest/gtest.h>

#include "ops/tests/cuda_decoder_stack.h"

namespace quire {
namespace {

using Values = std::vector<double>;

// A weight as the GPU has it: its rows, taken as an embedding's.
std::vector<float> rows_of(Gpu& gpu, const Weight& weight) {
  std::vector<int32_t> ids(static_cast<size_t>(weight.n));
  std::iota(ids.begin(), ids.end(), 0);
  const DeviceBuffer device_ids = gpu.upload(ids);
  DeviceMatrix rows(gpu, DType::kF32, weight.n, weight.k);
  gpu.ops().embedding(gpu.context(), rows.view(), weight, ConstTensorView(device_ids.data(), DType::kI32, {weight.n}),
                      1.0f);
  return rows.values();
}
std::vector<float> floats_of(Gpu& gpu, const ConstTensorView& x) {
  std::vector<float> values(static_cast<size_t>(x.num_elements()));
  gpu.ops().copy_to_host(gpu.context(), values.data(), x.raw_data(), x.num_elements() * 4);
  gpu.synchronize();
  return values;
}

Values multiply(const std::vector<float>& w, const Values& x) {
  Values y(w.size() / x.size());
  for (size_t o = 0; o < y.size(); ++o) {
    for (size_t i = 0; i < x.size(); ++i) y[o] += double{w[o * x.size() + i]} * x[i];
  }
  return y;
}
Values normed(const Values& x, const std::vector<float>& weight, double epsilon) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  Values y = x;
  for (size_t i = 0; i < x.size(); ++i) {
    y[i] *= double{weight[i]} / std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
  }
  return y;
}
void rotate(const StackCase& c, const std::vector<float>& angles, double* head) {
  for (size_t i = 0; i < angles.size(); ++i) {
    const bool is_halves = c.rope_style == RopeStyle::kHalves;
    double& a = head[is_halves ? i : 2 * i];
    double& b = head[is_halves ? i + angles.size() : 2 * i + 1];
    const double cosine = double{std::cos(angles[i])};
    const double sine = double{std::sin(angles[i])};
    const double rotated = a * cosine - b * sine;
    b = b * cosine + a * sine;
    a = rotated;
  }
}
double activate(Activation activation, double x) {
  if (activation == Activation::kSilu) return x / (1 + std::exp(-x));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

// The step in double.
Values run_exactly(Gpu& gpu, const CudaDecoderStack& stack, Values x) {
  const StackCase& c = stack.stack_case();
  const size_t head_dim = static_cast<size_t>(c.head_dim);
  for (int i = 0; i < c.num_layers; ++i) {
    const StepLayer& layer = stack.layers()[static_cast<size_t>(i)];
    Values qkv = multiply(rows_of(gpu, layer.qkv), normed(x, floats_of(gpu, layer.attention_norm), 1e-5));
    for (int head = 0; head < c.num_heads + c.num_kv_heads; ++head) {
      rotate(c, stack.angles(), qkv.data() + static_cast<size_t>(head) * head_dim);
    }
    Values mixed(static_cast<size_t>(c.query_size()));
    for (int head = 0; head < c.num_heads; ++head) {
      const int kv_head = head * c.num_kv_heads / c.num_heads;
      const double* const q = qkv.data() + static_cast<size_t>(head) * head_dim;
      const auto element = [&](int key, size_t d, bool is_v) {
        if (key + 1 < c.length) {
          return double{stack.kv_values()[static_cast<size_t>(stack.kv_offset(i, key, kv_head, is_v)) + d]};
        }
        return qkv[static_cast<size_t>(c.num_heads + (is_v ? c.num_kv_heads : 0) + kv_head) * head_dim + d];
      };
      Values scores(static_cast<size_t>(c.length));
      double largest = -INFINITY;
      for (int key = 0; key < c.length; ++key) {
        double& score = scores[static_cast<size_t>(key)];
        for (size_t d = 0; d < head_dim; ++d) score += q[d] * element(key, d, false) * double{stack.scale()};
        largest = std::max(largest, score);
      }
      double weight = 0;
      for (double& score : scores) weight += score = std::exp(score - largest);
      for (int key = 0; key < c.length; ++key) {
        for (size_t d = 0; d < head_dim; ++d) {
          mixed[static_cast<size_t>(head) * head_dim + d] +=
              scores[static_cast<size_t>(key)] / weight * element(key, d, true);
        }
      }
    }
    const Values attended = multiply(rows_of(gpu, layer.output), mixed);
    for (size_t d = 0; d < x.size(); ++d) x[d] += attended[d];
    const Values gate_up = multiply(rows_of(gpu, layer.gate_up), normed(x, floats_of(gpu, layer.mlp_norm), 1e-5));
    Values gated(static_cast<size_t>(c.intermediate));
    for (size_t d = 0; d < gated.size(); ++d) {
      gated[d] = activate(c.activation, gate_up[d]) * gate_up[d + gated.size()];
    }
    const Values added = multiply(rows_of(gpu, layer.down), gated);
    for (size_t d = 0; d < x.size(); ++d) x[d] += added[d];
  }
  return x;
}

template <typename A, typename B>
double distance(const std::vector<A>& a, const std::vector<B>& b) {
  EXPECT_EQ(a.size(), b.size());
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(error / norm);
}

// Pages are as they were, bit for bit, but for the new token's rows.
void compare_pages(const CudaDecoderStack& stack, const std::vector<float>& step, const std::vector<float>& chain,
                   double tolerance) {
  const StackCase& c = stack.stack_case();
  std::vector<float> others = step;
  std::vector<float> before = stack.kv_values();
  std::vector<float> new_rows;
  std::vector<float> expected_rows;
  for (int layer = 0; layer < c.num_layers && c.is_written; ++layer) {
    for (int kv_head = 0; kv_head < c.num_kv_heads; ++kv_head) {
      for (const bool is_v : {false, true}) {
        const int64_t offset = stack.kv_offset(layer, c.length - 1, kv_head, is_v);
        for (int64_t d = offset; d < offset + c.head_dim; ++d) {
          new_rows.push_back(step[static_cast<size_t>(d)]);
          expected_rows.push_back(chain[static_cast<size_t>(d)]);
          others[static_cast<size_t>(d)] = before[static_cast<size_t>(d)] = 0;
        }
      }
    }
  }
  for (size_t i = 0; i < others.size(); ++i) {
    const bool is_equal = std::isnan(before[i]) ? std::isnan(others[i]) : others[i] == before[i];
    ASSERT_TRUE(is_equal) << "element " << i << " of the pages was " << before[i] << ", is " << others[i];
  }
  if (c.is_written) {
    const double error = distance(new_rows, expected_rows);
    EXPECT_TRUE(error <= tolerance) << "new rows of the pages: " << error;
  }
}

void check_stack(Gpu& gpu, TestRandom& random, const StackCase& c, bool is_exact, int num_runs) {
  SCOPED_TRACE(testing::Message() << quant_format(c.format).name << " " << dtype_name(c.dtype) << " hidden " << c.hidden
                                  << " " << c.intermediate << " heads " << c.num_heads << " " << c.num_kv_heads << " "
                                  << c.head_dim << " keys " << c.length << " pages of " << c.page_size);
  CudaDecoderStack stack(gpu, random, c);
  const std::vector<float> x = round_all(c.dtype, random.normals(c.hidden));
  DeviceMatrix input(gpu, c.dtype, 1, c.hidden);
  DeviceMatrix output(gpu, c.dtype, 1, c.hidden);
  DeviceMatrix chain(gpu, c.dtype, 1, c.hidden);
  input.fill(x);
  chain.fill(x);
  DeviceMatrix step_pages = stack.make_pages();
  DeviceMatrix chain_pages = stack.make_pages();
  stack.run_chain(chain.view(), chain_pages);
  ASSERT_TRUE(stack.run_step(output.view(), input.view(), step_pages));
  const std::vector<float> values = output.values();
  const std::vector<float> expected = chain.values();
  // Roundings of sums made in another order, layer after layer.
  const double tolerance = c.dtype == DType::kF16 ? 0.004 : 0.02;
  const double difference = distance(values, expected);
  if (c.is_written) {  // else the ops' attention reads what was never written
    EXPECT_TRUE(difference <= tolerance) << difference;
  }
  compare_pages(stack, step_pages.values(), chain_pages.values(), tolerance);
  if (is_exact) {
    const Values exact = run_exactly(gpu, stack, Values(x.begin(), x.end()));
    const double own = distance(values, exact);
    const double plain = c.is_written ? distance(expected, exact) : tolerance / 4;
    EXPECT_TRUE(own <= 2 * plain + std::ldexp(1.0, -mantissa_bits(c.dtype))) << own << " where the ops have " << plain;
  }
  // A race would show: the same step again, the same bits.
  for (int run = 0; run < num_runs; ++run) {
    output.fill(std::vector<float>(static_cast<size_t>(c.hidden), std::numeric_limits<float>::quiet_NaN()));
    ASSERT_TRUE(stack.run_step(output.view(), input.view(), step_pages));
    ASSERT_TRUE(equal_bits(output.values(), values)) << "run " << run;
  }
  EXPECT_TRUE(equal_bits(input.values(), x));
}

std::unique_ptr<Gpu> make_gpu(bool is_f8) {
  return Gpu::create({{"decoder_step", "on"}}, Compute::kAuto,
                     is_f8 ? WeightQuantization::kF8 : WeightQuantization::kNone);
}

TEST(CudaDecoderStep, SmallStacks) {
  for (const bool is_f8 : {false, true}) {
    const std::unique_ptr<Gpu> gpu = make_gpu(is_f8);
    SKIP_WITHOUT_GPU(gpu);
    TestRandom random(91);
    SCOPED_TRACE(random.trace());
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      StackCase c{.format = dtype == DType::kBF16 ? FormatId::kBF16 : FormatId::kF16, .dtype = dtype};
      for (const int length : {1, 2, 16, 17, 40, 255, 512, 513, 700}) {
        c.length = length;
        check_stack(*gpu, random, c, true, 3);
      }
      // Other shapes: few rows and many, one query head a KV head and eight, larger pages, no slot.
      check_stack(*gpu, random,
                  {.format = c.format,
                   .dtype = dtype,
                   .num_layers = 3,
                   .hidden = 576,
                   .intermediate = 1536,
                   .num_heads = 9,
                   .num_kv_heads = 3,
                   .head_dim = 64,
                   .length = 77,
                   .page_size = 64,
                   .rope_style = RopeStyle::kInterleaved},
                  true, 3);
      check_stack(*gpu, random,
                  {.format = c.format,
                   .dtype = dtype,
                   .num_layers = 1,
                   .hidden = 1040,
                   .intermediate = 2064,
                   .num_heads = 8,
                   .num_kv_heads = 1,
                   .head_dim = 128,
                   .length = 1300,
                   .page_size = 32,
                   .activation = Activation::kGeluTanh},
                  true, 3);
      check_stack(*gpu, random,
                  {.format = c.format,
                   .dtype = dtype,
                   .hidden = 272,
                   .intermediate = 528,
                   .num_heads = 5,
                   .num_kv_heads = 5,
                   .head_dim = 128,
                   .length = 33,
                   .page_size = 128,
                   .is_written = false},
                  true, 3);
    }
  }
}

TEST(CudaDecoderStep, IntegerStacks) {
  const std::unique_ptr<Gpu> gpu = make_gpu(false);
  SKIP_WITHOUT_GPU(gpu);
  TestRandom random(95);
  SCOPED_TRACE(random.trace());
  for (const FormatId format : {FormatId::kInt4G128, FormatId::kQ4_0, FormatId::kQ4_K}) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const int length : {5, 300, 600}) {
        // Fewer chunks of k than warps, and more.
        check_stack(*gpu, random,
                    {.format = format,
                     .dtype = dtype,
                     .hidden = 512,
                     .intermediate = length == 5 ? 4608 : 768,
                     .num_heads = 4,
                     .num_kv_heads = 2,
                     .head_dim = 128,
                     .length = length},
                    true, 3);
      }
    }
    check_stack(*gpu, random,
                {.format = format,
                 .num_layers = 3,
                 .hidden = 4096,
                 .intermediate = 14336,
                 .num_heads = 32,
                 .num_kv_heads = 8,
                 .head_dim = 128,
                 .length = 100},
                false, 20);
  }
}

TEST(CudaDecoderStep, ManyKeys) {
  const std::unique_ptr<Gpu> gpu = make_gpu(false);
  SKIP_WITHOUT_GPU(gpu);
  TestRandom random(92);
  SCOPED_TRACE(random.trace());
  for (const int length : {4096, 4097, 9000}) {
    check_stack(*gpu, random, {.num_layers = 1, .num_heads = 8, .num_kv_heads = 2, .head_dim = 128, .length = length},
                true, 3);
  }
}

TEST(CudaDecoderStep, LargeStacks) {
  for (const bool is_f8 : {false, true}) {
    const std::unique_ptr<Gpu> gpu = make_gpu(is_f8);
    SKIP_WITHOUT_GPU(gpu);
    TestRandom random(93);
    SCOPED_TRACE(random.trace());
    for (const int length : {100, 1100}) {
      check_stack(*gpu, random,
                  {.num_layers = 3,
                   .hidden = 4096,
                   .intermediate = 14336,
                   .num_heads = 32,
                   .num_kv_heads = 8,
                   .head_dim = 128,
                   .length = length},
                  false, 50);
    }
  }
}

// What the kernel does not take is refused before anything is done.
TEST(CudaDecoderStep, Refusals) {
  const std::unique_ptr<Gpu> gpu = make_gpu(false);
  SKIP_WITHOUT_GPU(gpu);
  TestRandom random(94);
  const auto is_taken = [&](const StackCase& c) {
    CudaDecoderStack stack(*gpu, random, c);
    DeviceMatrix x(*gpu, c.dtype, 1, c.hidden);
    DeviceMatrix y(*gpu, c.dtype, 1, c.hidden);
    DeviceMatrix pages = stack.make_pages();
    x.fill(round_all(c.dtype, random.normals(c.hidden)));
    const bool taken = stack.run_step(y.view(), x.view(), pages);
    gpu->synchronize();
    return taken;
  };
  EXPECT_TRUE(is_taken({}));
  EXPECT_FALSE(is_taken({.format = FormatId::kF32, .dtype = DType::kF32}));
  EXPECT_FALSE(is_taken({.format = FormatId::kF16}));
  EXPECT_FALSE(is_taken({.hidden = 264}));
  EXPECT_FALSE(is_taken({.num_heads = 9, .num_kv_heads = 1}));
  EXPECT_FALSE(is_taken({.head_dim = 96}));
}

// Who asks for nothing gets the kernel with e4m3 weights; not who asks for other kernels, or for one order of sums.
TEST(CudaDecoderStep, IsTakenForE4m3) {
  const auto is_taken = [](const std::map<std::string, std::string>& forced, WeightQuantization quantization,
                           bool is_strict = false) {
    const std::unique_ptr<Gpu> gpu = Gpu::create(forced, Compute::kAuto, quantization, is_strict);
    if (gpu == nullptr) return false;
    TestRandom random(96);
    CudaDecoderStack stack(*gpu, random, {});
    DeviceMatrix x(*gpu, DType::kBF16, 1, stack.stack_case().hidden);
    DeviceMatrix y(*gpu, DType::kBF16, 1, stack.stack_case().hidden);
    DeviceMatrix pages = stack.make_pages();
    x.fill(round_all(DType::kBF16, random.normals(stack.stack_case().hidden)));
    const bool taken = stack.run_step(y.view(), x.view(), pages);
    gpu->synchronize();
    return taken;
  };
  SKIP_WITHOUT_GPU(Gpu::create());
  EXPECT_TRUE(is_taken({}, WeightQuantization::kF8));
  EXPECT_TRUE(is_taken({{"decoder_step", "on"}}, WeightQuantization::kF8));
  EXPECT_TRUE(is_taken({{"decoder_step", "on"}, {"linear", "gemv"}}, WeightQuantization::kNone));
  EXPECT_FALSE(is_taken({}, WeightQuantization::kNone));
  EXPECT_FALSE(is_taken({{"decoder_step", "off"}}, WeightQuantization::kF8));
  EXPECT_FALSE(is_taken({{"linear", "gemv"}}, WeightQuantization::kF8));
  EXPECT_FALSE(is_taken({}, WeightQuantization::kF8, /*is_strict=*/true));
}

// Blocks tell one another results that are no numbers too; and nothing of them is left for the next step. A recorded
// step gives the same bits.
TEST(CudaDecoderStep, NoNumbersAndRecordings) {
  for (const bool is_f8 : {true, false}) {
    const std::unique_ptr<Gpu> gpu = make_gpu(is_f8);
    SKIP_WITHOUT_GPU(gpu);
    TestRandom random(97);
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      const StackCase c{.format = dtype == DType::kBF16 ? FormatId::kBF16 : FormatId::kF16,
                        .dtype = dtype,
                        .num_layers = 5,
                        .length = 600};
      CudaDecoderStack stack(*gpu, random, c);
      DeviceMatrix x(*gpu, dtype, 1, c.hidden);
      DeviceMatrix y(*gpu, dtype, 1, c.hidden);
      DeviceMatrix pages = stack.make_pages();
      std::vector<float> values = round_all(dtype, random.normals(c.hidden));
      x.fill(values);
      ASSERT_TRUE(stack.run_step(y.view(), x.view(), pages));
      const std::vector<float> expected = y.values();
      std::vector<float> broken = values;
      broken[3] = std::numeric_limits<float>::quiet_NaN();
      broken[7] = -std::numeric_limits<float>::quiet_NaN();
      x.fill(broken);
      ASSERT_TRUE(stack.run_step(y.view(), x.view(), pages));
      for (const float value : y.values()) ASSERT_TRUE(std::isnan(value));
      x.fill(values);
      gpu->ops().begin_recording(gpu->context());
      ASSERT_TRUE(stack.run_step(y.view(), x.view(), pages));
      const std::unique_ptr<Ops::Recording> recording = gpu->ops().end_recording(gpu->context());
      for (int run = 0; run < 3; ++run) {
        y.fill(std::vector<float>(static_cast<size_t>(c.hidden)));
        gpu->ops().replay(gpu->context(), *recording);
        EXPECT_TRUE(equal_bits(y.values(), expected)) << "run " << run;
      }
    }
  }
}

}  // namespace
}  // namespace quire

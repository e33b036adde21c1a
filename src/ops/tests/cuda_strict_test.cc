// A backend that is asked for it gives a token the same bits whatever stands beside it: linear layers of every kind of
// weight among 1 to hundreds of tokens, plain and fused, and queries of attention in every division of their prompt.
#include <cmath>
#include <cstring>

#include "ops/tests/cuda_device_problem.h"
#include "ops/tests/cuda_test_support.h"
#include "quant/dequantize.h"

namespace quire {
namespace {

std::unique_ptr<Gpu> create_strict(WeightQuantization quantization = WeightQuantization::kNone) {
  return Gpu::create({}, Compute::kAuto, quantization, /*is_strict=*/true);
}

struct LinearKind {
  FormatId format;
  DType dtype;
  int64_t n;
  int64_t k;
  int64_t num_tokens = 300;  // the most
  double tolerance = 1e-5;   // of the whole, relative: what is multiplied has been rounded
  WeightQuantization quantization = WeightQuantization::kNone;

  bool is_fused = false;  // many rows, and yet with the norm before and the gate behind

  bool has_fused_forms() const { return n <= 1000 || is_fused; }

  std::string text() const {
    const char* const quantized = quantization == WeightQuantization::kF8   ? " as e4m3"
                                  : quantization == WeightQuantization::kI8 ? " as int8"
                                                                            : "";
    return std::string(quant_format(format).name) + quantized + " x " + std::string(dtype_name(dtype)) + " n " +
           std::to_string(n) + " k " + std::to_string(k);
  }
};

std::vector<LinearKind> linear_kinds() {
  constexpr double kOfBf16 = 3e-3;
  constexpr WeightQuantization kF8 = WeightQuantization::kF8;
  constexpr WeightQuantization kI8 = WeightQuantization::kI8;
  const FormatId bf16 = FormatId::kBF16;
  const DType x = DType::kBF16;
  std::vector<LinearKind> kinds = {
      // k that does and does not divide into boxes; tiles of 16 to 112 rows, several a block; tiles of 256
      // tokens; cuBLASLt where it has the same bits.
      {bf16, x, 160, 200},
      {bf16, x, 176, 4104},
      {bf16, x, 4096, 2048},
      {bf16, x, 6144, 512},
      {bf16, x, 8192, 136},
      {bf16, x, 12000, 192, 130},
      {bf16, x, 16928, 256, 520},
      {bf16, x, 25000, 128, 130},
      {bf16, x, 28672, 256, 130},
      {bf16, x, 34000, 320, 130},
      {FormatId::kF16, DType::kF16, 176, 4104},
      // Norms of 4, 11 and 16 warps; gates of every number of rows a tile.
      {bf16, x, 160, 1024},
      {FormatId::kF16, DType::kF16, 672, 2816},
      {bf16, x, 176, 4096},
      {.format = bf16, .dtype = x, .n = 6144, .k = 1280, .num_tokens = 70, .is_fused = true},
      {.format = bf16, .dtype = x, .n = 28672, .k = 1024, .num_tokens = 20, .is_fused = true},
      {.format = bf16, .dtype = x, .n = 34048, .k = 1024, .num_tokens = 20, .is_fused = true},
      {bf16, x, 160, 208, 300, 0.05, kF8},
      {bf16, x, 176, 4112, 300, 0.05, kF8},
      {bf16, x, 4096, 2048, 300, 0.05, kF8},
      {bf16, x, 176, 1040, 300, 0.03, kI8},
      {bf16, x, 176, 128, 300, 0.03, kI8},
      {bf16, x, 4096, 2048, 300, 0.03, kI8},
      {FormatId::kInt4G128, DType::kF16, 160, 1280, 300, 1e-3},
      // Formats and shapes that have no kernel of their own.
      {FormatId::kQ4_1, x, 96, 576},
      {FormatId::kQ5_K, x, 64, 512},
      {FormatId::kQ4_0, x, 96, 288},
      {FormatId::kQ4_0, DType::kF16, 96, 512},
      {bf16, x, 33, 200, 100},
      {bf16, DType::kF32, 40, 520, 100},
      {FormatId::kQ8_0, DType::kF32, 40, 512, 100},
      {bf16, DType::kF32, 64, 512, 100, 0.03, kF8},
  };
  for (const FormatId format :
       {FormatId::kQ4_0, FormatId::kQ4_K, FormatId::kQ6_K, FormatId::kQ8_0, FormatId::kInt4G128}) {
    kinds.push_back({format, x, 160, 1280, 300, kOfBf16});
    kinds.push_back({format, x, 4096, 2048, 300, kOfBf16});
  }
  return kinds;
}

enum class Form { kPlain, kResidual, kNorm, kGated, kNormGated };

// A weight with inputs, whose rows are multiplied in groups.
class StrictLinear {
 public:
  StrictLinear(Gpu& gpu, const LinearKind& kind, uint64_t seed) : gpu_(gpu), kind_(kind) {
    TestRandom random(seed);
    file_ = make_file_weight(random, kind.format, kind.n, kind.k);
    packed_ = gpu.ops().pack(file_.weight).value();
    x_ = round_all(kind.dtype, random.normals(kind.num_tokens * kind.k));
    residual_ = round_all(kind.dtype, random.normals(kind.num_tokens * kind.n));
    norm_ = gpu.upload(random.normals(kind.k));
    bias_ = gpu.upload(random.normals(kind.n, 0.1f));
    gpu.synchronize();
  }

  // Tokens [first, first + count). Plain ones of y_dtype, with bias and residual where y is of the activations' dtype;
  // or with a residual alone, which is y itself, or as layers have it: in floats, elsewhere. What is normed is the
  // residual stream.
  std::vector<float> run(Form form, DType y_dtype, int64_t first, int64_t count) {
    const bool is_gated = form == Form::kGated || form == Form::kNormGated;
    const bool is_normed = form == Form::kNorm || form == Form::kNormGated;
    const int64_t num_outputs = is_gated ? kind_.n / 2 : kind_.n;
    DeviceMatrix x(gpu_, is_normed ? gpu_.ops().residual_dtype(kind_.dtype) : kind_.dtype, count, kind_.k, 8);
    DeviceMatrix y(gpu_, y_dtype, count, num_outputs, 8);
    x.fill(rows_of(x_, kind_.k, first, count));
    InputNorm norm;
    if (is_normed) norm = {ConstTensorView(norm_.data(), DType::kF32, {kind_.k}), 1e-5f, kind_.dtype};
    const ConstTensorView bias(bias_.data(), DType::kF32, {kind_.n});
    Epilogue epilogue;
    if (y_dtype == kind_.dtype && !is_gated) {
      epilogue = {.bias = form == Form::kResidual ? ConstTensorView() : bias, .residual = y.view()};
      y.fill(rows_of(residual_, kind_.n, first, count));
    }
    DeviceMatrix stream(gpu_, y_dtype, count, kind_.n, 16);
    if (y_dtype != kind_.dtype && form == Form::kResidual) {
      epilogue = {.bias = {}, .residual = stream.view()};
      stream.fill(rows_of(residual_, kind_.n, first, count));
    }
    if (is_gated) {
      gpu_.ops().norm_gated_linear(gpu_.context(), y.view(), x.view(), norm, packed_, bias, Activation::kSilu);
    } else if (is_normed) {
      gpu_.ops().norm_linear(gpu_.context(), y.view(), x.view(), norm, packed_, epilogue);
    } else {
      gpu_.ops().linear(gpu_.context(), y.view(), x.view(), packed_, epilogue);
    }
    return y.values();
  }

  // Of some tokens and outputs, without bias.
  double error(const std::vector<float>& y) const {
    std::vector<float> w(static_cast<size_t>(kind_.n * kind_.k));
    dequantize_row(kind_.format, file_.bytes.data(), w.data(), kind_.n * kind_.k);
    double errors = 0;
    double squares = 0;
    const int64_t token_step = std::max<int64_t>(1, kind_.num_tokens / 10);
    const int64_t output_step = std::max<int64_t>(1, kind_.n / 200);
    for (int64_t t = 0; t < kind_.num_tokens; t += token_step) {
      for (int64_t o = 0; o < kind_.n; o += output_step) {
        double sum = 0;
        for (int64_t i = 0; i < kind_.k; ++i) {
          sum += double{x_[static_cast<size_t>(t * kind_.k + i)]} * double{w[static_cast<size_t>(o * kind_.k + i)]};
        }
        errors += std::pow(double{y[static_cast<size_t>(t * kind_.n + o)]} - sum, 2);
        squares += sum * sum;
      }
    }
    return std::sqrt(errors / squares);
  }

  static std::vector<float> rows_of(const std::vector<float>& all, int64_t size, int64_t first, int64_t count) {
    return {all.begin() + first * size, all.begin() + (first + count) * size};
  }

 private:
  Gpu& gpu_;
  LinearKind kind_;
  FileWeight file_;
  Weight packed_;
  std::vector<float> x_;
  std::vector<float> residual_;
  DeviceBuffer norm_;
  DeviceBuffer bias_;
};

testing::AssertionResult same_bits(const std::vector<float>& got, const std::vector<float>& whole, int64_t first_row,
                                   int64_t size) {
  const float* const expected = whole.data() + first_row * size;
  if (std::memcmp(got.data(), expected, got.size() * sizeof(float)) == 0) return testing::AssertionSuccess();
  int64_t num_other = 0;
  int64_t first_other = -1;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &expected[i], sizeof(float)) == 0) continue;
    ++num_other;
    if (first_other < 0) first_other = static_cast<int64_t>(i);
  }
  return testing::AssertionFailure() << num_other << " of " << got.size() << " differ, the first in row "
                                     << first_other / size << " column " << first_other % size << ": "
                                     << got[static_cast<size_t>(first_other)] << " and "
                                     << expected[static_cast<size_t>(first_other)];
}

class CudaStrictLinear : public testing::TestWithParam<size_t> {};

TEST_P(CudaStrictLinear, TheNumberOfTokensChangesNoBit) {
  const LinearKind kind = linear_kinds()[GetParam()];
  const std::unique_ptr<Gpu> gpu = create_strict(kind.quantization);
  SKIP_WITHOUT_GPU(gpu);
  SCOPED_TRACE(kind.text());
  StrictLinear linear(*gpu, kind, 100 + GetParam());
  std::vector<Form> forms = {Form::kPlain, Form::kResidual};
  if (kind.has_fused_forms()) {
    forms.push_back(Form::kNorm);
    if (kind.n % 2 == 0) forms.insert(forms.end(), {Form::kGated, Form::kNormGated});
  }
  for (const Form form : forms) {
    for (const DType y_dtype : {kind.dtype, DType::kF32}) {
      const bool is_gated = form == Form::kGated || form == Form::kNormGated;
      if (is_gated && y_dtype != kind.dtype) continue;
      SCOPED_TRACE(testing::Message() << "form " << static_cast<int>(form) << " to " << dtype_name(y_dtype));
      const int64_t size = is_gated ? kind.n / 2 : kind.n;
      const std::vector<float> whole = linear.run(form, y_dtype, 0, kind.num_tokens);
      for (const float value : whole) ASSERT_TRUE(std::isfinite(value));
      if (form == Form::kPlain && y_dtype == DType::kF32 && kind.dtype != DType::kF32) {
        EXPECT_LE(linear.error(whole), kind.tolerance);
      }
      for (const int64_t count : {1, 2, 7, 8, 9, 16, 17, 33, 64, 65, 128, 130, 256, 257}) {
        if (count > kind.num_tokens) break;
        for (const int64_t first : {int64_t{0}, kind.num_tokens - count, (kind.num_tokens - count) / 2}) {
          EXPECT_TRUE(same_bits(linear.run(form, y_dtype, first, count), whole, first, size))
              << count << " tokens from " << first;
        }
      }
      EXPECT_TRUE(same_bits(linear.run(form, y_dtype, 0, kind.num_tokens), whole, 0, size)) << "the second time";
    }
  }
}

// Bits do not tell whether the gated activation was in the product: the memory does that gate and up would take.
TEST(CudaStrict, TheGateStaysInTheProductBehindANorm) {
  for (const FormatId format : {FormatId::kBF16, FormatId::kQ4_K}) {
    for (const int64_t num_tokens : {1, 8, 70}) {
      const std::unique_ptr<Gpu> gpu = create_strict();
      SKIP_WITHOUT_GPU(gpu);
      SCOPED_TRACE(testing::Message() << quant_format(format).name << " " << num_tokens << " tokens");
      Weight shape;
      shape.format = format;
      shape.n = 8192;
      shape.k = 1024;
      const Weight weight = gpu->ops().make_random_weight(shape, 3).value();
      const DeviceBuffer norm = gpu->upload(std::vector<float>(static_cast<size_t>(shape.k), 1.0f));
      DeviceMatrix x(*gpu, gpu->ops().residual_dtype(DType::kBF16), num_tokens, shape.k);
      x.fill(std::vector<float>(static_cast<size_t>(num_tokens * shape.k), 1.0f));
      DeviceMatrix y(*gpu, DType::kBF16, num_tokens, shape.n / 2);
      const InputNorm input_norm{ConstTensorView(norm.data(), DType::kF32, {shape.k}), 1e-5f, DType::kBF16};
      gpu->ops().norm_gated_linear(gpu->context(), y.view(), x.view(), input_norm, weight, {}, Activation::kSilu);
      gpu->synchronize();
      EXPECT_LT(gpu->context().scratch.peak_bytes(), num_tokens * shape.n * dtype_bytes(DType::kBF16));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, CudaStrictLinear, testing::Range(size_t{0}, linear_kinds().size()));

struct AttentionKind {
  DType dtype;
  DType cache_dtype;
  int head_dim;
  AttentionParams params;
};

std::vector<AttentionKind> attention_kinds() {
  std::vector<AttentionKind> kinds;
  for (const int head_dim : {64, 128}) {
    for (const DType cache_dtype : {DType::kBF16, DType::kF8E4M3, DType::kI8}) {
      kinds.push_back({DType::kBF16, cache_dtype, head_dim, {.scale = 0.1f}});
    }
  }
  kinds.push_back({DType::kBF16, DType::kBF16, 128, {.scale = 0.1f, .window = 150}});
  kinds.push_back({DType::kBF16, DType::kF8E4M3, 128, {.scale = 0.1f, .soft_cap = 10.0f, .window = 150}});
  kinds.push_back({DType::kF16, DType::kF16, 96, {.scale = 0.1f}});
  kinds.push_back({DType::kBF16, DType::kBF16, 256, {.scale = 0.0625f}});
  kinds.push_back({DType::kF32, DType::kF32, 64, {.scale = 0.1f}});     // rows for any shape
  kinds.push_back({DType::kBF16, DType::kBF16, 136, {.scale = 0.1f}});  // for decode
  return kinds;
}

class CudaStrictAttention : public testing::TestWithParam<size_t> {
 protected:
  // A sequence in some step.
  struct Part {
    AttentionSequence sequence;
    bool is_prompt;
  };

  std::vector<float> run(Gpu& gpu, const std::vector<Part>& parts, int page_size) {
    const AttentionKind kind = attention_kinds()[GetParam()];
    AttentionCase attention_case{.num_heads = 8,
                                 .num_kv_heads = 2,
                                 .head_dim = kind.head_dim,
                                 .page_size = page_size,
                                 .dtype = kind.cache_dtype,
                                 .query_dtype = kind.dtype,
                                 .params = kind.params,
                                 .sequences = {}};
    std::vector<uint8_t> is_prompt;
    for (const Part& part : parts) {
      attention_case.sequences.push_back(part.sequence);
      is_prompt.push_back(part.is_prompt ? 1 : 0);
    }
    AttentionProblem problem(attention_case);
    return DeviceProblem(gpu, problem, kind.dtype, 8, is_prompt).run();
  }
};

TEST_P(CudaStrictAttention, ADivisionOfThePromptChangesNoBit) {
  const std::unique_ptr<Gpu> gpu = create_strict();
  SKIP_WITHOUT_GPU(gpu);
  const int64_t size = 8 * attention_kinds()[GetParam()].head_dim;
  constexpr int kLength = 420;
  const std::vector<float> whole = run(*gpu, {{{1, kLength, kLength}, true}}, 16);
  for (const float value : whole) ASSERT_TRUE(std::isfinite(value));
  for (const int page_size : {16, 64}) {
    for (const int length : {1, 3, 64, 127, 128, 200}) {
      for (const int begin : {0, 1, 63, 130, 219, kLength - length}) {
        SCOPED_TRACE(testing::Message() << length << " from " << begin << ", pages of " << page_size);
        const Part chunk = {{1, length, begin + length}, true};
        EXPECT_TRUE(same_bits(run(*gpu, {chunk}, page_size), whole, begin, size)) << "alone";
        const std::vector<float> among =
            run(*gpu, {{{2, 1, 300}, false}, {{3, 40, 90}, true}, chunk, {{4, 1, 70}, true}, {{5, 1, 2}, false}},
                page_size);
        const std::vector<float> own(among.begin() + 41 * size, among.begin() + (41 + length) * size);
        EXPECT_TRUE(same_bits(own, whole, begin, size)) << "among others";
      }
    }
  }
}

// Drawn tokens that are computed again come as several sequences of one query.
TEST_P(CudaStrictAttention, DrawnTokensTogetherAndEachAlone) {
  const std::unique_ptr<Gpu> gpu = create_strict();
  SKIP_WITHOUT_GPU(gpu);
  const int64_t size = 8 * attention_kinds()[GetParam()].head_dim;
  std::vector<Part> all = {{{1, 200, 300}, true}};
  for (int i = 0; i < 20; ++i) all.push_back({{1, 1, 501 + i}, false});
  const std::vector<float> together = run(*gpu, all, 16);
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(same_bits(run(*gpu, {all[static_cast<size_t>(1 + i)]}, 32), together, 200 + i, size)) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, CudaStrictAttention, testing::Range(size_t{0}, attention_kinds().size()));

TEST(CudaStrict, RowsThatWouldBreakItAreRefused) {
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  for (const auto& [op, row] : std::vector<std::pair<std::string, std::string>>{
           {"linear", "gemv"}, {"attention", "prefill_wgmma"}, {"decoder_step", "on"}}) {
    BackendOptions options{.kind = BackendKind::kCuda};
    options.is_strict = true;
    options.forced_kernels[op] = row;
    const Status status = CudaOps::create(options).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("--sameness strict"), std::string::npos) << status.message();
  }
  BackendOptions options{.kind = BackendKind::kCuda};
  options.is_strict = true;
  EXPECT_NE(CudaOps::create(options).value()->numerics(), gpu->ops().numerics());
}

}  // namespace
}  // namespace quire

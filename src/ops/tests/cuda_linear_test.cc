// Linear layers on the GPU: every row that accepts a call, every weight format and activation dtype, against float64
// and the plain float loop; rows of order `decode` give a token the same bits whatever stands beside it.
#include "ops/cuda/linear.h"

#include "ops/reference/reference_ops.h"
#include "ops/tests/cuda_test_support.h"
#include "quant/dequantize.h"

namespace quire {
namespace {

std::vector<float> dequantize_file(const FileWeight& file) {
  const QuantFormat& quant = file.weight.quant();
  const size_t num_blocks = file.bytes.size() / static_cast<size_t>(quant.bytes_per_block);
  std::vector<float> values(num_blocks * static_cast<size_t>(quant.values_per_block));
  dequantize_row(quant.id, file.bytes.data(), values.data(), static_cast<int64_t>(values.size()));
  return values;
}

struct Case {
  FormatId format;
  DType dtype;
  int64_t num_tokens;
  int64_t n;
  int64_t k;
  DType y_dtype;
  bool has_bias = false;
  bool has_residual = false;
  int64_t gap = 0;

  std::string text() const {
    return std::string(quant_format(format).name) + " x " + std::string(dtype_name(dtype)) + " y " +
           std::string(dtype_name(y_dtype)) + " tokens " + std::to_string(num_tokens) + " n " + std::to_string(n) +
           " k " + std::to_string(k) + (has_bias ? " bias" : "") + (has_residual ? " residual" : "");
  }
};

// The plain loop's error is taken over at least so many outputs: a single one may be right by luck.
constexpr int64_t kMinJudgedOutputs = 64;

// A backend for each row.
class CudaLinearTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const KernelRow<cuda::LinearCall>& row : cuda::linear_rows()) {
      gpus_.push_back(Gpu::create({{"linear", std::string(row.name)}}));
      SKIP_WITHOUT_GPU(gpus_.back());
    }
  }

  struct Inputs {
    FileWeight file;
    Weight packed;
    DeviceBuffer bias;
    std::vector<float> bias_values;
    std::vector<float> x;
    std::vector<float> residual;
  };

  Inputs make_inputs(const Case& c, uint64_t seed) {
    TestRandom random(seed);
    Inputs inputs;
    inputs.file = make_file_weight(random, c.format, std::max(c.n, kMinJudgedOutputs), c.k);
    inputs.file.weight.n = c.n;
    Result<Weight> packed = gpus_.front()->ops().pack(inputs.file.weight);
    EXPECT_TRUE(packed.is_ok());
    inputs.packed = packed.value();
    inputs.x = round_all(c.dtype, random.normals(c.num_tokens * c.k));
    // What cuBLASLt adds has been rounded to y's dtype.
    inputs.bias_values = round_all(DType::kBF16, random.normals(c.n));
    inputs.bias = gpus_.front()->upload(inputs.bias_values);
    inputs.residual = round_all(c.y_dtype, random.normals(c.num_tokens * c.n));
    return inputs;
  }

  // Whether the forced row takes the call; y is the residual where there is one.
  std::vector<float> run(const Case& c, const Inputs& inputs, Gpu& gpu) {
    DeviceMatrix x(gpu, c.dtype, c.num_tokens, c.k, c.gap);
    DeviceMatrix y(gpu, c.y_dtype, c.num_tokens, c.n, c.gap);
    x.fill(inputs.x);
    Epilogue epilogue;
    if (c.has_bias) epilogue.bias = ConstTensorView(inputs.bias.data(), DType::kF32, {c.n});
    if (c.has_residual) {
      y.fill(inputs.residual);
      epilogue.residual = y.view();
    }
    gpu.ops().linear(gpu.context(), y.view(), x.view(), inputs.packed, epilogue);
    EXPECT_TRUE(x.values() == inputs.x);
    return y.values();
  }

  bool accepts(const KernelRow<cuda::LinearCall>& row, const Case& c, const Inputs& inputs, Gpu& gpu) {
    DeviceMatrix x(gpu, c.dtype, c.num_tokens, c.k, c.gap);
    DeviceMatrix y(gpu, c.y_dtype, c.num_tokens, c.n, c.gap);
    Epilogue epilogue;
    if (c.has_bias) epilogue.bias = ConstTensorView(inputs.bias.data(), DType::kF32, {c.n});
    if (c.has_residual) epilogue.residual = y.view();
    return row.accepts({.stream = nullptr,
                        .library = gpu.ops().linear_library(),
                        .compute = Compute::kAuto,
                        .y = y.view(),
                        .x = x.view(),
                        .weight = inputs.packed,
                        .epilogue = epilogue});
  }

  void judge(const Case& c, uint64_t seed) {
    SCOPED_TRACE(c.text() + " seed " + std::to_string(seed));
    const Inputs inputs = make_inputs(c, seed);
    const std::vector<float> w = dequantize_file(inputs.file);
    std::vector<double> exact;         // of the outputs that the call has
    std::vector<double> judged_exact;  // of all
    std::vector<float> judged_plain;
    // What rounding each weight to the activations' dtype may change, for the row that dequantizes first.
    double largest_weight_rounding = 0;
    double largest_partial = 0;
    const int64_t num_judged = std::max(c.n, kMinJudgedOutputs);
    for (int64_t t = 0; t < c.num_tokens; ++t) {
      for (int64_t o = 0; o < num_judged; ++o) {
        double sum = 0;
        double squares = 0;
        float plain_sum = 0;
        for (int64_t i = 0; i < c.k; ++i) {
          const float x = inputs.x[static_cast<size_t>(t * c.k + i)];
          const float weight = w[static_cast<size_t>(o * c.k + i)];
          sum += double{x} * double{weight};
          plain_sum += x * weight;
          squares += std::pow(double{x} * double{weight - round_to(c.dtype, weight)}, 2);
          largest_partial = std::fmax(largest_partial, std::fabs(sum));
        }
        const float bias = c.has_bias && o < c.n ? inputs.bias_values[static_cast<size_t>(o)] : 0;
        const float residual = c.has_residual && o < c.n ? inputs.residual[static_cast<size_t>(t * c.n + o)] : 0;
        sum += double{bias} + double{residual};
        judged_exact.push_back(sum);
        judged_plain.push_back(round_to(c.y_dtype, (plain_sum + bias) + residual));
        if (o < c.n) exact.push_back(sum);
        largest_weight_rounding = std::fmax(largest_weight_rounding, 6 * std::sqrt(squares));
      }
    }
    const double tolerance = kernel_tolerance(
        judged_plain, judged_exact, {.mantissa_bits = mantissa_bits(c.y_dtype), .largest_partial = largest_partial});
    // cuBLASLt adds bias and residual in y's dtype before the product.
    const double two_roundings = c.has_bias ? 8 * std::ldexp(1.0, -mantissa_bits(c.y_dtype)) : 0;
    for (size_t r = 0; r < gpus_.size(); ++r) {
      const KernelRow<cuda::LinearCall>& row = cuda::linear_rows()[r];
      Gpu& gpu = *gpus_[r];
      if (!accepts(row, c, inputs, gpu)) continue;
      SCOPED_TRACE(std::string(row.name));
      ++num_runs_[r];
      const std::vector<float> y = run(c, inputs, gpu);
      double allowed = tolerance;
      // Tensor cores drop bits below 2^-24 of the largest term of a step (Hopper keeps at least so many).
      if (c.dtype != DType::kF32) allowed += largest_partial * 0x1p-20;
      // One after the other, each of them may.
      if (row.name == "even_rows") allowed += largest_partial * 0x1p-24 * static_cast<double>(c.k) / 16;
      if (row.name == "dequantize_cublaslt" || row.name == "few_tokens_integer") allowed += largest_weight_rounding;
      if (row.reduction_order == "prefill") allowed += two_roundings;
      EXPECT_TRUE(all_near(y, exact, allowed));
      EXPECT_TRUE(equal_bits(y, run(c, inputs, gpu))) << "the second run differs";
    }
  }

  std::vector<std::unique_ptr<Gpu>> gpus_;
  std::map<size_t, int> num_runs_;
};

std::vector<int64_t> input_sizes(FormatId format) {
  const QuantFormat& quant = quant_format(format);
  if (quant.is_float) return {1, 7, 64, 520, 4104};
  if (quant.values_per_block == 32) return {32, 96, 576};
  if (quant.values_per_block == 128) return {128, 256, 896};
  return {256, 768};
}

TEST_F(CudaLinearTest, EveryRowAndFormatAgainstDouble) {
  uint64_t seed = 1;
  for (const QuantFormat& quant : kQuantFormats) {
    for (const DType dtype : kActivationDTypes) {
      for (const int64_t k : input_sizes(quant.id)) {
        for (const int64_t n : {1, 16, 40}) {
          for (const int64_t num_tokens : {0, 1, 2, 9, 33}) judge({quant.id, dtype, num_tokens, n, k, dtype}, seed++);
        }
      }
    }
  }
  for (size_t r = 0; r < gpus_.size(); ++r) {
    const std::string_view name = cuda::linear_rows()[r].name;
    // Weights in e4m3 and int8 are made while matrices are packed: cuda_f8_test.cc and cuda_int8_test.cc have them.
    if (name == "cublaslt_f8" || name == "few_tokens" || name == "int8") continue;
    EXPECT_GT(num_runs_[r], 0) << name << " never ran";
  }
}

TEST_F(CudaLinearTest, BiasResidualStridesAndFloatOutputs) {
  uint64_t seed = 1000;
  for (const FormatId format : {FormatId::kQ4_1, FormatId::kQ8_0, FormatId::kQ6_K, FormatId::kF16, FormatId::kBF16}) {
    for (const DType dtype : kActivationDTypes) {
      for (const int64_t num_tokens : {1, 3, 16, 40}) {
        for (int flags = 0; flags < 4; ++flags) {
          for (const int64_t gap : {0, 3, 8}) {
            const DType y_dtype = gap == 0 ? DType::kF32 : dtype;
            judge({format, dtype, num_tokens, 72, 256, y_dtype, (flags & 1) != 0, (flags & 2) != 0, gap}, seed++);
          }
        }
      }
    }
  }
}

TEST_F(CudaLinearTest, RealShapes) {
  uint64_t seed = 3000;
  for (const FormatId format : {FormatId::kBF16, FormatId::kQ4_0, FormatId::kQ4_1, FormatId::kQ4_K, FormatId::kQ5_1,
                                FormatId::kQ5_K, FormatId::kQ8_0, FormatId::kInt4G128}) {
    for (const int64_t num_tokens : {1, 5, 16, 70}) {
      judge({format, DType::kBF16, num_tokens, 960, 512, DType::kBF16}, seed++);
      judge({format, DType::kBF16, num_tokens, 512, 2048, DType::kF32}, seed++);
    }
  }
}

// The tiles of `few_tokens_integer` for more tokens, and its other dtype.
TEST_F(CudaLinearTest, ManyTokensOfIntegerWeights) {
  uint64_t seed = 3500;
  for (const FormatId format :
       {FormatId::kQ4_0, FormatId::kQ4_K, FormatId::kQ6_K, FormatId::kQ8_0, FormatId::kInt4G128}) {
    for (const int64_t num_tokens : {129, 250, 256}) {
      judge({format, DType::kBF16, num_tokens, 136, 1280, DType::kBF16, true, true}, seed++);
    }
    judge({format, DType::kBF16, 7, 4112, 512, DType::kBF16}, seed++);  // the tile for the fewest
  }
  for (const int64_t num_tokens : {1, 2, 8, 20, 64, 100, 255}) {
    judge({FormatId::kInt4G128, DType::kF16, num_tokens, 136, 1280, DType::kF16, true, true}, seed++);
    judge({FormatId::kInt4G128, DType::kF16, num_tokens, 320, 2560, DType::kF32}, seed++);
  }
}

// Long sums and short ones, of k that does and does not divide into boxes.
TEST_F(CudaLinearTest, FewTokensOfFloatWeights) {
  uint64_t seed = 3800;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const FormatId format = dtype == DType::kBF16 ? FormatId::kBF16 : FormatId::kF16;
    for (const int64_t num_tokens : {3, 8, 10, 16, 64}) {
      judge({format, dtype, num_tokens, 136, 2072, dtype, true, true, 8}, seed++);
      judge({format, dtype, num_tokens, 8, 4104, DType::kF32, true}, seed++);
      judge({format, dtype, num_tokens, 8, 4096, dtype, false, true}, seed++);
      judge({format, dtype, num_tokens, 584, 72, DType::kF32}, seed++);
    }
  }
}

// Every number of rows that `even_rows` gives a block of an H200, and several tiles a block.
TEST_F(CudaLinearTest, TilesOfEvenRows) {
  uint64_t seed = 3850;
  for (const int64_t n : {2'104, 4'096, 6'144, 8'192, 12'000, 16'384, 20'008, 25'000, 28'672, 33'784, 34'000, 68'000}) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      const FormatId format = dtype == DType::kBF16 ? FormatId::kBF16 : FormatId::kF16;
      judge({format, dtype, 16, n, 192, dtype, true}, seed++);
      judge({format, dtype, 9, n, 72, DType::kF32, false, true}, seed++);
    }
  }
}

// Of `gemv_tokens` pairs of blocks send each other sums, more than lie in memory at a time.
TEST_F(CudaLinearTest, PairsOfBlocks) {
  const auto is_pairs = [](const auto& row) { return row.name == "gemv_tokens"; };
  const auto is_plain = [](const auto& row) { return row.name == "any_shape"; };
  const auto gpu_of = [&](const auto& is_row) -> Gpu& {
    const auto rows = cuda::linear_rows();
    return *gpus_[static_cast<size_t>(std::find_if(rows.begin(), rows.end(), is_row) - rows.begin())];
  };
  Gpu& pairs = gpu_of(is_pairs);
  TestRandom random(3900);
  Weight shape;
  shape.format = FormatId::kBF16;
  shape.n = 20'008;
  for (const int64_t k : {5'120, 6'144, 14'336}) {
    shape.k = k;
    const Weight weight = pairs.ops().make_random_weight(shape, 3).value();
    const std::vector<float> x = round_all(DType::kBF16, random.normals(8 * k));
    std::vector<float> whole;
    for (const int64_t num_tokens : {8, 8, 5, 2, 1}) {
      if (num_tokens > 1 && k < 6'144) continue;  // those are another row's
      SCOPED_TRACE(std::to_string(num_tokens) + " tokens, k " + std::to_string(k));
      std::vector<float> y[2];
      for (const bool is_paired : {false, true}) {
        Gpu& gpu = is_paired ? pairs : gpu_of(is_plain);
        DeviceMatrix inputs(gpu, DType::kBF16, num_tokens, k);
        DeviceMatrix outputs(gpu, DType::kF32, num_tokens, shape.n);
        inputs.fill({x.begin(), x.begin() + num_tokens * k});
        gpu.ops().linear(gpu.context(), outputs.view(), inputs.view(), weight, {});
        gpu.synchronize();
        y[is_paired ? 1 : 0] = outputs.values();
      }
      const float largest = std::fabs(*std::max_element(y[0].begin(), y[0].end()));
      EXPECT_TRUE(all_near(y[1], {y[0].begin(), y[0].end()}, double{largest} * 0x1p-14));
      if (whole.empty()) whole = y[1];
      EXPECT_TRUE(equal_bits(y[1], {whole.begin(), whole.begin() + num_tokens * shape.n}));
    }
  }
}

// A row that says `decode` gives one token among as many as it takes the bits that it has alone; `gemv_tokens` those
// that it has beside one other.
TEST_F(CudaLinearTest, DecodeRowsDoNotDependOnTheBatch) {
  int num_rows = 0;
  for (const FormatId format : {FormatId::kBF16, FormatId::kQ4_0, FormatId::kQ4_K, FormatId::kQ8_0, FormatId::kQ6_K}) {
    for (size_t r = 0; r < gpus_.size(); ++r) {
      const KernelRow<cuda::LinearCall>& row = cuda::linear_rows()[r];
      const bool needs_two = row.name == "gemv_tokens";
      if (row.reduction_order != "decode" && !needs_two) continue;
      SCOPED_TRACE(std::string(row.name) + " " + std::string(quant_format(format).name));
      Case many{format, DType::kBF16, 64, 176, 1024, DType::kF32, true, true};
      Inputs inputs = make_inputs(many, 4000);
      while (many.num_tokens > 1 && !accepts(row, many, inputs, *gpus_[r])) many.num_tokens /= 2;
      if (many.num_tokens == 1) continue;  // not a format of this row's
      ++num_rows;
      inputs.x.resize(static_cast<size_t>(many.num_tokens * many.k));
      inputs.residual.resize(static_cast<size_t>(many.num_tokens * many.n));
      const std::vector<float> whole = run(many, inputs, *gpus_[r]);
      const std::vector<float> x = inputs.x;
      const std::vector<float> residual = inputs.residual;
      for (int64_t count = needs_two ? 2 : 1; count < many.num_tokens; ++count) {
        const int64_t first = many.num_tokens - count;
        Case few = many;
        few.num_tokens = count;
        inputs.x.assign(x.begin() + first * many.k, x.end());
        inputs.residual.assign(residual.begin() + first * many.n, residual.end());
        const std::vector<float> expected(whole.begin() + first * many.n, whole.end());
        EXPECT_TRUE(equal_bits(run(few, inputs, *gpus_[r]), expected)) << count << " tokens";
      }
    }
  }
  EXPECT_EQ(num_rows, 7);
}

TEST_F(CudaLinearTest, GroupedRowsGoThroughTheirExpert) {
  Gpu& gpu = *gpus_.front();
  for (const FormatId format : {FormatId::kQ4_1, FormatId::kQ6_K, FormatId::kF16, FormatId::kBF16}) {
    for (const DType dtype : kActivationDTypes) {
      TestRandom random(9000);
      constexpr int64_t kN = 37;
      constexpr int64_t kK = 256;
      const FileWeight file = make_file_weight(random, format, kN, kK, 4);
      const Weight packed = gpu.ops().pack(file.weight).value();
      const std::vector<float> w = dequantize_file(file);
      const std::vector<int32_t> offsets = {0, 1, 1, 15, 20};
      const DeviceBuffer device_offsets = gpu.upload(offsets);
      const std::vector<float> x = round_all(dtype, random.normals(20 * kK));
      DeviceMatrix device_x(gpu, dtype, 20, kK, 3);
      DeviceMatrix y(gpu, DType::kF32, 20, kN, 2);
      device_x.fill(x);
      gpu.ops().grouped_linear(gpu.context(), y.view(), device_x.view(), packed,
                               ConstTensorView(device_offsets.data(), DType::kI32, {5}));
      std::vector<double> exact;
      std::vector<float> plain;
      for (int64_t t = 0; t < 20; ++t) {
        const int64_t expert = t < 1 ? 0 : t < 15 ? 2 : 3;
        for (int64_t o = 0; o < kN; ++o) {
          double sum = 0;
          float plain_sum = 0;
          for (int64_t i = 0; i < kK; ++i) {
            const float weight = w[static_cast<size_t>((expert * kN + o) * kK + i)];
            sum += double{x[static_cast<size_t>(t * kK + i)]} * double{weight};
            plain_sum += x[static_cast<size_t>(t * kK + i)] * weight;
          }
          exact.push_back(sum);
          plain.push_back(plain_sum);
        }
      }
      EXPECT_TRUE(kernel_is_close(y.values(), plain, exact));
    }
  }
}

TEST_F(CudaLinearTest, EmbeddingGathersTheFilesValues) {
  Gpu& gpu = *gpus_.front();
  for (const QuantFormat& quant : kQuantFormats) {
    for (const DType dtype : kActivationDTypes) {
      SCOPED_TRACE(std::string(quant.name) + " " + std::string(dtype_name(dtype)));
      TestRandom random(9500);
      const FileWeight file = make_file_weight(random, quant.id, 50, 256);
      const Weight packed = gpu.ops().pack(file.weight).value();
      const std::vector<float> values = dequantize_file(file);
      const std::vector<int32_t> ids = {49, 0, 17, 17, 31};
      const DeviceBuffer device_ids = gpu.upload(ids);
      for (const float scale : {1.0f, 24.0f}) {
        DeviceMatrix y(gpu, dtype, 5, 256, 4);
        gpu.ops().embedding(gpu.context(), y.view(), packed, ConstTensorView(device_ids.data(), DType::kI32, {5}),
                            scale);
        std::vector<float> expected;
        for (const int32_t id : ids) {
          for (int64_t i = 0; i < 256; ++i) {
            expected.push_back(round_to(dtype, scale * values[static_cast<size_t>(id * 256 + i)]));
          }
        }
        EXPECT_TRUE(y.values() == expected);
      }
    }
  }
}

}  // namespace
}  // namespace quire

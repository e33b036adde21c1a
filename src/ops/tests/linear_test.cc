// Linear layers on the CPU: every row that accepts a call, every format, against float64; rows of one reduction order
// against each other, one token against many, and thread counts against each other, to the bit.
#include "ops/cpu/linear.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include "ops/tests/cpu_rows.h"
#include "ops/tests/op_test.h"
#include "quant/dequantize.h"
#include "quant/packing.h"

namespace quire::cpu {
namespace {

constexpr int64_t kScratchBytes = 64 << 20;
// The plain loop's error is taken over at least so many outputs: a single one may be right by luck.
constexpr int64_t kMinJudgedOutputs = 64;

std::vector<float> dequantize(const FileWeight& file) {
  const QuantFormat& quant = file.weight.quant();
  const size_t num_blocks = file.bytes.size() / static_cast<size_t>(quant.bytes_per_block);
  std::vector<float> values(num_blocks * static_cast<size_t>(quant.values_per_block));
  dequantize_row(quant.id, file.bytes.data(), values.data(), static_cast<int64_t>(values.size()));
  return values;
}

// What the int8 kernels make of activations, from the words of linear_kernels.h: x is replaced by d * q.
void quantize_activations(std::vector<float>& scales, std::vector<float>& codes, const std::vector<float>& x) {
  scales.assign(x.size(), 0);
  codes.assign(x.size(), 0);
  for (size_t begin = 0; begin < x.size(); begin += 32) {
    float largest = 0;
    for (size_t i = begin; i < begin + 32; ++i) largest = std::fmax(largest, std::fabs(x[i]));
    if (largest == 0) continue;
    for (size_t i = begin; i < begin + 32; ++i) codes[i] = std::nearbyint(x[i] * (127.0f / largest));
    float products[16];
    float squares = 0;
    for (size_t i = 0; i < 16; ++i) {
      const size_t first = begin + i;
      products[i] = std::fma(x[first + 16], codes[first + 16], x[first] * codes[first]);
      squares += codes[first] * codes[first] + codes[first + 16] * codes[first + 16];
    }
    for (size_t apart = 8; apart > 0; apart /= 2) {
      for (size_t i = 0; i < apart; ++i) products[i] += products[i + apart];
    }
    for (size_t i = begin; i < begin + 32; ++i) scales[i] = products[0] / squares;
  }
}

// One product with all that is needed to run and to judge it.
struct Case {
  FormatId format;
  int64_t num_tokens;
  int64_t n;
  int64_t k;
  Compute compute;
  bool has_bias = false;
  bool has_residual = false;
  int64_t gap = 0;

  std::string text() const {
    return std::string(quant_format(format).name) + " tokens " + std::to_string(num_tokens) + " n " +
           std::to_string(n) + " k " + std::to_string(k) + (compute == Compute::kF32 ? " f32" : " auto") +
           (has_bias ? " bias" : "") + (has_residual ? " residual" : "");
  }
};

class LinearTest : public testing::Test {
 protected:
  struct Inputs {
    FileWeight file;
    Weight packed;
    std::vector<float> x;
    std::vector<float> bias;
    std::vector<float> residual;
  };

  Inputs make_inputs(const Case& c, uint64_t seed) {
    TestRandom random(seed);
    Inputs inputs;
    inputs.file = make_file_weight(random, c.format, std::max(c.n, kMinJudgedOutputs), c.k);
    inputs.file.weight.n = c.n;
    Result<Weight> packed = pack_weight(pool_, memory_, inputs.file.weight);
    EXPECT_TRUE(packed.is_ok());
    inputs.packed = packed.value();
    inputs.x = random.normals(c.num_tokens * c.k);
    inputs.bias = random.normals(c.n);
    inputs.residual = random.normals(c.num_tokens * c.n);
    return inputs;
  }

  // y as the row computes it; the residual, where there is one, is y itself.
  std::vector<float> run(const Case& c, Inputs& inputs, const KernelRow<LinearCall>* row, ThreadPool& pool) {
    GuardedMatrix x(c.num_tokens, c.k, c.gap);
    x.fill(inputs.x);
    GuardedMatrix y(c.num_tokens, c.n, c.gap);
    Epilogue epilogue;
    if (c.has_bias) epilogue.bias = ConstTensorView(inputs.bias.data(), DType::kF32, {c.n});
    if (c.has_residual) {
      y.fill(inputs.residual);
      epilogue.residual = y.view();
    }
    const LinearCall call{pool, scratch_, features_, c.compute, y.view(), x.const_view(), inputs.packed, epilogue};
    if (row == nullptr) {
      linear(call);
    } else {
      if (!row->accepts(call)) return {};
      linear(call, row->name);
    }
    EXPECT_EQ(scratch_.used_bytes(), 0);
    EXPECT_TRUE(y.guards_are_intact());
    EXPECT_TRUE(x.guards_are_intact());
    return y.values();
  }

  void judge(const Case& c, uint64_t seed) {
    SCOPED_TRACE(c.text() + " seed " + std::to_string(seed));
    Inputs inputs = make_inputs(c, seed);
    const std::vector<float> w = dequantize(inputs.file);
    const bool is_int8 = c.compute == Compute::kAuto && !quant_format(c.format).is_float;
    std::vector<float> scales(inputs.x.size(), 1);
    std::vector<float> codes = inputs.x;
    if (is_int8) quantize_activations(scales, codes, inputs.x);
    if (c.compute == Compute::kAuto && c.format == FormatId::kBF16) {
      for (float& code : codes) code = bf16_to_f32(f32_to_bf16(code));
    }
    std::vector<double> exact;         // of the outputs that the call has
    std::vector<double> judged_exact;  // of all
    std::vector<float> judged_plain;
    double largest_partial = 0;
    const int64_t num_judged = std::max(c.n, kMinJudgedOutputs);
    for (int64_t t = 0; t < c.num_tokens; ++t) {
      for (int64_t o = 0; o < num_judged; ++o) {
        double sum = 0;
        float plain_sum = 0;
        for (int64_t i = 0; i < c.k; ++i) {
          const size_t xi = static_cast<size_t>(t * c.k + i);
          const float weight = w[static_cast<size_t>(o * c.k + i)];
          sum += static_cast<double>(scales[xi]) * static_cast<double>(codes[xi]) * static_cast<double>(weight);
          plain_sum += scales[xi] * codes[xi] * weight;
          largest_partial = std::fmax(largest_partial, std::fabs(sum));
        }
        const float bias = c.has_bias && o < c.n ? inputs.bias[static_cast<size_t>(o)] : 0;
        const float residual = c.has_residual && o < c.n ? inputs.residual[static_cast<size_t>(t * c.n + o)] : 0;
        sum += static_cast<double>(bias) + static_cast<double>(residual);
        judged_exact.push_back(sum);
        judged_plain.push_back((plain_sum + bias) + residual);
        if (o < c.n) exact.push_back(sum);
      }
    }
    const double tolerance = kernel_tolerance(judged_plain, judged_exact, {.largest_partial = largest_partial});
    std::map<std::string_view, std::vector<float>> by_order;
    int num_rows = 0;
    for (const KernelRow<LinearCall>& row : linear_rows()) {
      SCOPED_TRACE(std::string(row.name));
      const std::vector<float> y = run(c, inputs, &row, pool_);
      if (y.empty() && c.num_tokens > 0) continue;
      ++num_rows;
      EXPECT_TRUE(all_near(y, exact, tolerance));
      EXPECT_TRUE(equal_bits(y, run(c, inputs, &row, pool_))) << "the second run differs";
      const auto [first, is_new] = by_order.emplace(row.reduction_order, y);
      if (!is_new) {
        EXPECT_TRUE(equal_bits(first->second, y)) << "rows of order " << row.reduction_order << " differ";
      }
    }
    EXPECT_GE(num_rows, 1);
  }

  CpuFeatures features_ = detect_cpu_features();
  ThreadPool pool_{2};
  WeightMemory memory_;
  Arena scratch_ = make_test_arena(kScratchBytes);
};

std::vector<int64_t> input_sizes(FormatId format) {
  const QuantFormat& quant = quant_format(format);
  if (quant.is_float) return {1, 7, 64, 515};
  if (quant.values_per_block == 32) return {32, 96, 576};
  return {256, 768};
}

TEST_F(LinearTest, EveryRowAndFormatAgainstDouble) {
  uint64_t seed = 1;
  for (const QuantFormat& quant : kQuantFormats) {
    for (const Compute compute : {Compute::kAuto, Compute::kF32}) {
      for (const int64_t k : input_sizes(quant.id)) {
        for (const int64_t n : {1, 16, 33}) {
          for (const int64_t num_tokens : {0, 1, 2, 13}) {
            const Case c{quant.id, num_tokens, n, k, compute};
            judge(c, seed++);
          }
        }
      }
    }
  }
}

TEST_F(LinearTest, BiasResidualAndStrides) {
  uint64_t seed = 1000;
  for (const FormatId format : {FormatId::kQ4_1, FormatId::kQ8_0, FormatId::kQ6_K, FormatId::kF16, FormatId::kBF16}) {
    for (const Compute compute : {Compute::kAuto, Compute::kF32}) {
      for (const int64_t num_tokens : {1, 3, 16}) {
        for (int flags = 0; flags < 4; ++flags) {
          judge({format, num_tokens, 47, 256, compute, (flags & 1) != 0, (flags & 2) != 0, 5}, seed++);
        }
      }
    }
  }
}

// Tiles of tokens and panels, their edges, and more tokens than one block or slice takes.
TEST_F(LinearTest, EdgesOfTiles) {
  uint64_t seed = 2000;
  for (const FormatId format : {FormatId::kQ4_K, FormatId::kQ5_0, FormatId::kQ8_0, FormatId::kBF16}) {
    for (const Compute compute : {Compute::kAuto, Compute::kF32}) {
      for (int64_t num_tokens = 1; num_tokens <= 26; ++num_tokens) {
        judge({format, num_tokens, num_tokens == 12 ? 289 : 15 + num_tokens % 3, 256, compute}, seed++);
      }
      for (const int64_t num_tokens : {31, 32, 33, 45}) judge({format, num_tokens, 33, 256, compute}, seed++);
      for (const int64_t n : {17, 40})
        judge({format, 253, n, 1280, compute}, seed++);  // one and a half pairs of panels
      judge({format, 211, 40, 256, compute}, seed++);    // an odd number of panels
    }
  }
}

// A model's shapes; only the fast rows would be quick enough at more tokens.
TEST_F(LinearTest, RealShapes) {
  uint64_t seed = 3000;
  for (const Compute compute : {Compute::kAuto, Compute::kF32}) {
    judge({FormatId::kQ4_1, 3, 576, 1536, compute}, seed++);
    judge({FormatId::kQ4_1, 1, 1536, 576, compute}, seed++);
    judge({FormatId::kQ4_K, 1, 512, 2048, compute}, seed++);
  }
}

TEST_F(LinearTest, OneTokenEqualsManyAndThreadsDoNotMatter) {
  ThreadPool one(1);
  ThreadPool three(3);
  uint64_t seed = 4000;
  for (const QuantFormat& quant : kQuantFormats) {
    for (const Compute compute : {Compute::kAuto, Compute::kF32}) {
      const Case many{quant.id, 41, 150, 256, compute, true, true};
      SCOPED_TRACE(many.text());
      Inputs inputs = make_inputs(many, seed++);
      for (const KernelRow<LinearCall>& row : linear_rows()) {
        SCOPED_TRACE(std::string(row.name));
        const std::vector<float> whole = run(many, inputs, &row, pool_);
        if (whole.empty()) continue;
        EXPECT_TRUE(equal_bits(whole, run(many, inputs, &row, one)));
        EXPECT_TRUE(equal_bits(whole, run(many, inputs, &row, three)));
        for (const int64_t t : {0, 5, 12, 40}) {
          Case single = many;
          single.num_tokens = 1;
          Inputs token = inputs;
          token.x.assign(inputs.x.begin() + t * many.k, inputs.x.begin() + (t + 1) * many.k);
          token.residual.assign(inputs.residual.begin() + t * many.n, inputs.residual.begin() + (t + 1) * many.n);
          const std::vector<float> expected(whole.begin() + t * many.n, whole.begin() + (t + 1) * many.n);
          // A row for many tokens alone leaves one to the best of the others.
          const KernelRow<LinearCall>* taker = run(single, token, &row, pool_).empty() ? nullptr : &row;
          EXPECT_TRUE(equal_bits(expected, run(single, token, taker, pool_))) << "token " << t;
          EXPECT_TRUE(equal_bits(expected, run(single, token, taker, three))) << "token " << t;
        }
      }
    }
  }
}

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

// Norm, product and gate in one call give what they give one after another, to the bit, by every row.
TEST_F(LinearTest, FusedCallsEqualTheirParts) {
  ThreadPool three(3);
  uint64_t seed = 4500;
  const auto ops = make_cpu_ops(2);
  OpContext context{scratch_};
  for (const QuantFormat& quant : kQuantFormats) {
    for (const Compute compute : {Compute::kAuto, Compute::kF32}) {
      for (const int64_t num_tokens : {1, 2, 13, 41, 203, 259}) {
        const bool is_large = num_tokens == 259;
        const bool is_quick = quant.id == FormatId::kQ8_0 || quant.id == FormatId::kQ4_K;
        if (is_large && (!is_quick || compute == Compute::kF32)) continue;
        const Case c{quant.id, num_tokens, 96, is_large ? 1024 : 256, compute, seed % 2 == 0};
        SCOPED_TRACE(c.text());
        Inputs inputs = make_inputs(c, seed++);
        const std::vector<float> norm_weight = TestRandom(seed).normals(c.k);
        GuardedMatrix x(c.num_tokens, c.k, 3);
        x.fill(inputs.x);
        const InputNorm norm{ConstTensorView(norm_weight.data(), DType::kF32, {c.k}), 1e-5f};
        GuardedMatrix normed(c.num_tokens, c.k);
        ops->rms_norm(context, normed.view(), x.const_view(), norm.weight, norm.epsilon);
        Epilogue epilogue;
        if (c.has_bias) epilogue.bias = ConstTensorView(inputs.bias.data(), DType::kF32, {c.n});
        for (const KernelRow<LinearCall>& row : linear_rows()) {
          SCOPED_TRACE(std::string(row.name));
          for (ThreadPool* pool : {&pool_, &three}) {
            GuardedMatrix both(c.num_tokens, c.n, 5);
            const LinearCall plain{*pool,         scratch_, features_, compute, both.view(), normed.const_view(),
                                   inputs.packed, epilogue};
            if (!row.accepts(plain)) continue;
            linear(plain, row.name);
            GuardedMatrix fused(c.num_tokens, c.n, 2);
            LinearCall call = plain;
            call.y = fused.view();
            call.x = x.const_view();
            call.norm = norm;
            linear(call, row.name);
            EXPECT_TRUE(fused.guards_are_intact());
            EXPECT_TRUE(equal_bits(both.values(), fused.values()));
            for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
              GuardedMatrix expected(c.num_tokens, c.n / 2);
              ops->gated_activation(context, expected.view(), both.view().slice(1, 0, c.n / 2),
                                    both.view().slice(1, c.n / 2, c.n), activation);
              GuardedMatrix gated(c.num_tokens, c.n / 2, 1);
              call.y = gated.view();
              call.is_gated = true;
              call.activation = activation;
              linear(call, row.name);
              EXPECT_TRUE(gated.guards_are_intact());
              EXPECT_TRUE(equal_bits(expected.values(), gated.values()));
              EXPECT_EQ(scratch_.used_bytes(), 0);
            }
          }
        }
      }
    }
  }
}

// Halves that are no whole panels are not fused, and the same.
TEST_F(LinearTest, GatedProductsOfAnySize) {
  const auto ops = make_cpu_ops(2);
  OpContext context{scratch_};
  for (const int64_t n : {32, 46, 64, 66}) {
    const Case c{FormatId::kQ4_1, 5, n, 64, Compute::kAuto};
    SCOPED_TRACE(c.text());
    Inputs inputs = make_inputs(c, 4900);
    const ConstTensorView x(inputs.x.data(), DType::kF32, {c.num_tokens, c.k});
    const ConstTensorView bias(inputs.bias.data(), DType::kF32, {c.n});
    GuardedMatrix both(c.num_tokens, n);
    ops->linear(context, both.view(), x, inputs.packed, {.bias = bias, .residual = {}});
    GuardedMatrix expected(c.num_tokens, n / 2);
    ops->gated_activation(context, expected.view(), both.view().slice(1, 0, n / 2), both.view().slice(1, n / 2, n),
                          Activation::kSilu);
    GuardedMatrix gated(c.num_tokens, n / 2);
    ops->norm_gated_linear(context, gated.view(), x, {}, inputs.packed, bias, Activation::kSilu);
    EXPECT_TRUE(equal_bits(expected.values(), gated.values()));
  }
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

TEST_F(LinearTest, ForcedRowRunsWhereItAccepts) {
  const Case c{FormatId::kQ4_0, 1, 16, 64, Compute::kAuto};
  Inputs inputs = make_inputs(c, 8000);
  EXPECT_TRUE(equal_bits(run(c, inputs, &linear_rows().back(), pool_), {}));  // scalar_f32 refuses 8-bit work
  GuardedMatrix y(1, 16);
  const LinearCall call{pool_,         scratch_, features_,
                        c.compute,     y.view(), ConstTensorView(inputs.x.data(), DType::kF32, {1, 64}),
                        inputs.packed, {}};
  EXPECT_EQ(choose_row(linear_rows(), call, "scalar_int8").name, "scalar_int8");
  EXPECT_NE(choose_row(linear_rows(), call, "scalar_f32").name, "scalar_f32");
}

// A row that can take no call would be passed over without a word.
TEST_F(LinearTest, RowsThatNeverRunAreRefused) {
  const auto create = [](Compute compute, const std::string& op, const std::string& row) {
    BackendOptions options;
    options.num_threads = 1;
    options.compute = compute;
    options.forced_kernels[op] = row;
    return CpuOps::create(options).status();
  };
  EXPECT_TRUE(create(Compute::kAuto, "linear", "scalar_int8").is_ok());
  EXPECT_TRUE(create(Compute::kAuto, "linear", "scalar_f32").is_ok());  // of float weights
  EXPECT_FALSE(create(Compute::kF32, "linear", "scalar_int8").is_ok());
  EXPECT_TRUE(create(Compute::kF32, "attention", "scalar").is_ok());
  EXPECT_FALSE(create(Compute::kAuto, "linear", "nothing").is_ok());
  EXPECT_FALSE(create(Compute::kAuto, "nothing", "scalar").is_ok());
  const Status refused = create(Compute::kAuto, "attention", "scalar");
  EXPECT_FALSE(refused.is_ok());
  EXPECT_NE(refused.message().find("scalar_bf16_emulated"), std::string::npos) << refused.message();
#if defined(__x86_64__)
  EXPECT_EQ(create(Compute::kAuto, "linear", "amx_int8").is_ok(), features_.has_amx_int8());  // of many tokens
#endif
}

TEST_F(LinearTest, GroupedRowsGoThroughTheirExpert) {
  for (const FormatId format : {FormatId::kQ4_1, FormatId::kQ6_K, FormatId::kF16}) {
    TestRandom random(9000);
    const int64_t n = 37;
    const int64_t k = 256;
    const int64_t num_experts = 4;
    const FileWeight file = make_file_weight(random, format, n, k, num_experts);
    Result<Weight> packed = pack_weight(pool_, memory_, file.weight);
    ASSERT_TRUE(packed.is_ok());
    const std::vector<int32_t> offsets = {0, 1, 1, 15, 20};
    GuardedMatrix x(20, k, 3);
    x.fill(random.normals(20 * k));
    GuardedMatrix y(20, n, 2);
    grouped_linear({pool_, scratch_, features_, Compute::kAuto, y.view(), x.const_view(), packed.value(), {}},
                   ConstTensorView(offsets.data(), DType::kI32, {5}));
    EXPECT_TRUE(y.guards_are_intact());
    for (int64_t e = 0; e < num_experts; ++e) {
      const int64_t begin = offsets[static_cast<size_t>(e)];
      const int64_t end = offsets[static_cast<size_t>(e) + 1];
      Weight expert = file.weight;
      expert.num_experts = 1;
      const size_t expert_bytes = file.bytes.size() / static_cast<size_t>(num_experts);
      expert.parts[0] = std::span(file.bytes).subspan(static_cast<size_t>(e) * expert_bytes, expert_bytes);
      Result<Weight> alone = pack_weight(pool_, memory_, expert);
      ASSERT_TRUE(alone.is_ok());
      GuardedMatrix expected(end - begin, n);
      linear({pool_,
              scratch_,
              features_,
              Compute::kAuto,
              expected.view(),
              x.const_view().slice(0, begin, end),
              alone.value(),
              {}});
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t o = 0; o < n; ++o) EXPECT_EQ(y.at(r, o), expected.at(r - begin, o)) << e;
      }
    }
  }
}

TEST(WeightMemoryTest, PiecesAreApartAndOutliveTheirMaker) {
  ThreadPool pool(2);
  auto memory = std::make_unique<WeightMemory>();
  std::vector<std::shared_ptr<std::byte>> pieces;
  const std::vector<int64_t> sizes = {1, 300, 256, 15 << 20, 15 << 20, 15 << 20, 15 << 20, 15 << 20, 40 << 20, 0, 77};
  for (const int64_t size : sizes) {
    Result<std::shared_ptr<std::byte>> piece = memory->take(pool, size);
    ASSERT_TRUE(piece.is_ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(piece.value().get()) % 256, 0u);
    pieces.push_back(piece.value());
  }
  memory.reset();
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) continue;
    pieces[i].get()[0] = static_cast<std::byte>(i);
    pieces[i].get()[sizes[i] - 1] = static_cast<std::byte>(i);
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) continue;
    EXPECT_EQ(pieces[i].get()[0], static_cast<std::byte>(i));
    EXPECT_EQ(pieces[i].get()[sizes[i] - 1], static_cast<std::byte>(i));
  }
}

TEST_F(LinearTest, EmbeddingGathersTheFilesValues) {
  for (const QuantFormat& quant : kQuantFormats) {
    TestRandom random(9500);
    const FileWeight file = make_file_weight(random, quant.id, 50, 256);
    Result<Weight> packed = pack_weight(pool_, memory_, file.weight);
    ASSERT_TRUE(packed.is_ok());
    const std::vector<float> values = dequantize(file);
    const std::vector<int32_t> ids = {49, 0, 17, 17, 31};
    for (const float scale : {1.0f, 24.0f}) {
      GuardedMatrix y(5, 256, 4);
      embedding(pool_, y.view(), packed.value(), ConstTensorView(ids.data(), DType::kI32, {5}), scale);
      EXPECT_TRUE(y.guards_are_intact());
      for (int64_t t = 0; t < 5; ++t) {
        for (int64_t i = 0; i < 256; ++i) {
          EXPECT_EQ(y.at(t, i), scale * values[static_cast<size_t>(ids[static_cast<size_t>(t)] * 256 + i)]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::cpu

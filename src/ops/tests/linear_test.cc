// Linear layers on the CPU: every row that accepts a call, every format, against float64; rows of one reduction order
// against each other, one token against many, and thread counts against each other, to the bit.
#include "ops/cpu/linear.h"

#include <algorithm>
#include <cmath>

#include "ops/tests/linear_cases.h"

namespace quire::cpu {
namespace {

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

// More tokens than any row for many waits for.
TEST_F(LinearTest, ManyTokensOfEveryFormat) {
  uint64_t seed = 2500;
  for (const QuantFormat& quant : kQuantFormats) judge({quant.id, 131, 17, 256, Compute::kAuto}, seed++);
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
    const Case cases[] = {{quant.id, 41, 150, 256, Compute::kAuto, true, true},
                          {quant.id, 131, 20, 256, Compute::kAuto, true, true},
                          {quant.id, 41, 150, 256, Compute::kF32, true, true}};
    for (const Case& many : cases) {
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

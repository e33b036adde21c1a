// Attention of every backend and kernel row: against the definition in double, and against itself where the same query
// must give the same bits.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>

#include "ops/cpu/attention.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/reference/reference_ops.h"
#include "ops/tests/attention_problem.h"
#include "ops/tests/op_test.h"

namespace quire {
namespace {

// An order of attention, by the mode that chooses it.
constexpr Compute kOrders[] = {Compute::kF32, Compute::kAuto};

std::unique_ptr<CpuOps> make_cpu(Compute compute, int num_threads, const std::string& row = {}) {
  BackendOptions options;
  options.num_threads = num_threads;
  options.compute = compute;
  if (!row.empty()) options.forced_kernels["attention"] = row;
  return CpuOps::create(options).value();
}

// The rows of an order that this processor runs.
std::vector<std::string> runnable_rows(Compute compute) {
  const CpuFeatures features = detect_cpu_features();
  const cpu::AttentionInputs inputs{.features = features,
                                    .kv = {},
                                    .q = nullptr,
                                    .q_token_stride = 0,
                                    .q_head_stride = 0,
                                    .out = nullptr,
                                    .out_token_stride = 0,
                                    .out_head_stride = 0,
                                    .page_table = nullptr,
                                    .page_table_stride = 0,
                                    .group_size = 1,
                                    .scale = 1,
                                    .soft_cap = 0,
                                    .window = 0,
                                    .partials = nullptr,
                                    .compute = compute};
  std::vector<std::string> names;
  for (const auto& row : cpu::attention_rows()) {
    if (!row.accepts({inputs, nullptr, 0, nullptr})) continue;
    EXPECT_EQ(row.reduction_order, cpu::attention_order(compute));
    names.emplace_back(row.name);
  }
  return names;
}

std::vector<std::pair<Compute, std::string>> all_rows() {
  std::vector<std::pair<Compute, std::string>> rows;
  for (const Compute compute : kOrders) {
    for (const std::string& row : runnable_rows(compute)) rows.emplace_back(compute, row);
  }
  return rows;
}

template <typename Number>
double largest_error(const std::vector<Number>& actual, const std::vector<double>& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(static_cast<double>(actual[i]) - expected[i]);
    if (!(error <= worst)) worst = error;  // a NaN stays
    if (std::isnan(worst)) break;
  }
  return worst;
}

template <typename Number>
double mean_square_error(const std::vector<Number>& actual, const std::vector<double>& expected) {
  double sum = 0;
  for (size_t i = 0; i < expected.size(); ++i) sum += std::pow(static_cast<double>(actual[i]) - expected[i], 2);
  return sum / static_cast<double>(expected.size());
}

// Bits, with all NaNs alike.
void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i]))
        << what << ": element " << i << ": " << a[i] << " and " << b[i];
  }
}

std::vector<float> rows_of(const AttentionProblem& problem, const std::vector<float>& rows, int sequence_index,
                           int first, int count) {
  const int64_t begin = (problem.first_query_row(sequence_index) + first) * problem.row_size();
  return {rows.begin() + begin, rows.begin() + begin + count * problem.row_size()};
}

struct NamedCase {
  const char* name;
  AttentionCase attention_case;
};

std::vector<NamedCase> cases() {
  std::vector<NamedCase> all = {
      {"one token", {.sequences = {{1, 1, 1}}}},
      {"three lone tokens of several contexts", {.sequences = {{1, 1, 1}, {2, 1, 127}, {3, 1, 128}}}},
      {"decode over chunk borders", {.sequences = {{1, 1, 129}, {2, 1, 255}, {3, 1, 256}, {4, 1, 257}, {5, 1, 600}}}},
      {"whole prefill", {.sequences = {{1, 150, 150}}}},
      {"prefill and decode, one sequence without queries",
       {.sequences = {{1, 40, 170}, {2, 1, 300}, {3, 0, 20}, {4, 17, 17}, {5, 2, 130}}}},
      {"mha", {.num_heads = 3, .num_kv_heads = 3, .sequences = {{1, 20, 140}, {2, 1, 50}}}},
      {"mqa", {.num_heads = 7, .num_kv_heads = 1, .sequences = {{1, 33, 140}, {2, 1, 50}}}},
      {"gqa of 3, as SmolLM2", {.num_heads = 9, .num_kv_heads = 3, .sequences = {{1, 70, 140}, {2, 1, 150}}}},
      {"mqa of 13 heads", {.num_heads = 13, .num_kv_heads = 1, .head_dim = 32, .sequences = {{1, 16, 140}}}},
      {"head_dim 16", {.head_dim = 16, .sequences = {{1, 30, 140}}}},
      {"head_dim 24", {.head_dim = 24, .sequences = {{1, 30, 140}}}},
      {"head_dim 40", {.head_dim = 40, .sequences = {{1, 30, 140}}}},
      {"head_dim 80", {.head_dim = 80, .sequences = {{1, 30, 140}, {2, 1, 9}}}},
      {"head_dim 96", {.head_dim = 96, .sequences = {{1, 30, 140}}}},
      {"head_dim 128", {.head_dim = 128, .sequences = {{1, 30, 140}, {2, 1, 260}}}},
      {"head_dim 256", {.head_dim = 256, .params = {.scale = 0.0625f}, .sequences = {{1, 14, 140}, {2, 1, 20}}}},
      {"odd head_dim 7", {.head_dim = 7, .sequences = {{1, 30, 140}}}},
      {"page size 1", {.page_size = 1, .sequences = {{1, 20, 140}}}},
      {"page size 3", {.page_size = 3, .sequences = {{1, 20, 140}}}},
      {"page size 48", {.page_size = 48, .sequences = {{1, 20, 140}}}},
      {"page size 256", {.page_size = 256, .sequences = {{1, 20, 300}}}},
      {"window 1", {.params = {.scale = 0.125f, .window = 1}, .sequences = {{1, 20, 140}, {2, 1, 33}}}},
      {"window 4", {.params = {.scale = 0.125f, .window = 4}, .sequences = {{1, 20, 140}, {2, 1, 33}}}},
      {"window 100", {.params = {.scale = 0.125f, .window = 100}, .sequences = {{1, 190, 300}, {2, 1, 333}}}},
      {"window 512 over a long prefill",
       {.num_heads = 2, .num_kv_heads = 1, .params = {.scale = 0.125f, .window = 512}, .sequences = {{1, 300, 900}}}},
      {"soft-cap", {.params = {.scale = 0.5f, .soft_cap = 5.0f}, .sequences = {{1, 30, 140}, {2, 1, 33}}}},
      {"large scores", {.params = {.scale = 3.0f}, .sequences = {{1, 30, 140}, {2, 1, 33}}}},
      {"odd head_dim 33 and window 9",
       {.num_heads = 6,
        .num_kv_heads = 2,
        .head_dim = 33,
        .page_size = 3,
        .params = {.scale = 0.2f, .window = 9},
        .sequences = {{1, 40, 141}, {2, 1, 130}, {3, 2, 64}}}},
  };
  return all;
}

TEST(Attention, EveryRowIsCloseToTheDefinition) {
  ReferenceOps reference;
  for (const NamedCase& named : cases()) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      AttentionCase attention_case = named.attention_case;
      attention_case.dtype = dtype;
      AttentionProblem problem(attention_case);
      const std::vector<double> expected = problem.expected();
      double largest = 0;
      for (const double x : expected) largest = std::max(largest, std::abs(x));
      const double reference_error = largest_error(problem.run(reference), expected);
      EXPECT_FALSE(!(reference_error <= 1e-4)) << named.name;
      for (const Compute compute : kOrders) {
        const std::vector<double> rounded = problem.expected(compute != Compute::kF32);
        const double plain_error = compute == Compute::kF32 ? reference_error : largest_error(rounded, expected);
        const double tolerance = 2 * plain_error + largest * (compute == Compute::kF32 ? 0x1p-23 : 0x1p-9);
        // An error of p alone stays far below one of V; together they are seen.
        const double square_tolerance =
            compute == Compute::kF32 ? largest : 1.3 * mean_square_error(rounded, expected) + 1e-12;
        for (const std::string& row : runnable_rows(compute)) {
          const std::vector<float> rows = problem.run(*make_cpu(compute, 1, row));
          const double error = largest_error(rows, expected);
          EXPECT_FALSE(!(error <= tolerance))
              << named.name << ", " << dtype_name(dtype) << ", row " << row << ": error " << error << ", tolerance "
              << tolerance << ", plain " << plain_error;
          const double square_error = mean_square_error(rows, expected);
          EXPECT_FALSE(!(square_error <= square_tolerance))
              << named.name << ", " << dtype_name(dtype) << ", row " << row << ": mean square error " << square_error
              << ", tolerance " << square_tolerance;
        }
      }
    }
  }
}

// Where subnormals decide: products of K, whole scores; values and sums of them.
std::vector<NamedCase> subnormal_cases() {
  return {
      {"subnormal K",
       {.params = {.scale = 0x1p121f}, .sequences = {{1, 30, 140}, {2, 1, 133}}, .key_factor = 0x1p-126f}},
      {"subnormal V", {.sequences = {{1, 30, 140}, {2, 1, 133}}, .value_factor = 0x1p-126f}},
      {"subnormal products with V",
       {.params = {.scale = 2.0f}, .sequences = {{1, 30, 300}}, .value_factor = 0x1p-120f}},
  };
}

TEST(Attention, RowsOfOneOrderAgreeBitForBit) {
  std::vector<NamedCase> all = cases();
  for (NamedCase& named : subnormal_cases()) all.push_back(std::move(named));
  for (const NamedCase& named : all) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      AttentionCase attention_case = named.attention_case;
      attention_case.dtype = dtype;
      AttentionProblem problem(attention_case);
      for (const Compute compute : kOrders) {
        const std::vector<std::string> rows = runnable_rows(compute);
        const std::vector<float> first = problem.run(*make_cpu(compute, 1, rows.front()));
        for (const std::string& row : rows) {
          for (const int num_threads : {1, 3}) {
            expect_same_bits(first, problem.run(*make_cpu(compute, num_threads, row)),
                             std::string(named.name) + ", " + std::string(dtype_name(dtype)) + ", row " + row);
          }
        }
      }
    }
  }
}

// The pairs of the order "bf16", the odd one first: as it is written, element by element, for one query whose keys are
// one chunk and have equal scores, so that all p are 1. Values of many sizes: every sum is rounded.
TEST(Attention, PairsOfBfloat16AreAddedInTheWrittenOrder) {
  constexpr int kHeadDim = 19;
  const auto value = [](int position, int d) {
    const int x = (position * 37 + d * 11) % 101;
    return std::ldexp(static_cast<float>(x - 50) * 1.01f, (position * 7 + d) % 19 - 9);
  };
  for (const int context_length : {1, 2, 7, 128}) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      AttentionProblem problem({.num_heads = 1,
                                .num_kv_heads = 1,
                                .head_dim = kHeadDim,
                                .dtype = dtype,
                                .params = {.scale = 0.0f},
                                .sequences = {{1, 1, context_length}}});
      problem.set_values(value);
      const auto stored = [&](int key, int d) {
        const float x = value(key, d);
        return bf16_to_f32(f32_to_bf16(dtype == DType::kF16 ? f16_to_f32(f32_to_f16(x)) : x));
      };
      std::vector<float> expected;
      for (int d = 0; d < kHeadDim; ++d) {
        float sum = 0;
        for (int key = 0; key < context_length; key += 2) {
          if (key + 1 < context_length) sum += stored(key + 1, d);
          sum += stored(key, d);
        }
        expected.push_back(sum / static_cast<float>(context_length));
      }
      for (const std::string& row : runnable_rows(Compute::kAuto)) {
        expect_same_bits(expected, problem.run(*make_cpu(Compute::kAuto, 1, row)), row);
      }
    }
  }
}

TEST(Attention, SubnormalsAreFlushedInTheCallAlone) {
  AttentionProblem problem({.sequences = {{1, 30, 140}, {2, 1, 133}}, .value_factor = 0x1p-128f});
  const std::unique_ptr<CpuOps> ops = make_cpu(Compute::kAuto, 1);
  for (const float x : problem.run(*ops)) EXPECT_EQ(x, 0.0f);
  volatile float least_normal = 0x1p-126f;
  EXPECT_GT(least_normal * 0.5f, 0.0f);
}

// As bfloat16 rounds them, the weights of a row still sum to one.
TEST(Attention, EqualValuesComeOutAsTheyAre) {
  for (const Compute compute : kOrders) {
    AttentionProblem problem({.sequences = {{1, 30, 400}, {2, 1, 333}}});
    problem.set_values([](int, int) { return 1.5f; });
    for (const float x : problem.run(*make_cpu(compute, 1))) EXPECT_NEAR(x, 1.5f, 1e-5f);
  }
}

// One sequence of 700 tokens: 9 heads over 3, whatever surrounds it.
AttentionCase long_case(int window) {
  return {.num_heads = 9,
          .num_kv_heads = 3,
          .head_dim = 64,
          .dtype = DType::kF16,
          .params = {.scale = 0.125f, .window = window},
          .sequences = {}};
}

TEST(Attention, SameBitsHoweverTheStepIsMade) {
  std::vector<std::pair<Compute, std::unique_ptr<CpuOps>>> backends;
  for (const Compute compute : kOrders) {
    for (const int num_threads : {1, 2, 3}) backends.emplace_back(compute, make_cpu(compute, num_threads));
  }
  for (const int window : {0, 201}) {
    AttentionCase whole_case = long_case(window);
    whole_case.sequences = {{7, 700, 700}};
    AttentionProblem whole(whole_case);
    std::map<Compute, std::vector<float>> expected;
    for (const Compute compute : kOrders) expected[compute] = whole.run(*make_cpu(compute, 1));

    for (const int page_size : {16, 32, 5, 128}) {
      AttentionCase varied = whole_case;
      varied.page_size = page_size;
      AttentionProblem repaged(varied);
      for (const auto& [compute, ops] : backends) {
        expect_same_bits(expected[compute], repaged.run(*ops), "page size " + std::to_string(page_size));
      }
      // In chunks of the prompt, then token by token, each time among other neighbours.
      const std::pair<int, int> spans[] = {{0, 1},     {1, 100},   {100, 101}, {101, 300}, {300, 511},
                                           {511, 512}, {512, 513}, {513, 699}, {699, 700}};
      for (const auto& [begin, end] : spans) {
        const int count = end - begin;
        varied.sequences = {{1, 1, 2000 + begin}, {7, count, end}, {3, 37, 90}, {4, 1, 1}};
        AttentionProblem part(varied);
        varied.sequences = {{7, count, end}};
        AttentionProblem alone(varied);
        for (const auto& [compute, ops] : backends) {
          const std::vector<float> rows = rows_of(whole, expected[compute], 0, begin, count);
          const std::string what = "page size " + std::to_string(page_size) + ", tokens " + std::to_string(begin) +
                                   " to " + std::to_string(end);
          expect_same_bits(rows, rows_of(part, part.run(*ops), 1, 0, count), what + ", among others");
          expect_same_bits(rows, alone.run(*ops), what + ", alone");
        }
      }
    }
  }
}

// F064.
TEST(Attention, AWindowOfFourSeesFourKeysItselfIncluded) {
  ReferenceOps reference;
  const std::unique_ptr<CpuOps> cpu = make_cpu(Compute::kF32, 1);
  const std::unique_ptr<CpuOps> cpu_bf16 = make_cpu(Compute::kAuto, 1);
  for (Ops* ops : {static_cast<Ops*>(&reference), static_cast<Ops*>(cpu.get()), static_cast<Ops*>(cpu_bf16.get())}) {
    for (const int num_queries : {1, 10}) {
      // Equal scores: the output is the mean of the seen values.
      AttentionProblem problem({.num_heads = 1,
                                .num_kv_heads = 1,
                                .head_dim = 16,
                                .params = {.scale = 0.0f, .window = 4},
                                .sequences = {{1, num_queries, 10}}});
      const std::vector<float> rows = problem.run(*ops);
      for (int d = 0; d < 16; ++d) {
        double mean = 0;
        for (int key = 6; key <= 9; ++key) mean += double{problem.value(2, 1, key, 0, d)} / 4;
        EXPECT_NEAR(rows[static_cast<size_t>((num_queries - 1) * 16 + d)], mean, ops == cpu_bf16.get() ? 0x1p-8 : 1e-6);
      }
    }
  }
}

// F050.
TEST(Attention, APoisonedSequenceFailsAlone) {
  for (const auto& [compute, row] : all_rows()) {
    AttentionCase attention_case{.sequences = {{1, 20, 150}, {2, 5, 200}, {3, 1, 140}}};
    AttentionProblem healthy(attention_case);
    AttentionProblem poisoned(attention_case);
    poisoned.poison(1, 60);
    const std::unique_ptr<CpuOps> ops = make_cpu(compute, 2, row);
    const std::vector<float> expected = healthy.run(*ops);
    const std::vector<float> rows = poisoned.run(*ops);
    expect_same_bits(rows_of(healthy, expected, 0, 0, 20), rows_of(poisoned, rows, 0, 0, 20), row);
    expect_same_bits(rows_of(healthy, expected, 2, 0, 1), rows_of(poisoned, rows, 2, 0, 1), row);
    for (const float x : rows_of(poisoned, rows, 1, 0, 5)) EXPECT_TRUE(std::isnan(x)) << row;
  }
}

TEST(Attention, TheReferenceReadsE4m3AndInt8Caches) {
  ReferenceOps reference;
  for (const DType dtype : {DType::kF8E4M3, DType::kI8}) {
    for (const int head_dim : {64, 128}) {
      AttentionProblem problem({.num_heads = 6,
                                .num_kv_heads = 2,
                                .head_dim = head_dim,
                                .dtype = dtype,
                                .sequences = {{1, 5, 40}, {2, 1, 33}}});
      EXPECT_TRUE(all_near(problem.run(reference), problem.expected(), 1e-5)) << dtype_name(dtype);
    }
  }
}

TEST(Attention, TheReferenceTakesCallsWithoutACausalMask) {
  ReferenceOps reference;
  AttentionProblem problem(
      {.params = {.scale = 0.125f, .is_causal = false}, .sequences = {{1, 30, 30}, {2, 5, 40}, {3, 1, 33}}});
  EXPECT_TRUE(all_near(problem.run(reference), problem.expected(), 1e-5));
}

class ReferenceWrites : public testing::TestWithParam<DType> {};

TEST_P(ReferenceWrites, CodesAndScales) {
  const DType dtype = GetParam();
  constexpr int kHeads = 2;
  constexpr int kHeadDim = 8;
  constexpr int kPageSize = 4;
  constexpr int kTokens = 3;
  constexpr int64_t kPageBytes = 2 * kHeads * kPageSize * (kHeadDim + 2);
  std::vector<uint8_t> memory(2 * kPageBytes, 0xa5);
  PagedKv kv{.k = memory.data(),
             .v = memory.data() + kHeads * kPageSize * kHeadDim,
             .dtype = dtype,
             .page_stride = kPageBytes,
             .head_stride = kPageSize * kHeadDim,
             .token_stride = kHeadDim,
             .num_pages = 2,
             .page_size = kPageSize,
             .num_kv_heads = kHeads,
             .head_dim = kHeadDim,
             .k_scales = memory.data() + 2 * kHeads * kPageSize * kHeadDim,
             .v_scales = memory.data() + 2 * kHeads * kPageSize * kHeadDim + kHeads * kPageSize * 2,
             .scale_page_stride = kPageBytes / 2};
  TestRandom random(77);
  std::vector<float> k = random.normals(kTokens * kHeads * kHeadDim, 30.0f);
  std::vector<float> v = random.normals(kTokens * kHeads * kHeadDim, 0.01f);
  std::fill(k.begin(), k.begin() + kHeadDim, 0.0f);
  const std::vector<int64_t> slots = {6, -1, 1};
  ReferenceOps ops;
  Arena arena(ops.allocate(1024, "test").value());
  OpContext context{arena};
  ops.write_kv(context, kv, ConstTensorView(k.data(), DType::kF32, {kTokens, kHeads, kHeadDim}),
               ConstTensorView(v.data(), DType::kF32, {kTokens, kHeads, kHeadDim}),
               ConstTensorView(slots.data(), DType::kI64, {kTokens}));
  std::vector<uint8_t> expected(memory.size(), 0xa5);
  for (int t = 0; t < kTokens; ++t) {
    const int64_t slot = slots[static_cast<size_t>(t)];
    if (slot < 0) continue;
    for (int part = 0; part < 2; ++part) {
      for (int head = 0; head < kHeads; ++head) {
        const float* const row = (part == 0 ? k : v).data() + (t * kHeads + head) * kHeadDim;
        float largest = 0;
        for (int d = 0; d < kHeadDim; ++d) largest = std::fmax(largest, std::fabs(row[d]));
        const uint16_t scale = f32_to_bf16(largest > 0 ? largest / (dtype == DType::kI8 ? 127.0f : 448.0f) : 1.0f);
        const int64_t page = slot / kPageSize * kPageBytes;
        const int64_t in_page = head * kPageSize + slot % kPageSize;
        uint8_t* const codes = expected.data() + page + part * kHeads * kPageSize * kHeadDim + in_page * kHeadDim;
        for (int d = 0; d < kHeadDim; ++d) {
          const float x = row[d] * (1.0f / bf16_to_f32(scale));
          codes[d] = dtype == DType::kF8E4M3
                         ? f32_to_f8e4m3(x)
                         : static_cast<uint8_t>(std::clamp(static_cast<int>(std::lrint(x)), -127, 127));
        }
        std::memcpy(
            expected.data() + page + 2 * kHeads * kPageSize * kHeadDim + part * kHeads * kPageSize * 2 + in_page * 2,
            &scale, 2);
      }
    }
  }
  EXPECT_EQ(memory, expected);
}

INSTANTIATE_TEST_SUITE_P(Attention, ReferenceWrites, testing::Values(DType::kF8E4M3, DType::kI8));

// Codes of int8 have no NaN: the scale has it.
TEST(Attention, TheReferenceKeepsNanInAnInt8Cache) {
  std::vector<uint8_t> memory(2 * (4 + 2), 0);
  const PagedKv kv{.k = memory.data(),
                   .v = memory.data() + 4,
                   .dtype = DType::kI8,
                   .page_stride = 12,
                   .head_stride = 4,
                   .token_stride = 4,
                   .num_pages = 1,
                   .page_size = 1,
                   .num_kv_heads = 1,
                   .head_dim = 4,
                   .k_scales = memory.data() + 8,
                   .v_scales = memory.data() + 10,
                   .scale_page_stride = 6};
  std::vector<float> k = {1.0f, 2.0f, -3.0f, 0.5f};
  std::vector<float> v = {1.0f, std::numeric_limits<float>::quiet_NaN(), -3.0f, 0.5f};
  std::vector<int64_t> slots = {0};
  ReferenceOps ops;
  Arena arena(ops.allocate(1024, "test").value());
  OpContext context{arena};
  ops.write_kv(context, kv, ConstTensorView(k.data(), DType::kF32, {1, 1, 4}),
               ConstTensorView(v.data(), DType::kF32, {1, 1, 4}), ConstTensorView(slots.data(), DType::kI64, {1}));
  uint16_t scales[2];
  std::memcpy(scales, memory.data() + 8, 4);
  EXPECT_EQ(static_cast<int8_t>(memory[2]), -127);
  EXPECT_EQ(scales[0], f32_to_bf16(3.0f / 127.0f));
  EXPECT_TRUE(std::isnan(bf16_to_f32(scales[1])));
}

TEST(Attention, NothingToDo) {
  for (const auto& [compute, num_threads] :
       {std::pair(Compute::kF32, 1), {Compute::kF32, 2}, {Compute::kAuto, 1}, {Compute::kAuto, 2}}) {
    EXPECT_TRUE(AttentionProblem({.sequences = {}}).run(*make_cpu(compute, num_threads)).empty());
    EXPECT_TRUE(AttentionProblem({.sequences = {{1, 0, 30}}}).run(*make_cpu(compute, num_threads)).empty());
  }
}

}  // namespace
}  // namespace quire

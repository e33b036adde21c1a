// Attention on the GPU: every row that accepts a case, against the definition in double and the plain float loop; and a
// query against itself among other neighbours and in other page sizes.
#include "ops/cuda/attention.h"

#include "ops/reference/reference_ops.h"
#include "ops/tests/cuda_device_problem.h"

namespace quire {
namespace {

struct NamedCase {
  const char* name;
  AttentionCase attention_case;
};

std::vector<NamedCase> cases() {
  return {
      {"one token", {.sequences = {{1, 1, 1}}}},
      {"three lone tokens of several contexts", {.sequences = {{1, 1, 1}, {2, 1, 127}, {3, 1, 128}}}},
      {"decode over chunk borders", {.sequences = {{1, 1, 129}, {2, 1, 255}, {3, 1, 256}, {4, 1, 257}, {5, 1, 600}}}},
      {"decode of head_dim 128",
       {.num_heads = 8,
        .num_kv_heads = 2,
        .head_dim = 128,
        .sequences = {{1, 1, 15}, {2, 1, 255}, {3, 1, 256}, {4, 1, 257}, {5, 1, 1100}}}},
      {"decode of head_dim 128, group of 8, window",
       {.num_heads = 16,
        .num_kv_heads = 2,
        .head_dim = 128,
        .params = {.scale = 0.1f, .window = 300},
        .sequences = {{1, 1, 15}, {2, 1, 299}, {3, 1, 300}, {4, 1, 777}}}},
      {"decode of head_dim 128, soft-cap, pages of 64",
       {.num_heads = 4,
        .num_kv_heads = 4,
        .head_dim = 128,
        .page_size = 64,
        .params = {.scale = 0.3f, .soft_cap = 5.0f},
        .sequences = {{1, 1, 100}, {2, 1, 520}}}},
      {"many sequences of head_dim 128",
       {.num_heads = 16,
        .num_kv_heads = 4,
        .head_dim = 128,
        .params = {.scale = 0.088f},
        .sequences = std::vector<AttentionSequence>(90, {7, 1, 700})}},
      {"decode of more units than blocks, some of them alone",
       {.num_heads = 24,
        .num_kv_heads = 8,
        .head_dim = 128,
        .params = {.scale = 0.088f},
        .sequences = {{1, 1, 1100},
                      {2, 1, 600},
                      {3, 1, 20},
                      {4, 1, 513},
                      {5, 1, 1024},
                      {6, 1, 1500},
                      {7, 1, 511},
                      {8, 1, 1030},
                      {9, 1, 2100},
                      {1, 1, 1090}}}},
      {"decode of groups of 20 heads",
       {.num_heads = 40, .num_kv_heads = 2, .head_dim = 128, .sequences = {{1, 1, 700}, {2, 1, 30}, {3, 1, 1300}}}},
      {"decode of head_dim 256, groups of 9, window",
       {.num_heads = 18,
        .num_kv_heads = 2,
        .head_dim = 256,
        .params = {.scale = 0.0625f, .window = 600},
        .sequences = {{1, 1, 700}, {2, 1, 30}, {3, 1, 1300}}}},
      {"many sequences of head_dim 256",
       {.num_heads = 8,
        .num_kv_heads = 8,
        .head_dim = 256,
        .params = {.scale = 0.0625f},
        .sequences = std::vector<AttentionSequence>(20, {7, 1, 550})}},
      {"decode of head_dim 96, soft-cap",
       {.num_heads = 12,
        .num_kv_heads = 4,
        .head_dim = 96,
        .params = {.scale = 0.1f, .soft_cap = 20.0f},
        .sequences = {{1, 1, 700}, {2, 1, 30}, {3, 1, 1300}, {4, 1, 64}}}},
      {"decode of 9,000 keys", {.num_heads = 4, .num_kv_heads = 1, .head_dim = 128, .sequences = {{1, 1, 9000}}}},
      {"whole prefill", {.sequences = {{1, 150, 150}}}},
      {"whole prefill of head_dim 128",
       {.num_heads = 8,
        .num_kv_heads = 2,
        .head_dim = 128,
        .params = {.scale = 0.088f},
        .sequences = {{1, 300, 300}, {2, 129, 400}, {3, 2, 2}}}},
      {"chunk of a prefill, head_dim 128",
       {.num_heads = 4,
        .num_kv_heads = 1,
        .head_dim = 128,
        .page_size = 32,
        .params = {.scale = 0.088f},
        .sequences = {{1, 130, 700}}}},
      {"prefill of more tiles than a GPU has multiprocessors",
       {.num_heads = 32,
        .num_kv_heads = 4,
        .head_dim = 128,
        .params = {.scale = 0.088f},
        .sequences = {{1, 30, 40},
                      {2, 129, 131},
                      {3, 17, 17},
                      {4, 2, 300},
                      {5, 64, 65},
                      {6, 9, 129},
                      {7, 33, 33},
                      {8, 50, 90},
                      {9, 3, 3},
                      {1, 40, 40},
                      {2, 20, 21},
                      {3, 130, 130},
                      {4, 5, 60}}}},
      {"prefill of head_dim 64",
       {.num_heads = 9,
        .num_kv_heads = 3,
        .head_dim = 64,
        .sequences = {{1, 300, 300}, {2, 129, 400}, {3, 2, 2}, {4, 128, 512}}}},
      {"prefill of head_dim 96, window, pages of 48",
       {.num_heads = 4,
        .num_kv_heads = 2,
        .head_dim = 96,
        .page_size = 48,
        .params = {.scale = 0.1f, .window = 130},
        .sequences = {{1, 260, 300}, {2, 70, 500}}}},
      {"prefill of head_dim 256, soft-cap",
       {.num_heads = 4,
        .num_kv_heads = 2,
        .head_dim = 256,
        .params = {.scale = 0.0625f, .soft_cap = 20.0f},
        .sequences = {{1, 200, 200}, {2, 65, 333}, {3, 2, 64}}}},
      {"prefill of head_dim 128, window, soft-cap",
       {.num_heads = 4,
        .num_kv_heads = 2,
        .head_dim = 128,
        .params = {.scale = 0.2f, .soft_cap = 10.0f, .window = 140},
        .sequences = {{1, 300, 300}, {2, 70, 500}}}},
      {"prefill whose largest scores rise from tile to tile",
       {.num_heads = 4, .num_kv_heads = 2, .head_dim = 128, .params = {.scale = 1.0f}, .sequences = {{1, 140, 900}}}},
      {"every query sees all keys, of which there are many",
       {.num_heads = 1,
        .num_kv_heads = 1,
        .head_dim = 128,
        .params = {.scale = 0.088f, .is_causal = false},
        .sequences = {{1, 20, 12300}}}},
      {"every query sees all keys",
       {.num_heads = 8,
        .num_kv_heads = 2,
        .head_dim = 128,
        .params = {.scale = 0.088f, .is_causal = false},
        .sequences = {{1, 300, 300}, {2, 129, 400}, {3, 2, 2}, {4, 1, 90}, {5, 128, 128}}}},
      {"every query sees all keys, head_dim 64, soft-cap",
       {.num_heads = 3,
        .num_kv_heads = 3,
        .head_dim = 64,
        .params = {.scale = 0.2f, .soft_cap = 10.0f, .is_causal = false},
        .sequences = {{1, 65, 65}, {2, 200, 200}, {3, 40, 513}}}},
      {"every query sees all keys, head_dim 256",
       {.num_heads = 2,
        .num_kv_heads = 1,
        .head_dim = 256,
        .params = {.scale = 0.0625f, .is_causal = false},
        .sequences = {{1, 150, 150}, {2, 10, 64}}}},
      {"prefill and decode, one sequence without queries",
       {.sequences = {{1, 40, 170}, {2, 1, 300}, {3, 0, 20}, {4, 17, 17}, {5, 2, 130}}}},
      {"mha", {.num_heads = 3, .num_kv_heads = 3, .sequences = {{1, 20, 140}, {2, 1, 50}}}},
      {"mqa", {.num_heads = 7, .num_kv_heads = 1, .sequences = {{1, 33, 140}, {2, 1, 50}}}},
      {"gqa of 3", {.num_heads = 9, .num_kv_heads = 3, .sequences = {{1, 70, 140}, {2, 1, 150}}}},
      {"head_dim 24", {.head_dim = 24, .sequences = {{1, 30, 140}, {2, 1, 150}}}},
      {"head_dim 80", {.head_dim = 80, .sequences = {{1, 30, 140}, {2, 1, 9}}}},
      {"head_dim 96", {.head_dim = 96, .sequences = {{1, 30, 140}, {2, 1, 300}}}},
      {"head_dim 256", {.head_dim = 256, .params = {.scale = 0.0625f}, .sequences = {{1, 14, 140}, {2, 1, 300}}}},
      {"odd head_dim 7", {.head_dim = 7, .sequences = {{1, 30, 140}, {2, 1, 150}}}},
      {"page size 1", {.page_size = 1, .sequences = {{1, 20, 140}, {2, 1, 150}}}},
      {"page size 3", {.page_size = 3, .sequences = {{1, 20, 140}, {2, 1, 150}}}},
      {"page size 256", {.page_size = 256, .sequences = {{1, 20, 300}, {2, 1, 300}}}},
      {"window 1", {.params = {.scale = 0.125f, .window = 1}, .sequences = {{1, 20, 140}, {2, 1, 33}}}},
      {"window 100", {.params = {.scale = 0.125f, .window = 100}, .sequences = {{1, 190, 300}, {2, 1, 333}}}},
      {"soft-cap", {.params = {.scale = 0.5f, .soft_cap = 5.0f}, .sequences = {{1, 30, 140}, {2, 1, 33}}}},
      {"large scores", {.params = {.scale = 3.0f}, .sequences = {{1, 30, 140}, {2, 1, 33}}}},
  };
}

// Outputs are at most so much off: a rounding of the output, and for tensor-core rows one of each weight.
double tolerance_of(std::string_view row, DType dtype, double plain_error, double largest) {
  double tolerance = 2 * plain_error + largest * std::ldexp(1.0, -mantissa_bits(dtype));
  if (row != "any_shape") tolerance += largest * std::ldexp(1.0, -mantissa_bits(dtype));
  return tolerance;
}

class CudaAttentionRows : public testing::TestWithParam<size_t> {};

TEST_P(CudaAttentionRows, AreCloseToTheDefinition) {
  ReferenceOps reference;
  const NamedCase named = cases()[GetParam()];
  std::vector<std::unique_ptr<Gpu>> gpus;
  for (const KernelRow<cuda::AttentionCall>& row : cuda::attention_rows()) {
    gpus.push_back(Gpu::create({{"attention", std::string(row.name)}}));
    SKIP_WITHOUT_GPU(gpus.back());
  }
  for (const DType dtype : kActivationDTypes) {
    for (const DType cache_dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kI8}) {
      AttentionCase attention_case = named.attention_case;
      if (has_kv_scales(cache_dtype) && attention_case.head_dim % 16 != 0) continue;
      attention_case.dtype = cache_dtype;
      attention_case.query_dtype = dtype;
      AttentionProblem problem(attention_case);
      const std::vector<double> expected = problem.expected();
      const std::vector<float> plain = problem.run(reference);
      double largest = 0;
      double plain_error = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        largest = std::fmax(largest, std::fabs(expected[i]));
        plain_error = std::fmax(plain_error, std::fabs(double{plain[i]} - expected[i]));
      }
      for (size_t r = 0; r < gpus.size(); ++r) {
        const KernelRow<cuda::AttentionCall>& row = cuda::attention_rows()[r];
        DeviceProblem device(*gpus[r], problem, dtype, r % 2 == 0 ? 8 : 0);
        if (!device.accepts(row, cuda::StepPart::kDecode) && !device.accepts(row, cuda::StepPart::kPrefill)) continue;
        EXPECT_TRUE(all_near(device.run(), expected, tolerance_of(row.name, dtype, plain_error, largest)))
            << named.name << ", " << dtype_name(dtype) << " over " << dtype_name(cache_dtype) << ", row " << row.name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaAttentionRows, testing::Range(size_t{0}, cases().size()));

// What the tests above must not miss: a row that no longer takes what it is for.
TEST(CudaAttention, RowsTakeWhatTheyAreFor) {
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  const auto takes = [&](std::string_view name, cuda::StepPart part, int head_dim, DType cache_dtype) {
    AttentionProblem problem({.num_heads = 4,
                              .num_kv_heads = 2,
                              .head_dim = head_dim,
                              .dtype = cache_dtype,
                              .query_dtype = DType::kBF16,
                              .sequences = {{1, 1, 20}, {2, 20, 20}}});
    DeviceProblem device(*gpu, problem, DType::kBF16, 0);
    for (const KernelRow<cuda::AttentionCall>& row : cuda::attention_rows()) {
      if (row.name == name) return device.accepts(row, part);
    }
    return false;
  };
  for (const int head_dim : {64, 80, 96, 128, 256}) {
    for (const DType cache_dtype : {DType::kBF16, DType::kF8E4M3, DType::kI8}) {
      EXPECT_TRUE(takes("decode_split_kv", cuda::StepPart::kDecode, head_dim, cache_dtype)) << head_dim;
      EXPECT_TRUE(takes("prefill_wgmma", cuda::StepPart::kPrefill, head_dim, cache_dtype)) << head_dim;
    }
  }
}

TEST(CudaAttention, OneQueryHasTheSameBitsAmongAnyNeighboursAndPages) {
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  struct Kind {
    int head_dim;
    int window;
    DType cache_dtype;
  };
  for (const auto& [head_dim, window, cache_dtype] : {Kind{128, 0, DType::kBF16},
                                                      {128, 200, DType::kBF16},
                                                      {128, 0, DType::kF8E4M3},
                                                      {128, 0, DType::kI8},
                                                      {64, 0, DType::kBF16},
                                                      {64, 0, DType::kF8E4M3},
                                                      {256, 0, DType::kBF16}}) {
    AttentionCase alone{.num_heads = 8,
                        .num_kv_heads = 2,
                        .head_dim = head_dim,
                        .dtype = cache_dtype,
                        .query_dtype = DType::kBF16,
                        .params = {.scale = 0.088f, .window = window},
                        .sequences = {{7, 1, 1500}}};
    AttentionProblem problem(alone);
    const std::vector<float> expected = DeviceProblem(*gpu, problem, DType::kBF16, 0).run();
    for (const int page_size : {16, 32, 128}) {
      AttentionCase among = alone;
      among.page_size = page_size;
      among.sequences = {{1, 1, 40}, {2, 30, 90}, {7, 1, 1500}, {3, 1, 2000}};
      // Enough neighbours for blocks to take several units each, and enough for warps to work apart.
      if (page_size == 32) among.sequences.insert(among.sequences.end(), 60, {4, 1, 900});
      if (page_size == 128) among.sequences.insert(among.sequences.end(), 300, {4, 1, 900});
      AttentionProblem other(among);
      const std::vector<float> rows = DeviceProblem(*gpu, other, DType::kBF16, 8).run();
      const int64_t first = other.first_query_row(2) * other.row_size();
      EXPECT_TRUE(equal_bits({rows.begin() + first, rows.begin() + first + other.row_size()}, expected)) << page_size;
    }
  }
}

TEST(CudaAttention, ManyQueriesHaveTheSameBitsHoweverThePromptIsCut) {
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  struct Kind {
    int head_dim;
    int window;
    DType cache_dtype;
  };
  for (const auto& [head_dim, window, cache_dtype] : {Kind{128, 0, DType::kBF16},
                                                      {128, 200, DType::kBF16},
                                                      {128, 0, DType::kF8E4M3},
                                                      {64, 0, DType::kF8E4M3},
                                                      {128, 200, DType::kI8},
                                                      {64, 0, DType::kBF16},
                                                      {96, 200, DType::kBF16},
                                                      {256, 0, DType::kBF16}}) {
    AttentionCase whole{.num_heads = 8,
                        .num_kv_heads = 2,
                        .head_dim = head_dim,
                        .dtype = cache_dtype,
                        .query_dtype = DType::kBF16,
                        .params = {.scale = 0.088f, .window = window},
                        .sequences = {{7, 700, 700}}};
    AttentionProblem problem(whole);
    const std::vector<float> expected = DeviceProblem(*gpu, problem, DType::kBF16, 0).run();
    for (const auto& [begin, end] : {std::pair<int, int>{0, 100}, {100, 102}, {100, 511}, {511, 700}}) {
      AttentionCase part = whole;
      part.page_size = 64;
      part.sequences = {{1, 1, 90}, {2, 30, 90}, {7, end - begin, end}};
      AttentionProblem other(part);
      const std::vector<float> rows = DeviceProblem(*gpu, other, DType::kBF16, 8).run();
      const int64_t first = other.first_query_row(2) * other.row_size();
      EXPECT_TRUE(equal_bits({rows.begin() + first, rows.end()}, {expected.begin() + begin * problem.row_size(),
                                                                  expected.begin() + end * problem.row_size()}))
          << begin << " to " << end << ", head_dim " << head_dim << ", window " << window;
    }
  }
}

// Prefill converts an e4m3 or int8 cache in memory that its plan has from the start; what has no room there at once
// takes more passes, over KV heads and over sequences.
TEST(CudaAttention, ConvertedCachesTakePassesAndNoMemory) {
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  for (const DType cache_dtype : {DType::kF8E4M3, DType::kI8}) {
    for (const int head_dim : {64, 128, 256}) {
      AttentionProblem problem({.num_heads = 6,
                                .num_kv_heads = 3,
                                .head_dim = head_dim,
                                .dtype = cache_dtype,
                                .query_dtype = DType::kBF16,
                                .params = {.scale = 0.088f},
                                .sequences = {{1, 130, 700}, {2, 20, 300}, {3, 1, 500}, {4, 3, 130}, {5, 260, 260}}});
      DeviceProblem device(*gpu, problem, DType::kBF16, 8);
      const std::vector<float> expected = device.run();
      // 6, 3, 2 and 3 tiles: one pass a sequence and head, two sequences together, all of them with one head and two.
      for (const int num_tiles : {6, 9, 14, 28, 41}) {
        EXPECT_TRUE(equal_bits(device.run(num_tiles), expected))
            << num_tiles << " tiles, " << dtype_name(cache_dtype) << ", head_dim " << head_dim;
      }
    }
  }
  // More than 250 tiles of each of eight KV heads: more than the memory that every plan has.
  AttentionProblem large({.num_heads = 8,
                          .num_kv_heads = 8,
                          .head_dim = 128,
                          .page_size = 128,
                          .dtype = DType::kI8,
                          .query_dtype = DType::kBF16,
                          .params = {.scale = 0.088f},
                          .sequences = {{1, 2, 33'000}}});
  DeviceProblem device(*gpu, large, DType::kBF16, 8);
  const std::unique_ptr<AttentionPlan> plan = gpu->ops().create_attention_plan(large.geometry()).value();
  EXPECT_LE(static_cast<cuda::CudaAttentionPlan&>(*plan).converted.num_bytes(), int64_t{128} << 20);
  EXPECT_GE(plan->device_bytes(), int64_t{128} << 20);
  EXPECT_TRUE(all_near(device.run(), large.expected(), 0.02));
  // Tests in other processes take and free memory of the GPU too: what these calls took themselves they would take
  // again.
  for (int i = 0; i < 10 && device.bytes_taken() != 0; ++i) device.run();
  EXPECT_EQ(device.bytes_taken(), 0);
}

TEST(CudaAttention, NothingToDo) {
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  AttentionProblem nobody({.sequences = {{1, 0, 30}}});
  EXPECT_TRUE(DeviceProblem(*gpu, nobody, DType::kF32, 0).run().empty());
}

}  // namespace
}  // namespace quire

// Rotation, page writes and attention of a step in one call, against the three one after another: the same bits of the
// outputs and of every byte of the pages, slots of others and guards included.
#include <algorithm>

#include "ops/cuda/attention.h"
#include "ops/tests/attention_problem.h"
#include "ops/tests/cuda_test_support.h"

namespace quire {
namespace {

struct Rotation {
  RopeStyle style = RopeStyle::kHalves;
  int rotary_dim = 0;  // 0: all of head_dim
};

class RopeAttentionStep {
 public:
  // Every seventh row is a padded one where `has_padding`: no context and no slot. Every eleventh has a context, and no
  // slot: what its page holds already is used.
  RopeAttentionStep(Gpu& gpu, const AttentionCase& attention_case, DType dtype, const Rotation& rotation,
                    bool has_padding)
      : gpu_(gpu),
        case_(attention_case),
        dtype_(dtype),
        rotation_(rotation),
        problem_(attention_case),
        num_tokens_(problem_.num_tokens()) {
    const AttentionBatch host = problem_.batch();
    starts_.assign(host.host_query_starts.begin(), host.host_query_starts.end());
    lengths_.assign(host.host_context_lengths.begin(), host.host_context_lengths.end());
    slots_.assign(host.slots.data<int64_t>(), host.slots.data<int64_t>() + num_tokens_);
    // New keys and values are not there yet, but where no slot is given.
    for (int s = 0; s < host.num_sequences; ++s) {
      const size_t i = static_cast<size_t>(s);
      const int num_queries = starts_[i + 1] - starts_[i];
      const size_t token = static_cast<size_t>(starts_[i]);
      if (has_padding && s % 7 == 3 && num_queries == 1) {
        lengths_[i] = 0;
        slots_[token] = -1;
      } else if (has_padding && s % 11 == 5 && num_queries == 1) {
        slots_[token] = -1;
      } else {
        for (int j = 0; j < num_queries; ++j) problem_.poison(s, lengths_[i] - num_queries + j);
      }
    }
    const PagedKv kv = problem_.kv();
    int64_t page_elements = 2 * case_.num_kv_heads * kv.head_stride;
    if (has_kv_scales(kv.dtype)) page_elements += 2 * 2 * int64_t{case_.num_kv_heads} * case_.page_size;
    pool_bytes_ = ((kv.num_pages - 1) * kv.page_stride + page_elements) * dtype_bytes(kv.dtype);
    const int rotary_dim = rotation.rotary_dim > 0 ? rotation.rotary_dim : case_.head_dim;
    TestRandom random(case_.seed + 5);
    table_ = random.normals(num_tokens_ * rotary_dim);
    table_columns_ = rotary_dim;
    width_ = int64_t{case_.num_heads + 2 * case_.num_kv_heads} * case_.head_dim;
    qkv_ = round_all(dtype, random.normals(num_tokens_ * width_));
  }

  struct Outcome {
    std::vector<float> out;
    std::vector<uint8_t> pages;
    bool would_fuse = false;
  };
  Outcome run(bool is_fused) {
    DeviceMatrix table(gpu_, DType::kF32, num_tokens_, table_columns_, 4);
    table.fill(table_);
    DeviceMatrix out(gpu_, dtype_, num_tokens_, problem_.row_size(), 8);
    const AttentionBatch host = problem_.batch();
    const DeviceBuffer starts = gpu_.upload(starts_);
    const DeviceBuffer lengths = gpu_.upload(lengths_);
    const DeviceBuffer slots = gpu_.upload(slots_);
    const DeviceBuffer page_table =
        gpu_.upload(host.page_table.raw_data(), host.page_table.num_elements() * dtype_bytes(DType::kI32));
    AttentionBatch batch = host;
    batch.host_context_lengths = lengths_;
    batch.query_starts = ConstTensorView(starts.data(), DType::kI32, {host.num_sequences + 1});
    batch.context_lengths = ConstTensorView(lengths.data(), DType::kI32, {host.num_sequences});
    batch.page_table =
        ConstTensorView(page_table.data(), DType::kI32, {host.page_table.size(0), host.page_table.size(1)});
    batch.slots = ConstTensorView(slots.data(), DType::kI64, {num_tokens_});
    PagedKv kv = problem_.kv();
    const char* const host_k = static_cast<const char*>(kv.k);
    // Pages stand 128 bytes from their memory's beginning, so that what is written before or behind them shows.
    std::vector<uint8_t> pool(static_cast<size_t>(pool_bytes_) + 2 * kGuard, 0xff);
    std::memcpy(pool.data() + kGuard, host_k, static_cast<size_t>(pool_bytes_));
    const DeviceBuffer memory = gpu_.upload(pool);
    char* const device_k = static_cast<char*>(memory.data()) + kGuard;
    for (void** part : {&kv.v, &kv.k_scales, &kv.v_scales}) {
      if (*part != nullptr) *part = device_k + (static_cast<char*>(*part) - host_k);
    }
    kv.k = device_k;
    const std::unique_ptr<AttentionPlan> plan = gpu_.ops().create_attention_plan(problem_.geometry()).value();
    gpu_.ops().plan_attention(gpu_.context(), *plan, batch);
    Outcome outcome;
    for (int i = 0; i < 2; ++i) {  // a plan serves many layers
      DeviceMatrix qkv(gpu_, dtype_, num_tokens_, width_, 16);
      qkv.fill(qkv_);
      const int64_t d = case_.head_dim;
      const int64_t k_begin = case_.num_heads * d;
      const int64_t v_begin = k_begin + case_.num_kv_heads * d;
      const Ops::QueryKeyValue inputs{.q = qkv.view().slice(1, 0, k_begin).split_last_dimension(d),
                                      .k = qkv.view().slice(1, k_begin, v_begin).split_last_dimension(d),
                                      .v = qkv.view().slice(1, v_begin, width_).split_last_dimension(d),
                                      .rope_table = table.view(),
                                      .rope_style = rotation_.style};
      if (is_fused) {
        gpu_.ops().rope_and_attention(gpu_.context(), out.heads(d), inputs, kv, batch, *plan, case_.params);
      } else {
        gpu_.ops().Ops::rope_and_attention(gpu_.context(), out.heads(d), inputs, kv, batch, *plan, case_.params);
      }
      const cuda::AttentionCall call{.stream = nullptr,
                                     .part = cuda::StepPart::kDecode,
                                     .out = out.heads(d),
                                     .q = inputs.q,
                                     .kv = kv,
                                     .batch = batch,
                                     .plan = static_cast<const cuda::CudaAttentionPlan&>(*plan),
                                     .params = case_.params};
      outcome.would_fuse = cuda::accepts_decode_fused(
          call, {.k = inputs.k, .v = inputs.v, .table = inputs.rope_table, .is_interleaved = false});
      gpu_.synchronize();
    }
    outcome.out = out.values();
    outcome.pages.resize(pool.size());
    gpu_.ops().copy_to_host(gpu_.context(), outcome.pages.data(), memory.data(),
                            static_cast<int64_t>(outcome.pages.size()));
    gpu_.synchronize();
    return outcome;
  }

 private:
  static constexpr size_t kGuard = 128;

  Gpu& gpu_;
  AttentionCase case_;
  DType dtype_;
  Rotation rotation_;
  AttentionProblem problem_;
  int64_t num_tokens_;
  std::vector<int32_t> starts_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> slots_;
  std::vector<float> table_;
  int64_t table_columns_ = 0;
  std::vector<float> qkv_;
  int64_t width_ = 0;
  int64_t pool_bytes_ = 0;
};

// Bits: padded rows are not written, and hold NaN.
void compare(Gpu& gpu, const AttentionCase& attention_case, DType dtype, const Rotation& rotation, bool has_padding,
             bool should_fuse = true) {
  SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " over " << dtype_name(attention_case.dtype) << ", head_dim "
                                  << attention_case.head_dim << ", " << attention_case.num_heads << "/"
                                  << attention_case.num_kv_heads << " heads, pages of " << attention_case.page_size
                                  << ", window " << attention_case.params.window << ", "
                                  << attention_case.sequences.size() << " sequences, rotary_dim " << rotation.rotary_dim
                                  << ", style " << static_cast<int>(rotation.style));
  RopeAttentionStep step(gpu, attention_case, dtype, rotation, has_padding);
  const auto fused = step.run(true);
  const auto plain = step.run(false);
  EXPECT_EQ(fused.would_fuse, should_fuse);
  ASSERT_EQ(fused.out.size(), plain.out.size());
  const auto bits_differ = [](float a, float b) { return std::memcmp(&a, &b, sizeof(a)) != 0; };
  for (size_t i = 0; i < fused.out.size(); ++i) {
    if (!bits_differ(fused.out[i], plain.out[i])) continue;
    ADD_FAILURE() << "output " << i << ": " << fused.out[i] << " and " << plain.out[i];
    break;
  }
  const auto [mine, theirs] = std::mismatch(fused.pages.begin(), fused.pages.end(), plain.pages.begin());
  EXPECT_TRUE(mine == fused.pages.end()) << "byte " << (mine - fused.pages.begin())
                                         << " of the pages: " << static_cast<int>(*mine) << " and "
                                         << static_cast<int>(*theirs);
}

std::vector<AttentionSequence> lone_queries(const std::vector<int>& lengths) {
  std::vector<AttentionSequence> sequences;
  for (size_t i = 0; i < lengths.size(); ++i) sequences.push_back({i + 1, 1, lengths[i]});
  return sequences;
}

TEST(CudaRopeAttention, HasTheBitsOfOneAfterAnother) {
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  const std::vector<int> lengths = {1, 2, 15, 16, 17, 33, 63, 64, 65, 200, 448, 449, 511, 512, 513, 700, 1025, 1100};
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const DType cache_dtype : {dtype, DType::kF8E4M3, DType::kI8}) {
      for (const int head_dim : {64, 96, 128, 256}) {
        for (const RopeStyle style : {RopeStyle::kHalves, RopeStyle::kInterleaved}) {
          for (const int rotary_dim : {0, 32}) {
            compare(*gpu,
                    {.num_heads = 8,
                     .num_kv_heads = 2,
                     .head_dim = head_dim,
                     .page_size = 16,
                     .dtype = cache_dtype,
                     .query_dtype = dtype,
                     .params = {.scale = 0.088f},
                     .sequences = lone_queries(lengths)},
                    dtype, {style, rotary_dim}, true);
          }
        }
      }
    }
  }
}

TEST(CudaRopeAttention, OneSequenceOfAnyLength) {
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  for (const DType cache_dtype : {DType::kBF16, DType::kF8E4M3, DType::kI8}) {
    for (const int length : {1, 16, 17, 64, 128, 129, 500, 512, 513, 1024, 4097, 9000}) {
      compare(*gpu,
              {.num_heads = 32,
               .num_kv_heads = 8,
               .head_dim = 128,
               .dtype = cache_dtype,
               .query_dtype = DType::kBF16,
               .params = {.scale = 0.088f},
               .sequences = {{1, 1, length}}},
              DType::kBF16, {}, false);
    }
  }
}

// Heads of several kinds, pages, windows, soft caps; one unit a block, two, and more than are fused.
TEST(CudaRopeAttention, OtherHeadsPagesAndWindows) {
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  struct Kind {
    int num_heads;
    int num_kv_heads;
    int head_dim;
    int page_size;
    int window;
    float soft_cap;
    int num_sequences;
    bool should_fuse = true;
  };
  for (const Kind& kind : {Kind{40, 2, 128, 32, 0, 0.0f, 3},
                           {18, 2, 256, 16, 600, 0.0f, 5},
                           {7, 1, 64, 64, 100, 0.0f, 4},
                           {9, 3, 64, 16, 1, 0.0f, 30},
                           {12, 4, 96, 128, 0, 20.0f, 9},
                           {32, 8, 128, 16, 0, 0.0f, 8},
                           {32, 8, 128, 256, 300, 5.0f, 16},
                           {24, 8, 128, 16, 0, 0.0f, 40, false},
                           {8, 8, 256, 32, 0, 0.0f, 60, false},
                           {8, 1, 256, 32, 0, 0.0f, 60},
                           {4, 1, 128, 16, 0, 0.0f, 200},
                           {32, 8, 128, 16, 0, 0.0f, 300, false}}) {
    std::vector<int> lengths;
    const int longest = kind.num_sequences > 50 ? 300 : 1400;
    for (int i = 0; i < kind.num_sequences; ++i) lengths.push_back(1 + i * 397 % longest);
    for (const DType cache_dtype : {DType::kBF16, DType::kF8E4M3, DType::kI8}) {
      compare(*gpu,
              {.num_heads = kind.num_heads,
               .num_kv_heads = kind.num_kv_heads,
               .head_dim = kind.head_dim,
               .page_size = kind.page_size,
               .dtype = cache_dtype,
               .query_dtype = DType::kBF16,
               .params = {.scale = 0.088f, .soft_cap = kind.soft_cap, .window = kind.window},
               .sequences = lone_queries(lengths)},
              DType::kBF16, {kind.num_heads % 2 == 0 ? RopeStyle::kHalves : RopeStyle::kInterleaved, 0}, true,
              kind.should_fuse);
    }
  }
}

// What the one kernel does not take: sequences of several queries, floats, and head sizes between.
TEST(CudaRopeAttention, OtherStepsGoOneAfterAnother) {
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  compare(*gpu,
          {.head_dim = 128,
           .dtype = DType::kBF16,
           .query_dtype = DType::kBF16,
           .sequences = {{1, 1, 40}, {2, 3, 90}, {3, 1, 600}}},
          DType::kBF16, {}, false, false);
  compare(*gpu, {.sequences = {{1, 1, 40}, {3, 1, 600}}}, DType::kF32, {}, false, false);
  compare(*gpu,
          {.head_dim = 160, .dtype = DType::kBF16, .query_dtype = DType::kBF16, .sequences = {{1, 1, 40}, {3, 1, 600}}},
          DType::kBF16, {}, false, false);
}

}  // namespace
}  // namespace quire

// write_kv, copy_pages and gather_rows: what is written, and that nothing else is.
#include <gtest/gtest.h>

#include <cstring>

#include "ops/cpu/elementwise.h"
#include "ops/reference/reference_ops.h"
#include "ops/tests/cpu_rows.h"
#include "ops/tests/op_test.h"

namespace quire {
namespace {

struct Cache {
  Cache(DType dtype, int num_pages, int page_size, int num_kv_heads, int head_dim) {
    const int64_t head_stride = int64_t{page_size} * head_dim;
    const int64_t page_stride = 2 * num_kv_heads * head_stride + 10;  // a stretch of another layer behind each page
    bytes.assign(static_cast<size_t>(num_pages * page_stride * dtype_bytes(dtype)), '\xa5');
    kv = {.k = bytes.data(),
          .v = bytes.data() + num_kv_heads * head_stride * dtype_bytes(dtype),
          .dtype = dtype,
          .page_stride = page_stride,
          .head_stride = head_stride,
          .token_stride = head_dim,
          .num_pages = num_pages,
          .page_size = page_size,
          .num_kv_heads = num_kv_heads,
          .head_dim = head_dim};
  }
  std::vector<char> bytes;
  PagedKv kv;
};

void store_expected(const PagedKv& kv, void* data, int64_t index, float x) {
  if (kv.dtype == DType::kF32) {
    static_cast<float*>(data)[index] = x;
  } else {
    static_cast<uint16_t*>(data)[index] = kv.dtype == DType::kF16 ? f32_to_f16(x) : f32_to_bf16(x);
  }
}

TEST(WriteKv, EveryRowWritesTheSlotsAndNothingElse) {
  Arena arena = make_test_arena(1024);
  OpContext context{arena};
  ReferenceOps reference;
  TestRandom random(41);
  const std::vector<CpuRow> rows = cpu_rows("write_kv", cpu::write_kv_rows());
  const std::vector<int64_t> slots = {5, 0, -1, 47, 16, -7, 31, 32};
  const int64_t num_tokens = static_cast<int64_t>(slots.size());
  const ConstTensorView slots_view(slots.data(), DType::kI64, {num_tokens});
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int head_dim : {8, 16, 24, 64, 100}) {
      const int num_kv_heads = 3;
      const int64_t size = num_kv_heads * head_dim;
      GuardedMatrix k(num_tokens, size, 5);
      GuardedMatrix v(num_tokens, size, 9);
      k.fill(random.normals(num_tokens * size, 100.0f));
      v.fill(random.normals(num_tokens * size));
      // What rounding gets wrong: ties, subnormals, overflow, infinity, NaN.
      const float special[] = {1.00048828125f, 1.0009765625f + 0.00048828125f,         65519.0f, 65520.0f, 1e-7f, 6e-8f,
                               2e-8f,          -std::numeric_limits<float>::infinity()};
      std::copy(std::begin(special), std::end(special), k.row(0));
      v.row(1)[3] = std::numeric_limits<float>::quiet_NaN();

      Cache expected(dtype, 3, 16, num_kv_heads, head_dim);
      for (int64_t t = 0; t < num_tokens; ++t) {
        const int64_t slot = slots[static_cast<size_t>(t)];
        if (slot < 0) continue;
        for (int64_t head = 0; head < num_kv_heads; ++head) {
          for (int64_t d = 0; d < head_dim; ++d) {
            const int64_t index = slot / 16 * expected.kv.page_stride + head * expected.kv.head_stride +
                                  slot % 16 * expected.kv.token_stride + d;
            store_expected(expected.kv, expected.kv.k, index, k.at(t, head * head_dim + d));
            store_expected(expected.kv, expected.kv.v, index, v.at(t, head * head_dim + d));
          }
        }
      }
      const TensorView k_heads = k.view().split_last_dimension(head_dim);
      const TensorView v_heads = v.view().split_last_dimension(head_dim);
      const auto check = [&](Ops& ops) {
        Cache cache(dtype, 3, 16, num_kv_heads, head_dim);
        ops.write_kv(context, cache.kv, k_heads, v_heads, slots_view);
        EXPECT_EQ(std::memcmp(cache.bytes.data(), expected.bytes.data(), cache.bytes.size()), 0)
            << dtype_name(dtype) << ", head_dim " << head_dim;
      };
      check(reference);
      for (const CpuRow& row : rows) {
        SCOPED_TRACE(row.name);
        check(*row.ops);
      }
    }
  }
}

TEST(RopeAndWriteKv, GivesWhatTheThreeOpsGive) {
  Arena arena = make_test_arena(1024);
  OpContext context{arena};
  TestRandom random(43);
  constexpr int kHeads = 6;
  constexpr int kKvHeads = 2;
  constexpr int kHeadDim = 64;
  for (const int num_threads : {1, 3}) {
    const std::unique_ptr<CpuOps> ops = make_cpu_ops(num_threads);
    for (const int num_tokens : {0, 1, 7, 150}) {
      for (const RopeStyle style : {RopeStyle::kHalves, RopeStyle::kInterleaved}) {
        GuardedMatrix q(num_tokens, kHeads * kHeadDim, 3);
        GuardedMatrix k(num_tokens, kKvHeads * kHeadDim, 5);
        GuardedMatrix v(num_tokens, kKvHeads * kHeadDim, 7);
        GuardedMatrix table(num_tokens, kHeadDim / 2, 0);  // not all of a head is rotated
        const std::vector<float> q_values = random.normals(num_tokens * kHeads * kHeadDim);
        const std::vector<float> k_values = random.normals(num_tokens * kKvHeads * kHeadDim);
        v.fill(random.normals(num_tokens * kKvHeads * kHeadDim));
        table.fill(random.normals(num_tokens * kHeadDim / 2));
        std::vector<int64_t> slots;
        for (int t = 0; t < num_tokens; ++t) slots.push_back(t % 5 == 3 ? -1 : (t * 7 + 3) % 160);
        const ConstTensorView slots_view(slots.data(), DType::kI64, {num_tokens});
        const auto run = [&](Ops& target_ops, bool is_fused) {
          Cache cache(DType::kF16, 10, 16, kKvHeads, kHeadDim);
          q.fill(q_values);
          k.fill(k_values);
          const TensorView q_heads = q.view().split_last_dimension(kHeadDim);
          const TensorView k_heads = k.view().split_last_dimension(kHeadDim);
          const TensorView v_heads = v.view().split_last_dimension(kHeadDim);
          const Ops::KvTarget target{cache.kv, slots_view};
          if (is_fused) {
            target_ops.rope_and_write_kv(context, q_heads, k_heads, v_heads, table.view(), style, target);
          } else {
            target_ops.Ops::rope_and_write_kv(context, q_heads, k_heads, v_heads, table.view(), style, target);
          }
          std::vector<float> rotated;
          for (int t = 0; t < num_tokens; ++t) rotated.insert(rotated.end(), q.row(t), q.row(t) + kHeads * kHeadDim);
          return std::pair(cache.bytes, rotated);
        };
        const auto expected = run(*ops, false);
        EXPECT_TRUE(expected == run(*ops, true)) << num_threads << " threads, " << num_tokens << " tokens";
      }
    }
  }
}

TEST(CopyPages, CopiesWholePagesInOrder) {
  Arena arena = make_test_arena(1024);
  OpContext context{arena};
  ReferenceOps reference;
  const std::unique_ptr<CpuOps> cpu = make_cpu_ops(2);
  for (Ops* ops : {static_cast<Ops*>(&reference), static_cast<Ops*>(cpu.get())}) {
    std::string pool = "aaaabbbbccccdddd";
    const Ops::PageCopy copies[] = {{0, 2}, {3, 1}, {2, 3}};  // the last one reads what the first one wrote
    ops->copy_pages(context, pool.data(), 4, copies);
    EXPECT_EQ(pool, "aaaaddddaaaaaaaa");
    ops->copy_pages(context, pool.data(), 4, {});
    EXPECT_EQ(pool, "aaaaddddaaaaaaaa");
  }
}

TEST(GatherRows, TakesRowsInAnyOrder) {
  Arena arena = make_test_arena(1024);
  OpContext context{arena};
  TestRandom random(42);
  ReferenceOps reference;
  const std::unique_ptr<CpuOps> cpu = make_cpu_ops(2);
  for (Ops* ops : {static_cast<Ops*>(&reference), static_cast<Ops*>(cpu.get())}) {
    GuardedMatrix x(5, 33, 4);
    x.fill(random.normals(5 * 33));
    const std::vector<int32_t> rows = {4, 0, 4, 2};
    GuardedMatrix y(4, 33, 2);
    ops->gather_rows(context, y.view(), x.view(), ConstTensorView(rows.data(), DType::kI32, {4}));
    EXPECT_TRUE(y.guards_are_intact());
    for (int64_t i = 0; i < 4; ++i) {
      for (int64_t c = 0; c < 33; ++c) EXPECT_EQ(y.at(i, c), x.at(rows[static_cast<size_t>(i)], c));
    }
    GuardedMatrix none(0, 33);
    ops->gather_rows(context, none.view(), x.view(), ConstTensorView(rows.data(), DType::kI32, {0}));
  }
}

}  // namespace
}  // namespace quire

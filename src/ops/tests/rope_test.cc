// rope_table and rope: against double, both pairings, part of a head rotated, every CPU row.
#include <gtest/gtest.h>

#include "ops/cpu/elementwise.h"
#include "ops/reference/reference_ops.h"
#include "ops/tests/cpu_rows.h"
#include "ops/tests/op_test.h"

namespace quire {
namespace {

std::vector<float> frequencies(int64_t half) {
  std::vector<float> all;
  for (int64_t i = 0; i < half; ++i) {
    all.push_back(static_cast<float>(1.0 / std::pow(10000.0, static_cast<double>(i) / static_cast<double>(half))));
  }
  return all;
}

TEST(RopeTable, CosinesAndSinesOfTheFloatProduct) {
  std::vector<int32_t> positions = {0, 1, 2, 100, 4095, 8192, 131071, 1000003};
  const std::vector<float> inverse = frequencies(32);
  constexpr float kFactor = 1.25f;
  std::vector<double> exact;
  for (const int32_t position : positions) {
    for (const bool is_sine : {false, true}) {
      for (const float frequency : inverse) {
        const double angle = double{static_cast<float>(position) * frequency};
        exact.push_back((is_sine ? std::sin(angle) : std::cos(angle)) * double{kFactor});
      }
    }
  }
  const ConstTensorView positions_view(positions.data(), DType::kI32, {8});
  const RopeParams params{.inverse_frequencies = ConstTensorView(inverse.data(), DType::kF32, {32}),
                          .attention_factor = kFactor};
  Arena arena = make_test_arena(1024);
  OpContext context{arena};
  ReferenceOps reference;
  GuardedMatrix plain(8, 64, 3);
  reference.rope_table(context, plain.view(), positions_view, params);
  EXPECT_TRUE(all_near(plain.values(), exact, 2e-7));
  for (const int num_threads : {1, 3}) {
    GuardedMatrix table(8, 64, 3);
    make_cpu_ops(num_threads)->rope_table(context, table.view(), positions_view, params);
    EXPECT_TRUE(equal_bits(table.values(), plain.values()));
    EXPECT_TRUE(table.guards_are_intact());
  }
}

TEST(Rope, EveryRowEqualsTheReference) {
  Arena arena = make_test_arena(1024);
  OpContext context{arena};
  ReferenceOps reference;
  TestRandom random(31);
  const std::vector<CpuRow> rows = cpu_rows("rope", cpu::rope_rows());
  struct Shape {
    int64_t num_tokens;
    int64_t num_heads;
    int64_t head_dim;
    int64_t rotary_dim;
  };
  for (const Shape& shape :
       {Shape{0, 2, 64, 64}, Shape{1, 1, 2, 2}, Shape{3, 9, 64, 64}, Shape{200, 3, 64, 64}, Shape{5, 4, 128, 128},
        Shape{5, 4, 80, 32}, Shape{4, 2, 24, 24}, Shape{4, 2, 40, 14}, Shape{2, 3, 256, 256}, Shape{2, 2, 96, 0}}) {
    for (const RopeStyle style : {RopeStyle::kHalves, RopeStyle::kInterleaved}) {
      SCOPED_TRACE(testing::Message() << shape.num_tokens << " x " << shape.num_heads << " x " << shape.head_dim << ", "
                                      << shape.rotary_dim << " rotated, style " << static_cast<int>(style));
      const int64_t size = shape.num_heads * shape.head_dim;
      const int64_t half = shape.rotary_dim / 2;
      const std::vector<float> input = random.normals(shape.num_tokens * size);
      GuardedMatrix table(shape.num_tokens, shape.rotary_dim, 2);
      for (int64_t t = 0; t < shape.num_tokens; ++t) {
        for (int64_t i = 0; i < half; ++i) {
          const float angle = random.uniform(-3, 3);
          table.row(t)[i] = std::cos(angle);
          table.row(t)[half + i] = std::sin(angle);
        }
      }
      std::vector<double> exact(input.begin(), input.end());
      for (int64_t t = 0; t < shape.num_tokens; ++t) {
        for (int64_t head = 0; head < shape.num_heads; ++head) {
          double* x = exact.data() + t * size + head * shape.head_dim;
          for (int64_t i = 0; i < half; ++i) {
            double& a = style == RopeStyle::kHalves ? x[i] : x[2 * i];
            double& b = style == RopeStyle::kHalves ? x[i + half] : x[2 * i + 1];
            const double c = double{table.row(t)[i]};
            const double s = double{table.row(t)[half + i]};
            const double rotated_a = a * c - b * s;
            b = b * c + a * s;
            a = rotated_a;
          }
        }
      }
      GuardedMatrix plain(shape.num_tokens, size, 6);
      plain.fill(input);
      reference.rope(context, plain.view().split_last_dimension(shape.head_dim), table.view(), style);
      EXPECT_TRUE(all_near(plain.values(), exact, 1e-6));
      EXPECT_TRUE(plain.guards_are_intact());
      for (const CpuRow& row : rows) {
        SCOPED_TRACE(row.name);
        GuardedMatrix x(shape.num_tokens, size, 6);
        x.fill(input);
        row.ops->rope(context, x.view().split_last_dimension(shape.head_dim), table.view(), style);
        EXPECT_TRUE(equal_bits(x.values(), plain.values()));
        EXPECT_TRUE(x.guards_are_intact());
      }
    }
  }
}

}  // namespace
}  // namespace quire

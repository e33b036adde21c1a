// rms_norm and add_rms_norm: every CPU row against the reference and double, strided rows and heads, in place, and the
// fused op against the two plain ones.
#include <gtest/gtest.h>

#include "ops/cpu/elementwise.h"
#include "ops/reference/reference_ops.h"
#include "ops/tests/cpu_rows.h"
#include "ops/tests/op_test.h"

namespace quire {
namespace {

constexpr float kEpsilon = 1e-5f;

struct Shape {
  int64_t num_tokens;
  int64_t num_heads;  // 0: a matrix
  int64_t size;
};
constexpr Shape kShapes[] = {{0, 0, 576}, {1, 0, 1},     {1, 0, 15},  {3, 0, 16},    {2, 0, 17},   {5, 0, 63},
                             {5, 0, 64},  {5, 0, 65},    {7, 0, 576}, {130, 0, 640}, {3, 0, 4096}, {4, 3, 64},
                             {9, 9, 64},  {300, 4, 128}, {2, 1, 256}, {3, 5, 24}};

int64_t num_columns(const Shape& shape) {
  return std::max<int64_t>(1, shape.num_heads) * shape.size;
}

TensorView shaped(GuardedMatrix& matrix, const Shape& shape) {
  return shape.num_heads == 0 ? matrix.view() : matrix.view().split_last_dimension(shape.size);
}

std::vector<double> exact_norm(const std::vector<float>& x, const std::vector<float>& weight) {
  const size_t size = weight.size();
  std::vector<double> y(x.size());
  for (size_t begin = 0; begin < x.size(); begin += size) {
    double sum = 0;
    for (size_t i = 0; i < size; ++i) sum += double{x[begin + i]} * double{x[begin + i]};
    const double factor = 1 / std::sqrt(sum / static_cast<double>(size) + double{kEpsilon});
    for (size_t i = 0; i < size; ++i) y[begin + i] = double{x[begin + i]} * factor * double{weight[i]};
  }
  return y;
}

TEST(RmsNorm, EveryRowIsCloseAndRowsOfOneOrderAgree) {
  ReferenceOps reference;
  Arena arena = make_test_arena(1024);
  OpContext context{arena};
  const std::vector<CpuRow> rows = cpu_rows("rms_norm", cpu::rms_norm_rows());
  TestRandom random(11);
  SCOPED_TRACE(random.trace());
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.num_tokens << " x " << shape.num_heads << " x " << shape.size);
    GuardedMatrix x(shape.num_tokens, num_columns(shape), 5);
    x.fill(random.normals(shape.num_tokens * num_columns(shape), 3.0f));
    std::vector<float> weight = random.normals(shape.size);
    const ConstTensorView weight_view(weight.data(), DType::kF32, {shape.size});
    GuardedMatrix plain(shape.num_tokens, num_columns(shape), 9);
    reference.rms_norm(context, shaped(plain, shape), shaped(x, shape), weight_view, kEpsilon);
    const std::vector<double> exact = exact_norm(x.values(), weight);
    EXPECT_TRUE(all_near(plain.values(), exact, 1e-4));

    std::vector<float> first;
    for (const CpuRow& row : rows) {
      SCOPED_TRACE(row.name);
      GuardedMatrix y(shape.num_tokens, num_columns(shape), 9);
      row.ops->rms_norm(context, shaped(y, shape), shaped(x, shape), weight_view, kEpsilon);
      EXPECT_TRUE(y.guards_are_intact());
      EXPECT_TRUE(kernel_is_close(y.values(), plain.values(), exact));
      if (first.empty()) first = y.values();
      EXPECT_TRUE(equal_bits(y.values(), first));

      GuardedMatrix in_place(shape.num_tokens, num_columns(shape), 5);
      in_place.fill(x.values());
      row.ops->rms_norm(context, shaped(in_place, shape), shaped(in_place, shape), weight_view, kEpsilon);
      EXPECT_TRUE(equal_bits(in_place.values(), first));
    }
  }
}

TEST(RmsNorm, FusedWithAdditionEqualsBothApart) {
  Arena arena = make_test_arena(1024);
  OpContext context{arena};
  TestRandom random(12);
  for (const CpuRow& row : cpu_rows("rms_norm", cpu::rms_norm_rows())) {
    SCOPED_TRACE(row.name);
    for (const Shape& shape : kShapes) {
      if (shape.num_heads != 0) continue;
      const int64_t count = shape.num_tokens * shape.size;
      std::vector<float> weight = random.normals(shape.size);
      const ConstTensorView weight_view(weight.data(), DType::kF32, {shape.size});
      GuardedMatrix x(shape.num_tokens, shape.size, 3);
      GuardedMatrix delta(shape.num_tokens, shape.size, 1);
      GuardedMatrix y(shape.num_tokens, shape.size, 2);
      x.fill(random.normals(count));
      delta.fill(random.normals(count));
      GuardedMatrix plain_x(shape.num_tokens, shape.size);
      GuardedMatrix plain_y(shape.num_tokens, shape.size);
      plain_x.fill(x.values());
      row.ops->Ops::add_rms_norm(context, plain_y.view(), plain_x.view(), delta.view(), weight_view, kEpsilon);
      row.ops->add_rms_norm(context, y.view(), x.view(), delta.view(), weight_view, kEpsilon);
      EXPECT_TRUE(equal_bits(y.values(), plain_y.values()));
      EXPECT_TRUE(equal_bits(x.values(), plain_x.values()));
      EXPECT_TRUE(x.guards_are_intact());
      EXPECT_TRUE(y.guards_are_intact());
    }
  }
}

}  // namespace
}  // namespace quire

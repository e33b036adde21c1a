// add, gated_activation and soft_cap: every CPU row against the reference and double; all rows bit for bit.
#include <gtest/gtest.h>

#include <functional>

#include "ops/cpu/elementwise.h"
#include "ops/reference/reference_ops.h"
#include "ops/tests/cpu_rows.h"
#include "ops/tests/op_test.h"

namespace quire {
namespace {

struct Shape {
  int64_t num_rows;
  int64_t size;
};
constexpr Shape kShapes[] = {{0, 64}, {1, 1}, {2, 15}, {3, 16}, {2, 17}, {5, 100}, {7, 1536}, {40, 2048}};

using Run = std::function<void(Ops& ops, OpContext& context, TensorView y, ConstTensorView a, ConstTensorView b)>;
using Exact = std::function<double(double a, double b)>;

void check_rows(const std::vector<CpuRow>& rows, float input_scale, const Run& run, const Exact& exact_of) {
  ReferenceOps reference;
  Arena arena = make_test_arena(1024);
  OpContext context{arena};
  TestRandom random(21);
  SCOPED_TRACE(random.trace());
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.num_rows << " x " << shape.size);
    GuardedMatrix a(shape.num_rows, shape.size, 3);
    GuardedMatrix b(shape.num_rows, shape.size, 8);
    a.fill(random.normals(shape.num_rows * shape.size, input_scale));
    b.fill(random.normals(shape.num_rows * shape.size));
    const std::vector<float> a_values = a.values();
    const std::vector<float> b_values = b.values();
    std::vector<double> exact;
    for (size_t i = 0; i < a_values.size(); ++i) {
      exact.push_back(exact_of(double{a_values[i]}, double{b_values[i]}));
    }
    GuardedMatrix plain(shape.num_rows, shape.size);
    plain.fill(a_values);
    run(reference, context, plain.view(), a.view(), b.view());
    EXPECT_TRUE(all_near(plain.values(), exact, 1e-5 * std::max(1.0f, input_scale)));

    std::vector<float> first;
    for (const CpuRow& row : rows) {
      SCOPED_TRACE(row.name);
      GuardedMatrix y(shape.num_rows, shape.size, 5);
      y.fill(a_values);
      run(*row.ops, context, y.view(), a.view(), b.view());
      EXPECT_TRUE(y.guards_are_intact());
      EXPECT_TRUE(kernel_is_close(y.values(), plain.values(), exact));
      if (first.empty()) first = y.values();
      EXPECT_TRUE(equal_bits(y.values(), first));

      // y may be a, or b.
      GuardedMatrix over_a(shape.num_rows, shape.size);
      over_a.fill(a_values);
      run(*row.ops, context, over_a.view(), over_a.view(), b.view());
      EXPECT_TRUE(equal_bits(over_a.values(), first));
    }
  }
}

TEST(Add, EveryRow) {
  check_rows(
      cpu_rows("elementwise", cpu::binary_rows()), 1.0f,
      [](Ops& ops, OpContext& context, TensorView y, ConstTensorView a, ConstTensorView b) {
        ops.add(context, y, a, b);
      },
      [](double a, double b) { return a + b; });
}

TEST(GatedActivation, SiluOfEveryRow) {
  for (const float scale : {0.01f, 1.0f, 30.0f}) {
    check_rows(
        cpu_rows("elementwise", cpu::binary_rows()), scale,
        [](Ops& ops, OpContext& context, TensorView y, ConstTensorView a, ConstTensorView b) {
          ops.gated_activation(context, y, a, b, Activation::kSilu);
        },
        [](double a, double b) { return a / (1 + std::exp(-a)) * b; });
  }
}

TEST(GatedActivation, GeluOfEveryRow) {
  for (const float scale : {0.01f, 1.0f, 30.0f}) {
    check_rows(
        cpu_rows("elementwise", cpu::binary_rows()), scale,
        [](Ops& ops, OpContext& context, TensorView y, ConstTensorView a, ConstTensorView b) {
          ops.gated_activation(context, y, a, b, Activation::kGeluTanh);
        },
        [](double a, double b) {
          const double u = std::sqrt(2 / 3.14159265358979323846) * (a + 0.044715 * a * a * a);
          return 0.5 * a * (1 + std::tanh(u)) * b;
        });
  }
}

TEST(SoftCap, EveryRow) {
  for (const float scale : {0.1f, 20.0f, 1000.0f}) {
    check_rows(
        cpu_rows("soft_cap", cpu::soft_cap_rows()), scale,
        [](Ops& ops, OpContext& context, TensorView y, ConstTensorView, ConstTensorView) {
          ops.soft_cap(context, y, 30.0f);
        },
        [](double a, double) { return 30 * std::tanh(a / 30); });
  }
}

// What an overflowing exponential must not turn into NaN, and a NaN must not turn into a number.
TEST(GatedActivation, ExtremeInputs) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> inputs = {0.0f, -0.0f, 1e-30f, -1e-30f, 88.0f, -88.0f, 500.0f, -500.0f, 1e30f, -1e30f, kNan};
  const int64_t size = static_cast<int64_t>(inputs.size());
  Arena arena = make_test_arena(1024);
  OpContext context{arena};
  for (const CpuRow& row : cpu_rows("elementwise", cpu::binary_rows())) {
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
      SCOPED_TRACE(row.name);
      GuardedMatrix gate(1, size);
      GuardedMatrix up(1, size);
      GuardedMatrix y(1, size);
      gate.fill(inputs);
      up.fill(std::vector<float>(inputs.size(), 1.0f));
      row.ops->gated_activation(context, y.view(), gate.view(), up.view(), activation);
      for (int64_t i = 0; i < size; ++i) {
        const float x = inputs[static_cast<size_t>(i)];
        if (std::isnan(x)) {
          EXPECT_TRUE(std::isnan(y.at(0, i)));
        } else if (x > 50) {
          EXPECT_EQ(y.at(0, i), x);
        } else if (x < -50) {
          EXPECT_NEAR(y.at(0, i), 0.0f, 1e-6f) << x;
        } else {
          EXPECT_NEAR(y.at(0, i), x / 2, 1e-30f) << x;
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire

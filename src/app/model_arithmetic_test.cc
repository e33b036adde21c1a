#include "app/model_arithmetic.h"

#include <gtest/gtest.h>

namespace quire::app {
namespace {

TEST(ModelArithmetic, FormatsAreOfAKind) {
  EXPECT_EQ(weight_kind(FormatId::kQ4_0), WeightKind::kInteger);
  EXPECT_EQ(weight_kind(FormatId::kBF16), WeightKind::kBF16);
  EXPECT_EQ(weight_kind(FormatId::kF16), WeightKind::kF16);
  EXPECT_EQ(weight_kind(FormatId::kF32), WeightKind::kOtherFloat);
}

TEST(ModelArithmetic, AutoLosesNothingThatTheWeightsSay) {
  const auto choose = [](WeightKind kind) { return choose_compute("auto", DeviceKind::kCpu, kind); };
  EXPECT_EQ(choose(WeightKind::kInteger), Compute::kAuto);
  EXPECT_EQ(choose(WeightKind::kBF16), Compute::kAuto);
  EXPECT_EQ(choose(WeightKind::kF16), Compute::kF32);
  EXPECT_EQ(choose(WeightKind::kOtherFloat), Compute::kF32);
}

TEST(ModelArithmetic, AFlagWinsOverTheWeights) {
  for (const WeightKind kind : {WeightKind::kInteger, WeightKind::kBF16, WeightKind::kF16, WeightKind::kOtherFloat}) {
    EXPECT_EQ(choose_compute("f32", DeviceKind::kCpu, kind), Compute::kF32);
    EXPECT_EQ(choose_compute("bf16", DeviceKind::kCpu, kind), Compute::kBF16);
    EXPECT_EQ(choose_compute("f32", DeviceKind::kCuda, kind), Compute::kF32);
    EXPECT_EQ(choose_compute("auto", DeviceKind::kCuda, kind), Compute::kAuto);
  }
}

TEST(ModelArithmetic, SaysInWhatProductsRun) {
  struct Expected {
    Compute compute;
    WeightKind kind;
    Arithmetic linear;
    Arithmetic attention;
  };
  const Expected all[] = {
      {Compute::kAuto, WeightKind::kInteger, Arithmetic::kInt8, Arithmetic::kBF16},
      {Compute::kAuto, WeightKind::kBF16, Arithmetic::kBF16, Arithmetic::kBF16},
      {Compute::kBF16, WeightKind::kF16, Arithmetic::kBF16, Arithmetic::kBF16},
      {Compute::kBF16, WeightKind::kOtherFloat, Arithmetic::kBF16, Arithmetic::kBF16},
      {Compute::kBF16, WeightKind::kInteger, Arithmetic::kInt8, Arithmetic::kBF16},
      {Compute::kF32, WeightKind::kInteger, Arithmetic::kF32, Arithmetic::kF32},
      {Compute::kF32, WeightKind::kOtherFloat, Arithmetic::kF32, Arithmetic::kF32},
  };
  for (const Expected& expected : all) {
    const ModelArithmetic found = model_arithmetic(expected.compute, expected.kind);
    EXPECT_EQ(found.linear, expected.linear) << arithmetic_name(found.linear);
    EXPECT_EQ(found.attention, expected.attention) << arithmetic_name(found.attention);
  }
}

}  // namespace
}  // namespace quire::app

#include "app/sameness.h"

#include <gtest/gtest.h>

namespace quire::app {
namespace {

// Of Qwen2.5-14B's shape.
ModelConfig large_model() {
  ModelConfig config;
  config.hidden_size = 5120;
  config.intermediate_size = 13824;
  config.num_heads = 40;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.vocab_size = 152064;
  return config;
}

TEST(Sameness, AutoKeepsOneOrderForLargeLayersOf16Bits) {
  EngineFlags flags;
  EXPECT_EQ(choose_sameness(flags, WeightKind::kBF16, large_model()), Sameness::kInBatches);
  EXPECT_EQ(choose_sameness(flags, WeightKind::kF16, large_model()), Sameness::kInBatches);
  EXPECT_EQ(choose_sameness(flags, WeightKind::kInteger, large_model()), Sameness::kOff);
  EXPECT_EQ(choose_sameness(flags, WeightKind::kOtherFloat, large_model()), Sameness::kOff);
  ModelConfig config = large_model();
  config.intermediate_size = 13312;
  EXPECT_EQ(choose_sameness(flags, WeightKind::kBF16, config), Sameness::kOff) << "small layers";
  config = large_model();
  config.vocab_size = 152065;
  EXPECT_EQ(choose_sameness(flags, WeightKind::kBF16, config), Sameness::kOff) << "a head of odd size";
}

TEST(Sameness, AutoLeavesItWhereAFlagChangesTheProducts) {
  const auto choose = [](WeightKind weights, const auto& change) {
    EngineFlags flags;
    change(flags);
    return choose_sameness(flags, weights, large_model());
  };
  EXPECT_EQ(choose(WeightKind::kBF16, [](EngineFlags& flags) { flags.dtype = "bf16"; }), Sameness::kInBatches);
  EXPECT_EQ(choose(WeightKind::kBF16, [](EngineFlags& flags) { flags.dtype = "f16"; }), Sameness::kOff);
  EXPECT_EQ(choose(WeightKind::kF16, [](EngineFlags& flags) { flags.dtype = "bf16"; }), Sameness::kOff);
  EXPECT_EQ(choose(WeightKind::kBF16, [](EngineFlags& flags) { flags.compute = "f32"; }), Sameness::kOff);
  EXPECT_EQ(choose(WeightKind::kBF16, [](EngineFlags& flags) { flags.quantization = "fp8"; }), Sameness::kOff);
  EXPECT_EQ(choose(WeightKind::kBF16, [](EngineFlags& flags) { flags.kernels = {"linear=any_shape"}; }),
            Sameness::kOff);
}

TEST(Sameness, AFlagWins) {
  EngineFlags flags;
  flags.sameness = "strict";
  EXPECT_EQ(choose_sameness(flags, WeightKind::kInteger, large_model()), Sameness::kStrict);
  flags.sameness = "off";
  EXPECT_EQ(choose_sameness(flags, WeightKind::kBF16, large_model()), Sameness::kOff);
}

}  // namespace
}  // namespace quire::app

#include "app/sameness.h"

#include <gtest/gtest.h>

namespace quire::app {
namespace {

ModelConfig llama_8b() {
  ModelConfig config;
  config.hidden_size = 4096;
  config.intermediate_size = 14336;
  config.num_heads = 32;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.vocab_size = 128256;
  return config;
}

TEST(Sameness, AutoKeepsOneOrderForLargeLayersOf16Bits) {
  EngineFlags flags;
  EXPECT_EQ(choose_sameness(flags, WeightKind::kBF16, llama_8b()), Sameness::kInBatches);
  EXPECT_EQ(choose_sameness(flags, WeightKind::kF16, llama_8b()), Sameness::kInBatches);
  EXPECT_EQ(choose_sameness(flags, WeightKind::kInteger, llama_8b()), Sameness::kOff);
  EXPECT_EQ(choose_sameness(flags, WeightKind::kOtherFloat, llama_8b()), Sameness::kOff);
  ModelConfig config = llama_8b();
  config.intermediate_size = 11008;
  EXPECT_EQ(choose_sameness(flags, WeightKind::kBF16, config), Sameness::kOff) << "small layers";
  config = llama_8b();
  config.vocab_size = 128257;
  EXPECT_EQ(choose_sameness(flags, WeightKind::kBF16, config), Sameness::kOff) << "a head of odd size";
}

TEST(Sameness, AutoLeavesItWhereAFlagChangesTheProducts) {
  const auto choose = [](WeightKind weights, const auto& change) {
    EngineFlags flags;
    change(flags);
    return choose_sameness(flags, weights, llama_8b());
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
  EXPECT_EQ(choose_sameness(flags, WeightKind::kInteger, llama_8b()), Sameness::kStrict);
  flags.sameness = "off";
  EXPECT_EQ(choose_sameness(flags, WeightKind::kBF16, llama_8b()), Sameness::kOff);
}

}  // namespace
}  // namespace quire::app

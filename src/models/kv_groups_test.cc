// How layers are grouped for the KV memory.
#include "models/kv_groups.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace quire {
namespace {

// Every `pattern`-th layer is full; 0: none.
ModelConfig hybrid(int num_layers, int pattern, int window) {
  ModelConfig config;
  config.num_layers = num_layers;
  config.head_dim = 64;
  config.sliding_window = window;
  for (int i = 0; i < num_layers; ++i) {
    config.layer_is_sliding.push_back(window > 0 && (pattern == 0 || (i + 1) % pattern != 0) ? 1 : 0);
  }
  return config;
}

TEST(KvGroups, OneKindIsOneGroup) {
  const std::vector<KvGroup> full = make_kv_groups(hybrid(30, 0, 0), 3, DType::kF16);
  ASSERT_EQ(full.size(), 1u);
  EXPECT_EQ(full[0].kind, KvKind::kFull);
  EXPECT_EQ(full[0].layers.size(), 30u);
  EXPECT_EQ(full[0].bytes_per_token(), 2 * 30 * 3 * 64 * 2);
  const std::vector<KvGroup> sliding = make_kv_groups(hybrid(32, 0, 4096), 8, DType::kF32);
  ASSERT_EQ(sliding.size(), 1u);
  EXPECT_EQ(sliding[0].kind, KvKind::kSlidingWindow);
  EXPECT_EQ(sliding[0].window, 4096);
}

TEST(KvGroups, Gemma270MHasSixGroupsOfThree) {
  const std::vector<KvGroup> groups = make_kv_groups(hybrid(18, 6, 512), 1, DType::kF16);
  ASSERT_EQ(groups.size(), 6u);
  EXPECT_EQ(groups[0].kind, KvKind::kFull);
  EXPECT_EQ(groups[0].layers, (std::vector<int>{5, 11, 17}));
  for (size_t g = 1; g < 6; ++g) {
    EXPECT_EQ(groups[g].kind, KvKind::kSlidingWindow);
    EXPECT_EQ(groups[g].layers.size(), 3u);
  }
}

TEST(KvGroups, EveryLayerIsInOneGroupAndLittleIsUnused) {
  for (int num_layers = 1; num_layers <= 80; ++num_layers) {
    for (const int pattern : {2, 3, 4, 6}) {
      const ModelConfig config = hybrid(num_layers, pattern, 128);
      const std::vector<KvGroup> groups = make_kv_groups(config, 2, DType::kF16);
      std::vector<int> seen;
      size_t largest = 0;
      for (const KvGroup& group : groups) {
        EXPECT_TRUE(std::is_sorted(group.layers.begin(), group.layers.end()));
        largest = std::max(largest, group.layers.size());
        for (const int layer : group.layers) {
          seen.push_back(layer);
          EXPECT_EQ(config.window_of_layer(layer), group.window);
        }
      }
      std::sort(seen.begin(), seen.end());
      ASSERT_EQ(seen.size(), static_cast<size_t>(num_layers));
      for (int i = 0; i < num_layers; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i);
      if (num_layers >= 12) {
        const double used = static_cast<double>(num_layers) / static_cast<double>(largest * groups.size());
        EXPECT_GE(used, 0.85) << num_layers << " layers, pattern " << pattern;
        EXPECT_LE(groups.size(), 16u) << num_layers << " layers, pattern " << pattern;
      }
    }
  }
}

}  // namespace
}  // namespace quire

#include "models/kv_groups.h"

#include <algorithm>

namespace quire {
namespace {

// Layers in a group. Large groups leave room unused where they do not divide the layers of a kind; small ones mean many
// page tables, each of which costs work in every step: we count a table as much as 2 % of the memory.
int choose_group_size(int num_full, int num_sliding) {
  if (num_full == 0 || num_sliding == 0) return std::max(num_full, num_sliding);
  int best_size = 1;
  double best_cost = 1e30;
  for (int size = 1; size <= std::max(num_full, num_sliding); ++size) {
    const int num_groups = (num_full + size - 1) / size + (num_sliding + size - 1) / size;
    const double unused = 1.0 - static_cast<double>(num_full + num_sliding) / (static_cast<double>(num_groups) * size);
    const double cost = unused + 0.02 * num_groups;
    if (cost < best_cost) {
      best_cost = cost;
      best_size = size;
    }
  }
  return best_size;
}

}  // namespace

std::vector<KvGroup> make_kv_groups(const ModelConfig& config, int num_kv_heads, DType dtype) {
  std::vector<int> full;
  std::vector<int> sliding;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    (config.window_of_layer(layer) > 0 ? sliding : full).push_back(layer);
  }
  const size_t group_size =
      static_cast<size_t>(choose_group_size(static_cast<int>(full.size()), static_cast<int>(sliding.size())));
  std::vector<KvGroup> groups;
  const auto add = [&](const std::vector<int>& layers, KvKind kind, int window) {
    for (size_t first = 0; first < layers.size(); first += group_size) {
      const size_t end = std::min(first + group_size, layers.size());
      groups.push_back({.kind = kind,
                        .window = window,
                        .layers = std::vector<int>(layers.begin() + static_cast<std::ptrdiff_t>(first),
                                                   layers.begin() + static_cast<std::ptrdiff_t>(end)),
                        .num_kv_heads = num_kv_heads,
                        .head_dim = config.head_dim,
                        .dtype = dtype});
    }
  };
  add(full, KvKind::kFull, 0);
  add(sliding, KvKind::kSlidingWindow, config.sliding_window);
  return groups;
}

}  // namespace quire

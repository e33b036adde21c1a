// Cutting the block of KV memory into views, a layer each.
#include "kv/kv_cache.h"

#include <algorithm>

namespace quire {

namespace {
// Pages begin on cache lines, whatever the group's sizes.
constexpr int64_t kPageAlignmentBytes = 64;

size_t num_layers_of(std::span<const KvGroup> groups) {
  size_t count = 0;
  for (const KvGroup& group : groups) count += group.layers.size();
  return count;
}
}  // namespace

int64_t KvCache::page_bytes(std::span<const KvGroup> groups, int page_size) {
  int64_t most = 0;
  for (const KvGroup& group : groups) most = std::max(most, group.bytes_per_token() * page_size);
  return (most + kPageAlignmentBytes - 1) / kPageAlignmentBytes * kPageAlignmentBytes;
}

Status KvCache::validate_groups(std::span<const KvGroup> groups, int num_layers) {
  std::vector<bool> is_seen(static_cast<size_t>(std::max(num_layers, 0)), false);
  for (const KvGroup& group : groups) {
    if (group.layers.empty() || group.num_kv_heads <= 0 || group.head_dim <= 0) {
      return invalid_argument("the model names a KV group without layers, heads or head size");
    }
    if (group.kind == KvKind::kSlidingWindow && group.window <= 0) {
      return invalid_argument("the model names a sliding KV group without a window");
    }
    for (const int layer : group.layers) {
      if (layer < 0 || layer >= num_layers || is_seen[static_cast<size_t>(layer)]) {
        return invalid_argument("layer " + std::to_string(layer) + " stands in no or in two KV groups of the model");
      }
      is_seen[static_cast<size_t>(layer)] = true;
    }
  }
  for (size_t layer = 0; layer < is_seen.size(); ++layer) {
    if (!is_seen[layer]) return invalid_argument("layer " + std::to_string(layer) + " of the model is in no KV group");
  }
  return ok_status();
}

KvCache::KvCache(DeviceBuffer memory, std::span<const KvGroup> groups, int page_size, int num_pages)
    : memory_(std::move(memory)),
      page_size_(page_size),
      num_pages_(num_pages),
      page_bytes_(page_bytes(groups, page_size)) {
  CHECK(memory_.num_bytes() >= page_bytes_ * num_pages);
  layer_kv_.resize(num_layers_of(groups));
  layer_group_.resize(layer_kv_.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    const KvGroup& group = groups[g];
    const int64_t element_bytes = dtype_bytes(group.dtype);
    const int64_t head_stride = static_cast<int64_t>(page_size) * group.head_dim;
    const int64_t k_bytes = group.num_kv_heads * head_stride * element_bytes;
    const int64_t scale_bytes = group.num_kv_heads * page_size * group.scale_bytes();
    for (size_t i = 0; i < group.layers.size(); ++i) {
      const size_t layer = static_cast<size_t>(group.layers[i]);
      char* k = static_cast<char*>(memory_.data()) + static_cast<int64_t>(i) * 2 * (k_bytes + scale_bytes);
      layer_group_[layer] = static_cast<int>(g);
      layer_kv_[layer] = PagedKv{.k = k,
                                 .v = k + k_bytes,
                                 .dtype = group.dtype,
                                 .page_stride = page_bytes_ / element_bytes,
                                 .head_stride = head_stride,
                                 .token_stride = group.head_dim,
                                 .num_pages = num_pages,
                                 .page_size = page_size,
                                 .num_kv_heads = group.num_kv_heads,
                                 .head_dim = group.head_dim,
                                 .k_scales = scale_bytes > 0 ? k + 2 * k_bytes : nullptr,
                                 .v_scales = scale_bytes > 0 ? k + 2 * k_bytes + scale_bytes : nullptr,
                                 .scale_page_stride = scale_bytes > 0 ? page_bytes_ / group.scale_bytes() : 0};
    }
  }
}

}  // namespace quire

// The memory behind the page pool: one block, cut into pages of equal bytes. A page holds page_size tokens of all
// layers of one KV group, as [layer][K, V][kv head][token][head_dim], so that one page of one head is a contiguous run.
// Made by engine/model_runner, which allocates the block on its device; read by ops through PagedKv.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kv/kv_group.h"
#include "tensor/device.h"
#include "tensor/paged_kv.h"

namespace quire {

class KvCache {
 public:
  // `memory` holds num_pages * page_bytes(groups, page_size) bytes.
  KvCache(DeviceBuffer memory, std::span<const KvGroup> groups, int page_size, int num_pages);

  // Bytes of one page: what its largest group needs.
  static int64_t page_bytes(std::span<const KvGroup> groups, int page_size);

  // Refuses groups that a cache cannot be made of: no layers, a layer twice or left out, sizes of zero.
  static Status validate_groups(std::span<const KvGroup> groups, int num_layers);

  void* base() const { return memory_.data(); }
  int64_t page_bytes() const { return page_bytes_; }
  int num_pages() const { return num_pages_; }
  int page_size() const { return page_size_; }
  std::span<const PagedKv> layer_kv() const { return layer_kv_; }    // per layer of the model
  std::span<const int> layer_group() const { return layer_group_; }  // per layer: its group's index

 private:
  DeviceBuffer memory_;
  int page_size_;
  int num_pages_;
  int64_t page_bytes_;
  std::vector<PagedKv> layer_kv_;
  std::vector<int> layer_group_;
};

}  // namespace quire

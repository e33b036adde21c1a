// What a model tells the KV memory about its layers. A model gives a list of groups; all groups draw pages of equal
// bytes from one pool, and a sequence has one page table per group.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/paged_kv.h"

namespace quire {

enum class KvKind : uint8_t {
  kFull,           // every past token is kept
  kSlidingWindow,  // only the last `window` tokens are read; pages left behind are freed
};

struct KvGroup {
  KvKind kind = KvKind::kFull;
  int window = 0;           // tokens, for kSlidingWindow
  std::vector<int> layers;  // indices of the model's layers, ascending; groups of one model have equally many (the last
                            // may have fewer: its pages then have unused room)
  int num_kv_heads = 0;
  int head_dim = 0;
  DType dtype = DType::kF16;  // of K and V

  // K and V of one token in all layers of the group.
  int64_t bytes_per_token() const {
    return 2 * static_cast<int64_t>(layers.size()) * num_kv_heads * (head_dim * dtype_bytes(dtype) + scale_bytes());
  }
  // Beside each head's K and V of a token.
  int64_t scale_bytes() const { return has_kv_scales(dtype) ? 2 : 0; }
};

}  // namespace quire

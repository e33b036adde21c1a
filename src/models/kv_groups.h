// Which layers of a model share a page table: those with a window and those without go apart, in groups of equally many
// layers, so that all groups draw pages of equal bytes from one pool.
#pragma once

#include <vector>

#include "kv/kv_group.h"
#include "models/model_config.h"

namespace quire {

// Full groups first, then those with a window; within a kind in the order of the layers. The last group of a kind may
// have fewer layers than the others: the room for the missing ones stays unused.
std::vector<KvGroup> make_kv_groups(const ModelConfig& config, int num_kv_heads, DType dtype);

}  // namespace quire

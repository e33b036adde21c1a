#include "weights/weight_map.h"

#include <numeric>

#include "base/check.h"

namespace quire {

WeightRow matrix_row(std::string name, std::vector<std::string> tensors, int64_t num_outputs, int64_t num_inputs,
                     PieceShard shard) {
  WeightRow row;
  row.name = std::move(name);
  row.num_inputs = num_inputs;
  row.pieces.push_back({.tensors = std::move(tensors), .num_rows = num_outputs, .shard = shard});
  return row;
}

WeightRow vector_row(std::string name, std::vector<std::string> tensors, int64_t num_values, PieceShard shard) {
  WeightRow row;
  row.name = std::move(name);
  row.kind = RowKind::kVector;
  row.pieces.push_back({.tensors = std::move(tensors), .num_rows = num_values, .shard = shard});
  return row;
}

Result<HeadShare> share_heads(int num_heads, int num_kv_heads, Rank rank) {
  CHECK(rank.count > 0 && rank.index >= 0 && rank.index < rank.count);
  if (num_heads <= 0 || num_kv_heads <= 0 || num_heads % num_kv_heads != 0) {
    return invalid_argument(std::to_string(num_heads) + " attention heads are not a multiple of " +
                            std::to_string(num_kv_heads) + " KV heads");
  }
  const int heads_per_kv_head = num_heads / num_kv_heads;
  HeadShare share;
  if (rank.count <= num_kv_heads) {
    const int end = static_cast<int>((rank.index + int64_t{1}) * num_kv_heads / rank.count);
    share.first_kv_head = static_cast<int>(int64_t{rank.index} * num_kv_heads / rank.count);
    share.num_kv_heads = end - share.first_kv_head;
    share.first_head = share.first_kv_head * heads_per_kv_head;
    share.num_heads = share.num_kv_heads * heads_per_kv_head;
    share.heads_per_unit = heads_per_kv_head;
    return share;
  }
  const int ranks_per_kv_head = rank.count / num_kv_heads;
  if (rank.count % num_kv_heads != 0 || heads_per_kv_head % ranks_per_kv_head != 0) {
    return invalid_argument(std::to_string(num_heads) + " attention heads over " + std::to_string(num_kv_heads) +
                            " KV heads cannot be shared by " + std::to_string(rank.count) +
                            " ranks in whole heads: choose another number of ranks, for example " +
                            std::to_string(num_kv_heads));
  }
  share.heads_per_unit = heads_per_kv_head / ranks_per_kv_head;
  share.first_kv_head = rank.index / ranks_per_kv_head;
  share.num_kv_heads = 1;
  share.first_head = rank.index * share.heads_per_unit;
  share.num_heads = share.heads_per_unit;
  return share;
}

Result<ShardRange> shard_range(int64_t total, const PieceShard& shard, Rank rank) {
  CHECK(rank.count > 0 && rank.index >= 0 && rank.index < rank.count);
  CHECK(shard.unit > 0);
  if (shard.kind == ShardKind::kNone || rank.count == 1) return ShardRange{0, total};
  if (total % shard.unit != 0) {
    return invalid_argument(std::to_string(total) + " is not a multiple of " + std::to_string(shard.unit) +
                            ", on which cuts between ranks must fall");
  }
  const int64_t num_units = total / shard.unit;
  if (num_units < rank.count) {
    // Replicated inputs would be summed twice.
    if (!shard.is_replicable || shard.kind == ShardKind::kRows) {
      return invalid_argument(std::to_string(total) + " in pieces of " + std::to_string(shard.unit) +
                              " is too little for " + std::to_string(rank.count) + " ranks");
    }
    if (num_units == 0 || rank.count % num_units != 0) {
      return invalid_argument(std::to_string(num_units) + " heads cannot be replicated evenly over " +
                              std::to_string(rank.count) + " ranks");
    }
    return ShardRange{rank.index * num_units / rank.count * shard.unit, shard.unit};
  }
  const int64_t first = rank.index * num_units / rank.count;
  const int64_t end = (rank.index + 1) * num_units / rank.count;
  return ShardRange{first * shard.unit, (end - first) * shard.unit};
}

bool have_same_format(const TensorSource& source, std::span<const std::string> names) {
  const SourceTensor* first = nullptr;
  for (const std::string& name : names) {
    const SourceTensor* tensor = source.find(name);
    if (tensor == nullptr || !tensor->format.has_value()) return false;
    if (first == nullptr) first = tensor;
    if (tensor->format != first->format) return false;
  }
  return first != nullptr;
}

int64_t common_block(const TensorSource& source, std::span<const std::string> names) {
  int64_t block = 1;
  for (const std::string& name : names) {
    const SourceTensor* tensor = source.find(name);
    if (tensor == nullptr || !tensor->format.has_value()) continue;
    block = std::lcm(block, int64_t{quant_format(*tensor->format).values_per_block});
  }
  return block;
}

bool matches_pattern(std::string_view name, std::string_view pattern) {
  // Where the last '*' was, and how much of the name it has swallowed: on a mismatch it swallows one more.
  size_t star = std::string_view::npos;
  size_t resume = 0;
  size_t n = 0;
  size_t p = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace quire

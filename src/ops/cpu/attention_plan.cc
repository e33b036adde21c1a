#include "ops/cpu/attention_plan.h"

#include <algorithm>

#include "ops/host_memory.h"

namespace quire::cpu {

namespace {

// More pieces than threads, so that a thread that another program disturbs takes fewer of them.
constexpr int kPiecesPerThread = 4;
// A piece should be worth waking a thread for: about 10 microseconds.
constexpr int64_t kLeastPieceCost = 30'000;
// Room for the partial results of split units. A step that would need more splits less: slower there, never wrong.
constexpr int64_t kPartialBytes = int64_t{32} << 20;

// Processor cycles for a chunk of a unit, roughly: copying a chunk's K and V costs what six query rows cost.
int64_t chunk_cost(int64_t num_rows, int head_dim) {
  return (6 + num_rows) * kAttentionChunkTokens * head_dim / 8;
}

int64_t chunks_of(const AttentionItem& item) {
  return item.chunk_end - item.chunk_begin;
}

// Calls body(item) for every unit of the step, as an item that spans all of its chunks.
template <typename Body>
void for_each_unit(const AttentionGeometry& geometry, const AttentionBatch& batch, Body&& body) {
  const int tile_tokens = attention_tile_tokens(geometry.num_heads / geometry.num_kv_heads);
  for (int s = 0; s < batch.num_sequences; ++s) {
    const int32_t begin = batch.host_query_starts[static_cast<size_t>(s)];
    const int32_t end = batch.host_query_starts[static_cast<size_t>(s) + 1];
    const int32_t first_position = batch.host_context_lengths[static_cast<size_t>(s)] - (end - begin);
    CHECK(begin <= end);
    CHECK(first_position >= 0);
    for (int kv_head = 0; kv_head < geometry.num_kv_heads; ++kv_head) {
      for (int32_t token = begin; token < end; token += tile_tokens) {
        AttentionItem item{};
        item.sequence = s;
        item.kv_head = kv_head;
        item.token_begin = token;
        item.token_end = std::min(end, token + tile_tokens);
        item.first_position = first_position + (token - begin);
        const int32_t end_position = first_position + (item.token_end - begin);
        const int32_t first_key = geometry.window > 0 ? std::max(0, item.first_position - geometry.window + 1) : 0;
        item.chunk_begin = first_key / kAttentionChunkTokens;
        item.chunk_end = (end_position + kAttentionChunkTokens - 1) / kAttentionChunkTokens;
        item.partial_offset = -1;
        body(item);
      }
    }
  }
}

}  // namespace

Result<std::unique_ptr<CpuAttentionPlan>> CpuAttentionPlan::create(const AttentionGeometry& geometry, int num_threads) {
  CHECK(geometry.num_kv_heads > 0);
  CHECK(geometry.num_heads > 0);
  CHECK(geometry.num_heads % geometry.num_kv_heads == 0);
  CHECK(geometry.head_dim > 0);
  std::unique_ptr<CpuAttentionPlan> plan(new CpuAttentionPlan(geometry, num_threads));
  const int64_t max_pieces = int64_t{kPiecesPerThread} * num_threads;
  const int64_t max_units =
      int64_t{geometry.num_kv_heads} *
      (geometry.max_num_tokens / attention_tile_tokens(plan->group_size()) + geometry.max_num_sequences);
  // A border between pieces adds an item.
  plan->items_.reserve(static_cast<size_t>(max_units + max_pieces + 1));
  plan->piece_starts_.reserve(static_cast<size_t>(max_units + max_pieces + 2));
  plan->piece_starts_ = {0};
  plan->splits_.reserve(static_cast<size_t>(max_pieces + 1));
  constexpr int64_t kPageFloats = 1024;  // threads write to memory pages of their own
  plan->workspace_floats_ =
      (attention_workspace_floats(plan->group_size(), geometry.head_dim) + kPageFloats - 1) / kPageFloats * kPageFloats;
  ASSIGN_OR_RETURN(plan->workspaces_, allocate_host(plan->workspace_floats_ * num_threads * int64_t{sizeof(float)},
                                                    "the workspace of attention"));
  if (num_threads > 1) {
    ASSIGN_OR_RETURN(plan->partials_, allocate_host(kPartialBytes, "partial results of attention"));
  }
  return plan;
}

void CpuAttentionPlan::fill(const AttentionBatch& batch) {
  CHECK(batch.num_sequences <= geometry_.max_num_sequences);
  CHECK(batch.num_tokens <= geometry_.max_num_tokens);
  CHECK(batch.host_query_starts.size() > static_cast<size_t>(batch.num_sequences));
  CHECK(batch.host_context_lengths.size() >= static_cast<size_t>(batch.num_sequences));
  items_.clear();
  splits_.clear();
  piece_starts_.resize(1);
  used_partial_floats_ = 0;

  int64_t total_cost = 0;
  for_each_unit(geometry_, batch, [&](const AttentionItem& unit) {
    total_cost +=
        chunks_of(unit) * chunk_cost(int64_t{unit.token_end - unit.token_begin} * group_size(), geometry_.head_dim);
  });
  const int64_t num_pieces = num_threads_ == 1 ? 1
                                               : std::clamp<int64_t>(total_cost / kLeastPieceCost, 1,
                                                                     int64_t{kPiecesPerThread} * num_threads_);
  piece_cost_ = total_cost / num_pieces + 1;
  cost_left_ = piece_cost_;
  for_each_unit(geometry_, batch, [&](const AttentionItem& unit) { add_unit(unit); });
  end_piece();
}

// Puts a unit into the piece that is being filled; where it does not fit and is worth it, splits it at chunks.
void CpuAttentionPlan::add_unit(AttentionItem unit) {
  const int64_t num_rows = int64_t{unit.token_end - unit.token_begin} * group_size();
  const int64_t cost = chunk_cost(num_rows, geometry_.head_dim);
  const int64_t state_floats = attention_state_floats(num_rows, geometry_.head_dim);
  const int64_t partial_floats = (1 + chunks_of(unit)) * state_floats;
  const bool fits = chunks_of(unit) * cost <= cost_left_;
  const bool is_small = chunks_of(unit) * cost * 4 <= piece_cost_;
  if (fits || is_small || num_threads_ == 1 ||
      (used_partial_floats_ + partial_floats) * int64_t{sizeof(float)} > kPartialBytes) {
    // A small unit may overdraw by less than it would leave unused.
    if (!fits && chunks_of(unit) * cost > 2 * cost_left_) end_piece();
    cost_left_ -= chunks_of(unit) * cost;
    items_.push_back(unit);
    return;
  }
  AttentionSplit split{static_cast<int32_t>(items_.size()), 0};
  const int32_t chunk_end = unit.chunk_end;
  while (unit.chunk_begin < chunk_end) {
    int64_t num_chunks = std::max<int64_t>(0, cost_left_ / cost);
    if (num_chunks == 0) {
      end_piece();
      num_chunks = std::max<int64_t>(1, piece_cost_ / cost);
    }
    unit.chunk_end = static_cast<int32_t>(std::min<int64_t>(chunk_end, unit.chunk_begin + num_chunks));
    unit.is_first_of_split = static_cast<size_t>(split.item_begin) == items_.size();
    unit.partial_offset = used_partial_floats_;
    used_partial_floats_ += (unit.is_first_of_split ? 1 : chunks_of(unit)) * state_floats;
    cost_left_ -= chunks_of(unit) * cost;
    items_.push_back(unit);
    unit.chunk_begin = unit.chunk_end;
  }
  split.item_end = static_cast<int32_t>(items_.size());
  if (split.item_end - split.item_begin > 1) {
    splits_.push_back(split);
  } else {
    items_.back().partial_offset = -1;
  }
}

void CpuAttentionPlan::end_piece() {
  if (static_cast<size_t>(piece_starts_.back()) < items_.size()) {
    piece_starts_.push_back(static_cast<int32_t>(items_.size()));
  }
  cost_left_ = piece_cost_;
}

}  // namespace quire::cpu

// Attention of the CPU over pages: the work items of a step, and the kernel rows that run them.
//
// The numbers. A query row's keys are walked in chunks of 128 at absolute positions (chunk c holds positions 128 c to
// 128 c + 127). Within a chunk: a score is a sum over head_dim, ascending, one fused multiply-add an element; m is the
// largest visible score; p = 2^(score - m); l is summed in sixteen lanes (position mod 16) and one tree; O is a sum
// over keys, ascending, one fused multiply-add each. Chunks are merged in ascending order into a running (m, l, O). No
// choice made here (tiles, threads, splits, page size) enters that order, so one query gives the same bits wherever it
// runs. That is the order "chunks_of_128", of Compute::kF32.
//
// Otherwise it is "chunks_of_128_bf16": what the two products multiply is rounded to bfloat16, nearest even (the query
// after scale and log2(e) are in it, K, V and p), and elements go in pairs, of head_dim for a score (2 i, 2 i + 1), of
// keys at absolute positions for O: sum = even + (odd + sum), two fused multiply-adds, the odd element first; where a
// pair has one element the other is 0. Sums stay float, and l is summed of the rounded p, so that weights sum to one
// (p comes from a polynomial of 13 bits).
// Subnormals are zeros in all of it. That is what the instructions of AVX512_BF16 do; other rows give the same bits.
//
// The work. A unit is one KV head with a tile of neighbouring tokens of one sequence, the query heads of the group
// packed as rows (row = token * group + head). An item is a run of a unit's chunks; a piece is a list of items that
// costs about as much as the other pieces, taken by one thread. A unit whose chunks are in several items is split: its
// first item keeps a running state, the others one state a chunk, and merge_split puts them together.
#pragma once

#include <cstdint>
#include <span>

#include "base/cpu_info.h"
#include "ops/kernel_table.h"
#include "ops/ops.h"
#include "tensor/paged_kv.h"

namespace quire::cpu {

constexpr int kAttentionChunkTokens = 128;

struct AttentionItem {
  int32_t sequence;
  int32_t kv_head;
  int32_t token_begin;  // rows of the step
  int32_t token_end;
  int32_t first_position;  // of token_begin in its sequence
  int32_t chunk_begin;
  int32_t chunk_end;
  // Where states are kept, in floats from the start of the partials; -1: the unit is not split, the item stores the
  // output itself.
  int64_t partial_offset;
  bool is_first_of_split;  // keeps one running state, not one a chunk
};

// A split unit: items [item_begin, item_end), neighbours, in ascending order of chunks.
struct AttentionSplit {
  int32_t item_begin;
  int32_t item_end;
};

// What all items of a layer share.
struct AttentionInputs {
  const CpuFeatures& features;
  PagedKv kv;
  const float* q;  // [num_tokens, num_heads, head_dim]
  int64_t q_token_stride;
  int64_t q_head_stride;
  float* out;
  int64_t out_token_stride;
  int64_t out_head_stride;
  const int32_t* page_table;
  int64_t page_table_stride;
  int group_size;  // query heads of a KV head
  float scale;
  float soft_cap;
  int window;
  float* partials;
  Compute compute;  // which order
};

struct AttentionCall {
  const AttentionInputs& inputs;
  const AttentionItem* items;
  int num_items;
  float* workspace;  // attention_workspace_floats() of them, this thread's own
};

// Sums up one split unit, and stores its output.
struct AttentionMergeCall {
  const AttentionInputs& inputs;
  const AttentionItem* items;
  int num_items;
};

// Query rows of the largest tile, for tiles of more than one token.
constexpr int kAttentionTileRows = 192;

constexpr int64_t padded_to_lanes(int64_t count) {
  return (count + 15) / 16 * 16;
}
constexpr int attention_tile_tokens(int group_size) {
  return group_size >= kAttentionTileRows ? 1 : kAttentionTileRows / group_size;
}
constexpr int64_t attention_tile_rows(int group_size) {
  return int64_t{attention_tile_tokens(group_size)} * group_size;
}
// A state: m of each row, l of each row (both padded to sixteen), O of each row.
constexpr int64_t attention_state_floats(int64_t num_rows, int head_dim) {
  return 2 * padded_to_lanes(num_rows) + num_rows * padded_to_lanes(head_dim);
}
int64_t attention_workspace_floats(int group_size, int head_dim);

// The order of the rows that accept calls of this mode.
std::string_view attention_order(Compute compute);

std::span<const KernelRow<AttentionCall>> attention_rows();
std::span<const KernelRow<AttentionMergeCall>> attention_merge_rows();

}  // namespace quire::cpu

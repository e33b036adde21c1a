// The bodies of attention.h as templates over Products (attention_products.h), which say what is multiplied; the order
// of operations that they keep is written in attention.h. The same rule as for elementwise_kernels.h: nothing here may
// call an inline function of another header outside this folder.
//
// One item, chunk by chunk: scores, probabilities, values. Units of few rows work from the pages (attention_direct.h),
// the others on a copy of the chunk (attention_tiles.h).
#pragma once

#include "ops/cpu/attention.h"
#include "ops/cpu/attention_direct.h"
#include "ops/cpu/attention_products.h"
#include "ops/cpu/attention_states.h"
#include "ops/cpu/attention_tiles.h"
#include "ops/cpu/attention_unit.h"
#include "ops/cpu/flush_subnormals.h"
#include "ops/cpu/lane_math.h"

namespace quire::cpu {
namespace {

template <typename Products>
struct AttentionKernels {
  using Lanes = typename Products::Lanes;
  using Tiles = AttentionTiles<Products>;
  using Direct = AttentionDirect<Products>;
  using States = AttentionStates<Products>;
  using Formats = CacheFormats<Lanes>;
  using Word = typename Products::Word;
  using Unit = AttentionUnit;
  using Chunk = AttentionChunk;
  static constexpr int kTileRows = Lanes::kTileRows;

  template <typename Format>
  static void attend_chunk(const Unit& unit, const Chunk& chunk) {
    if (unit.num_rows <= kTileRows) {
      find_rows(unit, chunk);
      with_rows<kTileRows>(unit.num_rows, [&](auto rows) {
        constexpr int kRows = decltype(rows)::value;
        Direct::template score<Format, kRows>(unit, chunk);
        States::soften_rows(unit, chunk);
        States::merge_sums(unit, chunk);
        Direct::template add_values<Format, kRows, Lanes::panels_for_rows(kRows)>(unit, chunk, 0);
      });
      return;
    }
    Tiles::template load_keys<Format>(unit, chunk);
    Tiles::template load_values<Format>(unit, chunk);
    Tiles::compute_scores(unit, chunk);
    States::soften_rows(unit, chunk);
    States::merge_sums(unit, chunk);
    Tiles::add_values(unit, chunk);
  }

  static void attend_chunk(const Unit& unit, int64_t chunk_index) {
    const Chunk chunk = chunk_of(unit, chunk_index);
    switch (unit.inputs.kv.dtype) {
      case DType::kF32:
        return attend_chunk<typename Formats::F32>(unit, chunk);
      case DType::kF16:
        return attend_chunk<typename Formats::F16>(unit, chunk);
      default:
        return attend_chunk<typename Formats::BF16>(unit, chunk);
    }
  }

  static const float* query_of(const Unit& unit, int row) {
    const AttentionInputs& inputs = unit.inputs;
    const int64_t token = unit.item.token_begin + row / unit.group_size;
    const int64_t head = int64_t{unit.item.kv_head} * unit.group_size + row % unit.group_size;
    return inputs.q + token * inputs.q_token_stride + head * inputs.q_head_stride;
  }

  static void pack_queries(const Unit& unit) {
    constexpr int kRowsAhead = 8;  // the heads of a group are neighbours, tokens are not
    const AttentionInputs& inputs = unit.inputs;
    const typename Lanes::Vec factor =
        Lanes::set(inputs.soft_cap > 0 ? inputs.scale / inputs.soft_cap : inputs.scale * LaneMath<Lanes>::kLog2E);
    const int num_words = Tiles::words_of(unit.head_dim);
    for (int tile = 0; tile < unit.num_rows; tile += kTileRows) {
      const int tile_rows = unit.num_rows - tile < kTileRows ? unit.num_rows - tile : kTileRows;
      for (int r = 0; r < tile_rows; ++r) {
        const float* q = query_of(unit, tile + r);
        if (tile + r + kRowsAhead < unit.num_rows) {
          Tiles::prefetch_row(query_of(unit, tile + r + kRowsAhead), unit.head_dim);
        }
        Word* packed = Tiles::words(unit.q) + int64_t{tile} * num_words + r;
        Word sixteen[16];
        int d = 0;
        for (; d + Tiles::kSquareElements <= unit.head_dim; d += Tiles::kSquareElements) {
          Products::store(sixteen, Products::query_words(q + d, factor));
          for (int i = 0; i < 16; ++i) packed[i * tile_rows] = sixteen[i];
          packed += 16 * tile_rows;
        }
        if (d == unit.head_dim) continue;
        Products::store(sixteen, Products::query_words(q + d, unit.head_dim - d, factor));
        const int count = Tiles::words_of(unit.head_dim - d);
        for (int i = 0; i < count; ++i) packed[i * tile_rows] = sixteen[i];
      }
    }
  }

  static void attend_item(const AttentionInputs& inputs, const AttentionItem& item, float* workspace) {
    const int group_size = inputs.group_size;
    const int head_dim = inputs.kv.head_dim;
    const int padded_dim = static_cast<int>(padded_to_lanes(head_dim));
    const int num_rows = (item.token_end - item.token_begin) * group_size;
    const int64_t padded_rows = padded_to_lanes(num_rows);
    const int64_t num_words = Tiles::words_of(head_dim);
    int64_t offsets[2 * kChunk];
    float* next = workspace;
    const auto take = [&](int64_t count) {
      float* taken = next;
      next += padded_to_lanes(count);
      return taken;
    };
    Unit unit{.inputs = inputs,
              .item = item,
              .pages = inputs.page_table + item.sequence * inputs.page_table_stride,
              .group_size = group_size,
              .num_rows = num_rows,
              .head_dim = head_dim,
              .padded_dim = padded_dim,
              .first_key = 0,
              .end_key = 0,
              .q = take(num_rows * num_words),
              .scores = take(int64_t{num_rows} * kChunk),
              .k = take(kChunk * num_words),
              .v = take(int64_t{Tiles::kChunkWords} * padded_dim),
              .chunk_largest = take(padded_rows),
              .chunk_sum = take(padded_rows),
              .alpha = take(padded_rows),
              .beta = take(padded_rows),
              .offsets = offsets,
              .zeros = nullptr,
              .state = {}};
    unit.first_key = unit.row_first_key(0);
    unit.end_key = unit.row_end_key(num_rows - 1);
    float* zeros = take(padded_dim);
    for (int i = 0; i < padded_dim; i += 16) Lanes::store(zeros + i, Lanes::set(0.0f));
    unit.zeros = zeros;
    pack_queries(unit);

    const bool is_split = item.partial_offset >= 0;
    const bool has_state_per_chunk = is_split && !item.is_first_of_split;
    float* state_memory = is_split ? inputs.partials + item.partial_offset : next;
    for (int64_t chunk = item.chunk_begin; chunk < item.chunk_end; ++chunk) {
      if (chunk == item.chunk_begin || has_state_per_chunk) {
        unit.state = States::state_at(state_memory, num_rows);
        States::reset(unit.state, num_rows, padded_dim);
        state_memory += attention_state_floats(num_rows, head_dim);
      }
      attend_chunk(unit, chunk);
    }
    if (!is_split) States::store_output(inputs, item, unit.state);
  }

  static void attend(const AttentionCall& call) {
    for (int i = 0; i < call.num_items; ++i) attend_item(call.inputs, call.items[i], call.workspace);
  }

  static void merge_split(const AttentionMergeCall& call) { States::merge_split(call); }
};

// The same under the order of bfloat16: subnormals are flushed in all that is computed.
template <typename Products>
struct AttentionBf16Kernels {
  using Kernels = AttentionKernels<Products>;

  [[gnu::noinline]] static void attend_flushing(const AttentionCall& call) { Kernels::attend(call); }
  [[gnu::noinline]] static void merge_flushing(const AttentionMergeCall& call) { Kernels::merge_split(call); }

  static void attend(const AttentionCall& call) {
    const FlushSubnormals flush;
    attend_flushing(call);
  }
  static void merge_split(const AttentionMergeCall& call) {
    const FlushSubnormals flush;
    merge_flushing(call);
  }
};

}  // namespace
}  // namespace quire::cpu

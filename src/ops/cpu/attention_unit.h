// What the pieces of the attention kernels (attention_tiles.h, attention_direct.h, attention_states.h) share: the unit
// that is worked on, its workspace, the chunk that is looked at, and where rows of K and V stand in the pages. Nothing
// here depends on the instruction set. Included where kernels are instantiated.
#pragma once

#include "ops/cpu/attention.h"

namespace quire::cpu {
namespace {

template <int kValue>
struct Number {
  static constexpr int value = kValue;
};

constexpr int kChunk = kAttentionChunkTokens;
constexpr int kNumKeyPanels = kChunk / 16;

inline int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}
inline int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}

// Running results of the rows of a unit.
struct AttentionState {
  float* largest;  // [rows]
  float* sum;      // [rows]
  float* out;      // [rows, padded head_dim]
};

// Everything about one item that does not change from chunk to chunk. A word is what products multiply at once: a
// float, or a pair of bfloat16 (attention_products.h); either has the size of a float.
struct AttentionUnit {
  const AttentionInputs& inputs;
  const AttentionItem& item;
  const int32_t* pages;
  int group_size;
  int num_rows;
  int head_dim;
  int padded_dim;
  int64_t first_key;  // seen by any row: [first_key, end_key)
  int64_t end_key;
  // Workspace.
  float* q;       // tiles of rows, each [words of head_dim][rows of the tile]
  float* scores;  // [rows, 128]; later the probabilities, as words from the start of each row
  float* k;       // [8 panels][words of head_dim][16]
  float* v;       // [padded_dim / 16 panels][words of 128 keys][16]
  float* chunk_largest;
  float* chunk_sum;
  float* alpha;
  float* beta;
  int64_t* offsets;    // [2 * 128], used by units of one tile
  const float* zeros;  // stands in for keys that no row sees
  AttentionState state;

  int64_t position(int row) const { return item.first_position + row / group_size; }
  int64_t row_first_key(int row) const { return inputs.window > 0 ? larger(0, position(row) - inputs.window + 1) : 0; }
  int64_t row_end_key(int row) const { return position(row) + 1; }
};

// A chunk as an item sees it.
struct AttentionChunk {
  int64_t first_position;
  int key_begin;  // keys that some row sees, from the chunk's start
  int key_end;
  int row_begin;  // rows that see some key
  int row_end;
  int64_t fetch_end;  // positions below it are read by this item sooner or later
};

inline AttentionChunk chunk_of(const AttentionUnit& unit, int64_t chunk_index) {
  AttentionChunk chunk;
  chunk.first_position = chunk_index * kChunk;
  chunk.key_begin = static_cast<int>(larger(0, unit.first_key - chunk.first_position));
  chunk.key_end = static_cast<int>(smaller(kChunk, unit.end_key - chunk.first_position));
  chunk.fetch_end = smaller(unit.end_key, int64_t{unit.item.chunk_end} * kChunk);
  // Positions rise with rows: the first rows may end before the chunk, the last ones' windows begin after it.
  const int64_t first_seeing = larger(0, chunk.first_position - unit.item.first_position);
  int64_t end_seeing = unit.item.token_end - unit.item.token_begin;
  if (unit.inputs.window > 0) {
    const int64_t last_position = chunk.first_position + kChunk - 1 + unit.inputs.window - 1;
    end_seeing = smaller(end_seeing, last_position + 1 - unit.item.first_position);
  }
  chunk.row_begin = static_cast<int>(first_seeing * unit.group_size);
  chunk.row_end = static_cast<int>(end_seeing * unit.group_size);
  return chunk;
}

// Offsets of successive positions in the cache: one division at the start, none after.
struct PageWalk {
  const PagedKv& kv;
  const int32_t* pages;
  int64_t head_offset;
  int64_t page;
  int64_t token;

  PageWalk(const AttentionUnit& unit, int64_t position)
      : kv(unit.inputs.kv),
        pages(unit.pages),
        head_offset(unit.item.kv_head * kv.head_stride),
        page(position / kv.page_size),
        token(position % kv.page_size) {}
  int64_t offset() const { return pages[page] * kv.page_stride + token * kv.token_stride + head_offset; }
  void advance() {
    if (++token == kv.page_size) {
      token = 0;
      ++page;
    }
  }
};

// Fills unit.offsets, where the keys of this chunk and of the next one stand in the cache; what the chunk before
// already found is kept.
inline void find_rows(const AttentionUnit& unit, const AttentionChunk& chunk) {
  int64_t* offsets = unit.offsets;
  int first = chunk.key_begin;
  if (chunk.first_position > int64_t{unit.item.chunk_begin} * kChunk) {
    first = kChunk;
    for (int key = 0; key < kChunk; ++key) offsets[key] = offsets[kChunk + key];
  }
  const int end = static_cast<int>(smaller(2 * kChunk, chunk.fetch_end - chunk.first_position));
  // A page at a time: its rows are neighbours.
  const PagedKv& kv = unit.inputs.kv;
  const int64_t head_offset = unit.item.kv_head * kv.head_stride;
  for (int key = first; key < end;) {
    const int64_t page = (chunk.first_position + key) / kv.page_size;
    const int64_t token = (chunk.first_position + key) % kv.page_size;
    const int run_end = static_cast<int>(smaller(end, key + kv.page_size - token));
    int64_t offset = unit.pages[page] * kv.page_stride + token * kv.token_stride + head_offset;
    for (; key < run_end; ++key, offset += kv.token_stride) offsets[key] = offset;
  }
  // Asking again for what is there costs next to nothing.
  for (int64_t key = larger(end, kChunk); key < 2 * kChunk; ++key) offsets[key] = offsets[chunk.key_begin];
}

// body(Number<rows>) for a number of rows that is known at run time only.
template <int kMostRows, typename Body>
inline void with_rows(int num_rows, Body&& body) {
  if constexpr (kMostRows > 0) {
    if (num_rows == kMostRows) {
      body(Number<kMostRows>{});
    } else {
      with_rows<kMostRows - 1>(num_rows, body);
    }
  }
}

}  // namespace
}  // namespace quire::cpu

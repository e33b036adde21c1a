// Attention of many query rows over one chunk: K is copied out of its pages as eight panels of sixteen keys, turned
// around ([words of head_dim][16]), V as panels of sixteen columns ([words of 128 keys][16]), both as the products take
// them. Then tiles of kTileRows rows × some panels are held in registers: scores = q · panels, and, once they are
// probabilities, O = O * alpha + (p · V) * beta.
//
// A chunk's panels (64 KB each of floats at head_dim 128) stay in the second-level cache while all rows of the unit
// pass over them. Included where kernels are instantiated.
#pragma once

#include "ops/cpu/attention_unit.h"

namespace quire::cpu {
namespace {

template <typename Products>
struct AttentionTiles {
  using Lanes = typename Products::Lanes;
  using Vec = typename Lanes::Vec;
  using Word = typename Products::Word;
  using Column = typename Products::Column;
  using Unit = AttentionUnit;
  using Chunk = AttentionChunk;
  static constexpr int kTileRows = Lanes::kTileRows;
  static constexpr int kWordElements = Products::kWordElements;
  static constexpr int kStepElements = kWordElements * Products::kStepWords;  // multiplied together
  static constexpr int kSquareElements = 16 * kWordElements;
  static constexpr int kChunkWords = kChunk / kWordElements;

  static int words_of(int head_dim) { return (head_dim + kStepElements - 1) / kStepElements * Products::kStepWords; }
  // Words in the order in which they are multiplied: of a step the last one first.
  static constexpr int nth_word(int i) { return i ^ (Products::kStepWords - 1); }
  static Word* words(float* p) { return reinterpret_cast<Word*>(p); }

  // ---- Loading K and V from pages ----------------------------------------------------------------------------------

  // Asks for a row of the next chunk while this one is computed: pages lie anywhere, so the processor's own prefetching
  // stops at the end of each.
  template <typename Element>
  [[gnu::always_inline]] static void prefetch_row(const Element* row, int head_dim) {
    for (int d = 0; d < head_dim; d += 64 / static_cast<int>(sizeof(Element))) Lanes::prefetch(row + d);
  }

  template <typename Format>
  static void load_keys(const Unit& unit, const Chunk& chunk) {
    using Element = typename Format::Element;
    const Element* cache = static_cast<const Element*>(unit.inputs.kv.k);
    const int head_dim = unit.head_dim;
    const int num_words = words_of(head_dim);
    PageWalk walk(unit, chunk.first_position + chunk.key_begin);
    int64_t next_position = chunk.first_position + chunk.key_begin + kChunk;
    PageWalk next(unit, next_position);
    for (int panel = chunk.key_begin / 16; panel * 16 < chunk.key_end; ++panel) {
      const Element* rows[16];
      for (int i = 0; i < 16; ++i) {
        const int key = panel * 16 + i;
        rows[i] = reinterpret_cast<const Element*>(unit.zeros);
        if (key < chunk.key_begin || key >= chunk.key_end) continue;
        rows[i] = cache + walk.offset();
        walk.advance();
        if (next_position < chunk.fetch_end) prefetch_row(cache + next.offset(), head_dim);
        next.advance();
        ++next_position;
      }
      Word* out = words(unit.k) + int64_t{panel} * num_words * 16;
      const auto turn_around = [&](int d, int count) __attribute__((always_inline)) {
        typename Products::template Square<Format> square;
        Products::template load_square<Format>(rows, d, count, square);
        const int num_columns = words_of(count);
        Word* columns = out + d / kWordElements * 16;
#pragma GCC unroll 16
        for (int k = 0; k < num_columns; ++k) {
          Products::store(columns + k * 16, Products::template column<Format>(square, k));
        }
      };
      int d = 0;
      for (; d + kSquareElements <= head_dim; d += kSquareElements) turn_around(d, kSquareElements);
      if (d < head_dim) turn_around(d, head_dim - d);
    }
  }

  // Keys of the chunk that are multiplied together with those of [begin, end).
  static int step_begin(int key) {
    return key / kStepElements * kStepElements;
  }
  static int step_end(int key) {
    return (key + kStepElements - 1) / kStepElements * kStepElements;
  }

  template <typename Format>
  static void load_values(const Unit& unit, const Chunk& chunk) {
    using Element = typename Format::Element;
    const Element* cache = static_cast<const Element*>(unit.inputs.kv.v);
    const int head_dim = unit.head_dim;
    PageWalk walk(unit, chunk.first_position + chunk.key_begin);
    PageWalk next(unit, chunk.first_position + chunk.key_begin + kChunk);
    for (int first = step_begin(chunk.key_begin); first < step_end(chunk.key_end); first += kWordElements) {
      const Element* rows[kWordElements];
      for (int i = 0; i < kWordElements; ++i) {
        const int key = first + i;
        rows[i] = reinterpret_cast<const Element*>(unit.zeros);
        if (key < chunk.key_begin || key >= chunk.key_end) continue;
        rows[i] = cache + walk.offset();
        walk.advance();
        if (chunk.first_position + key + kChunk < chunk.fetch_end) prefetch_row(cache + next.offset(), head_dim);
        next.advance();
      }
      Word* out = words(unit.v) + first / kWordElements * 16;
      int d = 0;
      for (; d + 16 <= head_dim; d += 16) {
        Products::store(out + int64_t{d} * kChunkWords, Products::template value_words<Format>(rows, d));
      }
      if (d < head_dim) {
        Products::store(out + int64_t{d} * kChunkWords, Products::template value_words<Format>(rows, d, head_dim - d));
      }
    }
  }

  // ---- Products ----------------------------------------------------------------------------------------------------

  // store(r, p, Σ_k a[r][k] * panel p [k][16]) for kRows × kPanels; a's word stands at r * kRowStride + k *
  // kDepthStride.
  template <int kRows, int kPanels, int kRowStride, int kDepthStride, typename Store>
  static void multiply_tile(const Word* a, const Word* panels, int64_t panel_stride, int64_t num_words, Store&& store) {
    Vec sums[kRows][kPanels];
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) sums[r][p] = Lanes::set(0.0f);
    }
    for (int64_t step = 0; step < num_words; step += Products::kStepWords) {
#pragma GCC unroll 2
      for (int64_t k = step + Products::kStepWords - 1; k >= step; --k) {
        Column columns[kPanels];
#pragma GCC unroll 8
        for (int p = 0; p < kPanels; ++p) columns[p] = Products::load(panels + p * panel_stride + k * 16);
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
          const Column word = Products::broadcast(a + r * kRowStride + k * kDepthStride);
#pragma GCC unroll 8
          for (int p = 0; p < kPanels; ++p) sums[r][p] = Products::multiply_add(word, columns[p], sums[r][p]);
        }
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) store(r, p, sums[r][p]);
    }
  }

  // Does any row of [row, row + count) see a key of chunk positions [begin, end)?
  static bool sees(const Unit& unit, const Chunk& chunk, int row, int count, int begin, int end) {
    return unit.row_end_key(row + count - 1) > chunk.first_position + begin &&
           unit.row_first_key(row) < chunk.first_position + end;
  }

  template <int kRows>
  static void score_tile(const Unit& unit, const Chunk& chunk, int row, int panel) {
    constexpr int kPanels = Lanes::panels_for_rows(kRows);
    const int begin = panel * 16;
    const int end = begin + kPanels * 16;
    if (end <= chunk.key_begin || begin >= chunk.key_end || !sees(unit, chunk, row, kRows, begin, end)) return;
    float* scores = unit.scores + int64_t{row} * kChunk + begin;
    const int64_t num_words = words_of(unit.head_dim);
    multiply_tile<kRows, kPanels, 1, kRows>(
        words(unit.q) + row * num_words, words(unit.k) + panel * num_words * 16, num_words * 16, num_words,
        [&](int r, int p, const Vec& sum) { Lanes::store(scores + r * kChunk + p * 16, sum); });
  }

  // O = O * alpha + sum * beta for sixteen columns of a row.
  static void update_output(float* out, float alpha, float beta, const Vec& sum) {
    Lanes::store(out, Lanes::fma(Lanes::load(out), Lanes::set(alpha), Lanes::mul(sum, Lanes::set(beta))));
  }

  // O = O * alpha + (P · V) * beta for kRows rows and kPanels panels of columns from `panel` on, kPanels more while
  // there are so many.
  template <int kRows, int kPanels>
  static int value_tiles(const Unit& unit, const Chunk& chunk, int row, int panel, int end_panel) {
    const int64_t seen_begin = unit.row_first_key(row) - chunk.first_position;
    const int64_t seen_end = unit.row_end_key(row + kRows - 1) - chunk.first_position;
    const int begin = step_begin(static_cast<int>(larger(chunk.key_begin, seen_begin))) / kWordElements;
    const int end = step_end(static_cast<int>(smaller(chunk.key_end, seen_end))) / kWordElements;
    // Read once, not again after each store.
    const float* const alpha = unit.alpha + row;
    const float* const beta = unit.beta + row;
    const int64_t padded_dim = unit.padded_dim;
    const int first_seeing = chunk.row_begin - row;
    const int end_seeing = chunk.row_end - row;
    for (; panel + kPanels <= end_panel; panel += kPanels) {
      float* const out = unit.state.out + row * padded_dim + panel * 16;
      multiply_tile<kRows, kPanels, kChunk, 1>(
          words(unit.scores) + int64_t{row} * kChunk + begin,
          words(unit.v) + (int64_t{panel} * kChunkWords + begin) * 16, kChunkWords * 16,
          end - begin, [=](int r, int p, const Vec& sum) __attribute__((always_inline)) {
            if (r < first_seeing || r >= end_seeing) return;
            update_output(out + r * padded_dim + p * 16, alpha[r], beta[r], sum);
          });
    }
    return panel;
  }
  template <int kRows, int kPanels>
  static void all_value_tiles(const Unit& unit, const Chunk& chunk, int row, int panel) {
    const int num_panels = unit.padded_dim / 16;
    panel = value_tiles<kRows, kPanels>(unit, chunk, row, panel, num_panels);
    if constexpr (kPanels > 1) {
      if (panel < num_panels) all_value_tiles<kRows, kPanels / 2>(unit, chunk, row, panel);
    }
  }

  // Calls body(first row) for each whole tile of rows that see the chunk.
  template <typename Body>
  static void for_each_tile(const Unit& unit, const Chunk& chunk, Body&& body) {
    for (int row = chunk.row_begin / kTileRows * kTileRows; row + kTileRows <= unit.num_rows && row < chunk.row_end;
         row += kTileRows) {
      body(row);
    }
  }

  // A panel group outermost, so that it stays in the first-level cache while all tiles of rows pass over it.
  static void compute_scores(const Unit& unit, const Chunk& chunk) {
    const int last_tile_row = unit.num_rows / kTileRows * kTileRows;
    for (int panel = 0; panel < kNumKeyPanels; panel += Lanes::panels_for_rows(kTileRows)) {
      for_each_tile(unit, chunk, [&](int row) { score_tile<kTileRows>(unit, chunk, row, panel); });
    }
    if (last_tile_row >= chunk.row_end) return;
    with_rows<kTileRows - 1>(unit.num_rows - last_tile_row, [&](auto rows) {
      constexpr int kRows = decltype(rows)::value;
      for (int panel = 0; panel < kNumKeyPanels; panel += Lanes::panels_for_rows(kRows)) {
        score_tile<kRows>(unit, chunk, last_tile_row, panel);
      }
    });
  }

  static void add_values(const Unit& unit, const Chunk& chunk) {
    constexpr int kPanels = Lanes::panels_for_rows(kTileRows);
    const int last_tile_row = unit.num_rows / kTileRows * kTileRows;
    const int num_panels = unit.padded_dim / 16;
    int panel = 0;
    for (; panel + kPanels <= num_panels; panel += kPanels) {
      for_each_tile(unit, chunk,
                    [&](int row) { value_tiles<kTileRows, kPanels>(unit, chunk, row, panel, panel + kPanels); });
    }
    if constexpr (kPanels > 1) {
      for_each_tile(unit, chunk, [&](int row) { all_value_tiles<kTileRows, kPanels / 2>(unit, chunk, row, panel); });
    }
    if (last_tile_row >= chunk.row_end) return;
    with_rows<kTileRows - 1>(unit.num_rows - last_tile_row, [&](auto rows) {
      constexpr int kRows = decltype(rows)::value;
      all_value_tiles<kRows, Lanes::panels_for_rows(kRows)>(unit, chunk, last_tile_row, 0);
    });
  }
};

}  // namespace
}  // namespace quire::cpu

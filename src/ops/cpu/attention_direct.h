// Attention of a unit of one tile (decoding): the same sums as attention_tiles.h, from the pages, without a copy of K
// and V. It is bound by memory: what comes next is asked for while this chunk is computed. Included where kernels are
// instantiated.
#pragma once

#include "ops/cpu/attention_tiles.h"

namespace quire::cpu {
namespace {

template <typename Products>
struct AttentionDirect {
  using Tiles = AttentionTiles<Products>;
  using Lanes = typename Products::Lanes;
  using Vec = typename Lanes::Vec;
  using Word = typename Products::Word;
  using Column = typename Products::Column;
  using Unit = AttentionUnit;
  using Chunk = AttentionChunk;
  static constexpr int kWordElements = Tiles::kWordElements;
  static constexpr int kSquareElements = Tiles::kSquareElements;

  template <typename Format, int kRows>
  static void score(const Unit& unit, const Chunk& chunk) {
    using Element = typename Format::Element;
    const Element* cache = static_cast<const Element*>(unit.inputs.kv.k);
    const int head_dim = unit.head_dim;
    for (int panel = chunk.key_begin / 16 * 16; panel < chunk.key_end; panel += 16) {
      const Element* rows[16];
      for (int i = 0; i < 16; ++i) {
        const bool is_seen = chunk.key_begin <= panel + i && panel + i < chunk.key_end;
        rows[i] = is_seen ? cache + unit.offsets[panel + i] : reinterpret_cast<const Element*>(unit.zeros);
      }
      Vec sums[kRows];
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) sums[r] = Lanes::set(0.0f);
      const auto add_columns = [&](int d, int count) __attribute__((always_inline)) {
        typename Products::template Square<Format> square;
        Products::template load_square<Format>(rows, d, count, square);
        const Word* q = Tiles::words(unit.q) + d / kWordElements * kRows;
        const int num_words = Tiles::words_of(count);
#pragma GCC unroll 16
        for (int i = 0; i < num_words; ++i) {
          const int k = Tiles::nth_word(i);
          const Column column = Products::template column<Format>(square, k);
#pragma GCC unroll 12
          for (int r = 0; r < kRows; ++r) {
            sums[r] = Products::multiply_add(Products::broadcast(q + k * kRows + r), column, sums[r]);
          }
        }
      };
      // The next chunk's rows are asked for evenly, a square like this one at a time: all at once they would hold up
      // the loads of these.
      const int64_t* next_rows = unit.offsets + kChunk + panel;
      int d = 0;
      for (; d + kSquareElements <= head_dim; d += kSquareElements) {
        for (int i = 0; i < 16; ++i) Tiles::prefetch_row(cache + next_rows[i] + d, kSquareElements);
        add_columns(d, kSquareElements);
      }
      if (d < head_dim) {
        for (int i = 0; i < 16; ++i) Tiles::prefetch_row(cache + next_rows[i] + d, head_dim - d);
        add_columns(d, head_dim - d);
      }
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) Lanes::store(unit.scores + r * kChunk + panel, sums[r]);
    }
  }

  template <typename Format, int kRows, int kPanels>
  static void add_values(const Unit& unit, const Chunk& chunk, int column) {
    using Element = typename Format::Element;
    const Element* cache = static_cast<const Element*>(unit.inputs.kv.v);
    for (; column + kPanels * 16 <= unit.padded_dim; column += kPanels * 16) {
      const int last_count = unit.head_dim - (column + kPanels * 16 - 16);  // under 16: the last panel is a part
      Vec sums[kRows][kPanels];
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int p = 0; p < kPanels; ++p) sums[r][p] = Lanes::set(0.0f);
      }
      const auto add_word = [&](int first_key) __attribute__((always_inline)) {
        const Element* rows[kWordElements];
        for (int i = 0; i < kWordElements; ++i) {
          const int key = first_key + i;
          const bool is_seen = Tiles::kStepElements == 1 || (chunk.key_begin <= key && key < chunk.key_end);
          rows[i] = is_seen ? cache + unit.offsets[key] + column : reinterpret_cast<const Element*>(unit.zeros);
          const Element* next = cache + unit.offsets[kChunk + key] + column;
          for (int d = 0; d < kPanels * 16; d += 64 / static_cast<int>(sizeof(Element))) Lanes::prefetch(next + d);
        }
        Column columns[kPanels];
#pragma GCC unroll 8
        for (int p = 0; p < kPanels - 1; ++p) columns[p] = Products::template value_words<Format>(rows, 16 * p);
        constexpr int kLast = 16 * (kPanels - 1);
        columns[kPanels - 1] = last_count >= 16 ? Products::template value_words<Format>(rows, kLast)
                                                : Products::template value_words<Format>(rows, kLast, last_count);
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
          const Column p_of_row =
              Products::broadcast(Tiles::words(unit.scores) + r * kChunk + first_key / kWordElements);
#pragma GCC unroll 8
          for (int p = 0; p < kPanels; ++p) sums[r][p] = Products::multiply_add(p_of_row, columns[p], sums[r][p]);
        }
      };
      const auto add_step = [&](int step) __attribute__((always_inline)) {
#pragma GCC unroll 2
        for (int word = Products::kStepWords - 1; word >= 0; --word) add_word(step + word * kWordElements);
      };
      const int end = Tiles::step_end(chunk.key_end);
      int step = Tiles::step_begin(chunk.key_begin);
      // Eight steps to a round: pages are read half as fast by a loop of one step (Zen 4, head_dim 128: 11 GB/s against
      // 18; perhaps because one load that walks from row to row leads the processor to fetch on past a page's end).
      if constexpr (kWordElements == 2 && kRows <= 8) {
        constexpr int kRound = 8 * Tiles::kStepElements;
        for (; step + kRound <= end; step += kRound) {
#pragma GCC unroll 8
          for (int i = 0; i < 8; ++i) add_step(step + i * Tiles::kStepElements);
        }
      }
      for (; step < end; step += Tiles::kStepElements) add_step(step);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        if (r < chunk.row_begin || r >= chunk.row_end) continue;
        float* out = unit.state.out + int64_t{r} * unit.padded_dim + column;
        const float alpha = unit.alpha[r];
        const float beta = unit.beta[r];
#pragma GCC unroll 8
        for (int p = 0; p < kPanels; ++p) Tiles::update_output(out + 16 * p, alpha, beta, sums[r][p]);
      }
    }
    if constexpr (kPanels > 1) {
      if (column < unit.padded_dim) add_values<Format, kRows, kPanels / 2>(unit, chunk, column);
    }
  }
};

}  // namespace
}  // namespace quire::cpu

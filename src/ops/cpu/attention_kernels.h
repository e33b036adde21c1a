// The bodies of attention.h as templates over a lane type; the order of operations that they keep is written there. The
// same rule as for elementwise_kernels.h: nothing here may call an inline function of another header.
//
// One item, chunk by chunk: K is copied out of its pages as eight panels of sixteen keys, transposed ([head_dim][16]),
// V as panels of sixteen columns ([128][16]), both as float. Then
//   scores = q · panels             tiles of kTileRows rows × some panels, held in registers
//   p, m, l                         row by row
//   O = O * alpha + (p · V) * beta  the same tiles
// A chunk's panels (64 KB each at head_dim 128) stay in the second-level cache while all rows of the unit pass over
// them.
#pragma once

#include "ops/cpu/attention.h"
#include "ops/cpu/lane_math.h"

namespace quire::cpu {
namespace {

template <int kValue>
struct Number {
  static constexpr int value = kValue;
};

constexpr int kChunk = kAttentionChunkTokens;
constexpr int kNumKeyPanels = kChunk / 16;
constexpr float kMinusInfinity = -__builtin_inff();

inline int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}
inline int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}

template <typename Lanes>
struct AttentionKernels {
  using Vec = typename Lanes::Vec;
  using Math = LaneMath<Lanes>;
  static constexpr int kTileRows = Lanes::kTileRows;

  // Running results of the rows of a unit.
  struct State {
    float* largest;  // [rows]
    float* sum;      // [rows]
    float* out;      // [rows, padded head_dim]
  };

  // Everything about one item that does not change from chunk to chunk.
  struct Unit {
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
    float* q;       // tiles of rows, each [head_dim][rows of the tile]
    float* scores;  // [rows, 128]; later the probabilities
    float* k;       // [8 panels][head_dim][16]
    float* v;       // [padded_dim / 16 panels][128][16]
    float* chunk_largest;
    float* chunk_sum;
    float* alpha;
    float* beta;
    int64_t* offsets;    // [2 * 128], used by units of one tile
    const float* zeros;  // stands in for keys that no row sees
    State state;

    int64_t position(int row) const { return item.first_position + row / group_size; }
    int64_t row_first_key(int row) const {
      return inputs.window > 0 ? larger(0, position(row) - inputs.window + 1) : 0;
    }
    int64_t row_end_key(int row) const { return position(row) + 1; }
  };

  // A chunk as an item sees it.
  struct Chunk {
    int64_t first_position;
    int key_begin;  // keys that some row sees, from the chunk's start
    int key_end;
    int row_begin;  // rows that see some key
    int row_end;
    int64_t fetch_end;  // positions below it are read by this item sooner or later
  };

  static State state_at(float* memory, int num_rows) {
    const int64_t padded = padded_to_lanes(num_rows);
    return {memory, memory + padded, memory + 2 * padded};
  }

  static void reset(const State& state, int num_rows, int padded_dim) {
    for (int r = 0; r < num_rows; ++r) {
      state.largest[r] = kMinusInfinity;
      state.sum[r] = 0;
    }
    for (int64_t i = 0; i < int64_t{num_rows} * padded_dim; i += 16) Lanes::store(state.out + i, Lanes::set(0.0f));
  }

  // ---- Loading K and V from pages ----------------------------------------------------------------------------------

  // How elements of the cache become floats: sixteen, or the first `count` of them and zeros. A square is sixteen
  // neighbouring elements of sixteen rows (`count` of them, the rest of no meaning), turned around: column k holds
  // element k of each row.
  struct F32Format {
    using Element = float;
    struct Square {
      float columns[256];
    };
    static Vec load(const float* p) { return Lanes::load(p); }
    static Vec load(const float* p, int count) { return Lanes::load(p, count); }
    [[gnu::always_inline]] static void load_square(const float* const (&rows)[16], int d, int count, Square& square) {
      Vec vectors[16];
      for (int i = 0; i < 16; ++i) vectors[i] = count == 16 ? load(rows[i] + d) : load(rows[i] + d, count);
      Lanes::store_transposed(vectors, square.columns, count);
    }
    static Vec column(const Square& square, int k) { return Lanes::load(square.columns + k * 16); }
  };
  // Those of 16 bits are turned around first, which moves half as many bytes.
  struct HalvesFormat {
    using Element = uint16_t;
    struct Square {
      typename Lanes::Halves columns[16];
    };
    struct Part {
      uint16_t numbers[16];
    };
    static Part copy_part(const uint16_t* p, int count) {
      Part part;
      for (int i = 0; i < 16; ++i) part.numbers[i] = i < count ? p[i] : uint16_t{0};
      return part;
    }
    [[gnu::always_inline]] static void load_square(const uint16_t* const (&rows)[16], int d, int count,
                                                   Square& square) {
      if (count == 16) return Lanes::load_transposed(rows, d, square.columns);
      Part parts[16];
      const uint16_t* part_rows[16];
      for (int i = 0; i < 16; ++i) {
        parts[i] = copy_part(rows[i] + d, count);
        part_rows[i] = parts[i].numbers;
      }
      Lanes::load_transposed(part_rows, 0, square.columns);
    }
  };
  struct F16Format : HalvesFormat {
    static Vec load(const uint16_t* p) { return Lanes::load_f16(p); }
    static Vec load(const uint16_t* p, int count) { return Lanes::load_f16(HalvesFormat::copy_part(p, count).numbers); }
    static Vec column(const typename HalvesFormat::Square& square, int k) { return Lanes::from_f16(square.columns[k]); }
  };
  struct BF16Format : HalvesFormat {
    static Vec load(const uint16_t* p) { return Lanes::load_bf16(p); }
    static Vec load(const uint16_t* p, int count) {
      return Lanes::load_bf16(HalvesFormat::copy_part(p, count).numbers);
    }
    static Vec column(const typename HalvesFormat::Square& square, int k) {
      return Lanes::from_bf16(square.columns[k]);
    }
  };

  // Offsets of successive positions in the cache: one division at the start, none after.
  struct PageWalk {
    const PagedKv& kv;
    const int32_t* pages;
    int64_t head_offset;
    int64_t page;
    int64_t token;

    PageWalk(const Unit& unit, int64_t position)
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

  // Asks for a row of the next chunk while this one is computed: pages lie anywhere, so the processor's own prefetching
  // stops at the end of each.
  template <typename Element>
  static void prefetch_row(const Element* row, int head_dim) {
    for (int d = 0; d < head_dim; d += 64 / static_cast<int>(sizeof(Element))) Lanes::prefetch(row + d);
  }

  template <typename Format>
  static void load_keys(const Unit& unit, const Chunk& chunk) {
    using Element = typename Format::Element;
    const Element* cache = static_cast<const Element*>(unit.inputs.kv.k);
    const int head_dim = unit.head_dim;
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
      float* out = unit.k + int64_t{panel} * head_dim * 16;
      const auto turn_around = [&](int d, int count) __attribute__((always_inline)) {
        typename Format::Square square;
        Format::load_square(rows, d, count, square);
#pragma GCC unroll 16
        for (int k = 0; k < count; ++k) Lanes::store(out + (d + k) * 16, Format::column(square, k));
      };
      int d = 0;
      for (; d + 16 <= head_dim; d += 16) turn_around(d, 16);
      if (d < head_dim) turn_around(d, head_dim - d);
    }
  }

  template <typename Format>
  static void load_values(const Unit& unit, const Chunk& chunk) {
    using Element = typename Format::Element;
    const Element* cache = static_cast<const Element*>(unit.inputs.kv.v);
    const int head_dim = unit.head_dim;
    PageWalk walk(unit, chunk.first_position + chunk.key_begin);
    PageWalk next(unit, chunk.first_position + chunk.key_begin + kChunk);
    for (int key = chunk.key_begin; key < chunk.key_end; ++key, walk.advance(), next.advance()) {
      if (chunk.first_position + key + kChunk < chunk.fetch_end) prefetch_row(cache + next.offset(), head_dim);
      const Element* row = cache + walk.offset();
      float* out = unit.v + key * 16;
      int d = 0;
      for (; d + 16 <= head_dim; d += 16) Lanes::store(out + int64_t{d} * kChunk, Format::load(row + d));
      if (d < head_dim) Lanes::store(out + int64_t{d} * kChunk, Format::load(row + d, head_dim - d));
    }
  }

  // ---- Products ----------------------------------------------------------------------------------------------------

  // store(r, p, Σ_k a[r][k] * panel p [k][16]) for kRows × kPanels; a's element stands at r * kRowStride + k *
  // kDepthStride.
  template <int kRows, int kPanels, int kRowStride, int kDepthStride, typename Store>
  static void multiply_tile(const float* a, const float* panels, int64_t panel_stride, int64_t depth, Store&& store) {
    Vec sums[kRows][kPanels];
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) sums[r][p] = Lanes::set(0.0f);
    }
    for (int64_t k = 0; k < depth; ++k) {
      Vec columns[kPanels];
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) columns[p] = Lanes::load(panels + p * panel_stride + k * 16);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const Vec element = Lanes::set(a[r * kRowStride + k * kDepthStride]);
#pragma GCC unroll 8
        for (int p = 0; p < kPanels; ++p) sums[r][p] = Lanes::fma(element, columns[p], sums[r][p]);
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
    const int64_t panel_floats = int64_t{unit.head_dim} * 16;
    multiply_tile<kRows, kPanels, 1, kRows>(
        unit.q + int64_t{row} * unit.head_dim, unit.k + panel * panel_floats, panel_floats, unit.head_dim,
        [&](int r, int p, const Vec& sum) { Lanes::store(scores + r * kChunk + p * 16, sum); });
  }

  // O = O * alpha + sum * beta for sixteen columns of a row, if the row sees the chunk.
  static void update_output(const Unit& unit, const Chunk& chunk, int row, int column, const Vec& sum) {
    if (row < chunk.row_begin || row >= chunk.row_end) return;
    float* out = unit.state.out + int64_t{row} * unit.padded_dim + column;
    const Vec added = Lanes::mul(sum, Lanes::set(unit.beta[row]));
    Lanes::store(out, Lanes::fma(Lanes::load(out), Lanes::set(unit.alpha[row]), added));
  }

  // O = O * alpha + (P · V) * beta for kRows rows and kPanels panels of columns from `panel` on.
  template <int kRows, int kPanels>
  static void value_tile(const Unit& unit, const Chunk& chunk, int row, int panel, int key_begin, int key_end) {
    multiply_tile<kRows, kPanels, kChunk, 1>(
        unit.scores + int64_t{row} * kChunk + key_begin, unit.v + (int64_t{panel} * kChunk + key_begin) * 16,
        kChunk * 16, key_end - key_begin,
        [&](int r, int p, const Vec& sum) { update_output(unit, chunk, row + r, (panel + p) * 16, sum); });
  }

  template <int kRows, int kPanels>
  static void value_tiles(const Unit& unit, const Chunk& chunk, int row, int panel) {
    const int64_t seen_begin = unit.row_first_key(row) - chunk.first_position;
    const int64_t seen_end = unit.row_end_key(row + kRows - 1) - chunk.first_position;
    const int key_begin = static_cast<int>(larger(chunk.key_begin, seen_begin));
    const int key_end = static_cast<int>(smaller(chunk.key_end, seen_end));
    const int num_panels = unit.padded_dim / 16;
    for (; panel + kPanels <= num_panels; panel += kPanels) {
      value_tile<kRows, kPanels>(unit, chunk, row, panel, key_begin, key_end);
    }
    if constexpr (kPanels > 1) {
      if (panel < num_panels) value_tiles<kRows, kPanels / 2>(unit, chunk, row, panel);
    }
  }

  // body(Number<rows>) for a number of rows that is known at run time only.
  template <int kMostRows, typename Body>
  static void with_rows(int num_rows, Body&& body) {
    if constexpr (kMostRows > 0) {
      if (num_rows == kMostRows) {
        body(Number<kMostRows>{});
      } else {
        with_rows<kMostRows - 1>(num_rows, body);
      }
    }
  }

  // A panel group outermost, so that it stays in the first-level cache while all tiles of rows pass over it.
  static void compute_scores(const Unit& unit, const Chunk& chunk) {
    const int first_tile_row = chunk.row_begin / kTileRows * kTileRows;
    const int last_tile_row = unit.num_rows / kTileRows * kTileRows;
    for (int panel = 0; panel < kNumKeyPanels; panel += Lanes::panels_for_rows(kTileRows)) {
      for (int row = first_tile_row; row + kTileRows <= unit.num_rows && row < chunk.row_end; row += kTileRows) {
        score_tile<kTileRows>(unit, chunk, row, panel);
      }
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
    const int first_tile_row = chunk.row_begin / kTileRows * kTileRows;
    const int last_tile_row = unit.num_rows / kTileRows * kTileRows;
    const int num_panels = unit.padded_dim / 16;
    int panel = 0;
    for (; panel + kPanels <= num_panels; panel += kPanels) {
      for (int row = first_tile_row; row + kTileRows <= unit.num_rows && row < chunk.row_end; row += kTileRows) {
        const int64_t seen_begin = unit.row_first_key(row) - chunk.first_position;
        const int64_t seen_end = unit.row_end_key(row + kTileRows - 1) - chunk.first_position;
        value_tile<kTileRows, kPanels>(unit, chunk, row, panel, static_cast<int>(larger(chunk.key_begin, seen_begin)),
                                       static_cast<int>(smaller(chunk.key_end, seen_end)));
      }
    }
    if constexpr (kPanels > 1) {
      for (int row = first_tile_row; row + kTileRows <= unit.num_rows && row < chunk.row_end; row += kTileRows) {
        value_tiles<kTileRows, kPanels / 2>(unit, chunk, row, panel);
      }
    }
    if (last_tile_row >= chunk.row_end) return;
    with_rows<kTileRows - 1>(unit.num_rows - last_tile_row, [&](auto rows) {
      constexpr int kRows = decltype(rows)::value;
      value_tiles<kRows, Lanes::panels_for_rows(kRows)>(unit, chunk, last_tile_row, 0);
    });
  }

  // ---- The same from the pages, for units of one tile ---------------------------------------------------------------

  // Fills unit.offsets, where the keys of this chunk and of the next one stand in the cache; what the chunk before
  // already found is kept.
  static void find_rows(const Unit& unit, const Chunk& chunk) {
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

  template <typename Format, int kRows>
  static void score_directly(const Unit& unit, const Chunk& chunk) {
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
        typename Format::Square square;
        Format::load_square(rows, d, count, square);
        const float* q = unit.q + d * kRows;
#pragma GCC unroll 16
        for (int k = 0; k < count; ++k) {
          const Vec column = Format::column(square, k);
#pragma GCC unroll 12
          for (int r = 0; r < kRows; ++r) sums[r] = Lanes::fma(Lanes::set(q[k * kRows + r]), column, sums[r]);
        }
      };
      // The next chunk's rows are asked for evenly: all at once they would hold up the loads of these.
      const int64_t* next_rows = unit.offsets + kChunk + panel;
      int next = 0;
      int d = 0;
      for (; d + 16 <= head_dim; d += 16) {
        for (; next < 16 && next * head_dim < (d + 16) * 16; ++next) prefetch_row(cache + next_rows[next], head_dim);
        add_columns(d, 16);
      }
      if (d < head_dim) add_columns(d, head_dim - d);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) Lanes::store(unit.scores + r * kChunk + panel, sums[r]);
    }
  }

  template <typename Format, int kRows, int kPanels>
  static void add_values_directly(const Unit& unit, const Chunk& chunk, int column) {
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
      for (int key = chunk.key_begin; key < chunk.key_end; ++key) {
        const Element* row = cache + unit.offsets[key] + column;
        const Element* next = cache + unit.offsets[kChunk + key] + column;
        for (int i = 0; i < kPanels * 16; i += 64 / static_cast<int>(sizeof(Element))) Lanes::prefetch(next + i);
        Vec columns[kPanels];
#pragma GCC unroll 8
        for (int p = 0; p < kPanels - 1; ++p) columns[p] = Format::load(row + 16 * p);
        columns[kPanels - 1] = last_count >= 16 ? Format::load(row + 16 * (kPanels - 1))
                                                : Format::load(row + 16 * (kPanels - 1), last_count);
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
          const Vec p_of_row = Lanes::set(unit.scores[r * kChunk + key]);
#pragma GCC unroll 8
          for (int p = 0; p < kPanels; ++p) sums[r][p] = Lanes::fma(p_of_row, columns[p], sums[r][p]);
        }
      }
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int p = 0; p < kPanels; ++p) update_output(unit, chunk, r, column + 16 * p, sums[r][p]);
      }
    }
    if constexpr (kPanels > 1) {
      if (column < unit.padded_dim) {
        add_values_directly<Format, kRows, kPanels / 2>(unit, chunk, column);
      }
    }
  }

  template <typename Format>
  static void attend_chunk_directly(const Unit& unit, const Chunk& chunk) {
    find_rows(unit, chunk);
    with_rows<kTileRows>(unit.num_rows, [&](auto rows) {
      constexpr int kRows = decltype(rows)::value;
      score_directly<Format, kRows>(unit, chunk);
      for (int row = chunk.row_begin; row < chunk.row_end; ++row) soften_row(unit, chunk, row);
      merge_sums(unit, chunk);
      add_values_directly<Format, kRows, Lanes::panels_for_rows(kRows)>(unit, chunk, 0);
    });
  }

  // ---- Softmax -----------------------------------------------------------------------------------------------------

  // Scores of one row become probabilities relative to the row's largest score in this chunk; what the row does not see
  // becomes 0. Scores come in units of log2(e), except under a soft-cap.
  static void soften_row(const Unit& unit, const Chunk& chunk, int row) {
    constexpr float kLog2E = LaneMath<Lanes>::kLog2E;
    const float cap = unit.inputs.soft_cap;
    float* scores = unit.scores + int64_t{row} * kChunk;
    const int begin = static_cast<int>(larger(chunk.key_begin, unit.row_first_key(row) - chunk.first_position));
    const int end = static_cast<int>(smaller(chunk.key_end, unit.row_end_key(row) - chunk.first_position));
    Vec largest = Lanes::set(kMinusInfinity);
    for (int i = begin / 16 * 16; i < end; i += 16) {
      Vec score = Lanes::load(scores + i);
      if (cap > 0) score = Lanes::mul(Lanes::set(cap * kLog2E), Math::tanh(score));
      if (i < begin || i + 16 > end) score = Lanes::keep_lanes(score, begin - i, end - i, kMinusInfinity);
      Lanes::store(scores + i, score);
      largest = Lanes::max(largest, score);
    }
    const float row_largest = Lanes::largest(largest);
    const Vec base = Lanes::set(row_largest);
    Vec sum = Lanes::set(0.0f);
    for (int i = begin / 16 * 16; i < end; i += 16) {
      Vec p = Math::exp2(Lanes::sub(Lanes::load(scores + i), base));
      if (i < begin || i + 16 > end) p = Lanes::keep_lanes(p, begin - i, end - i, 0.0f);
      Lanes::store(scores + i, p);
      sum = Lanes::add(sum, p);
    }
    for (int i = chunk.key_begin / 16 * 16; i < begin / 16 * 16; i += 16) Lanes::store(scores + i, Lanes::set(0.0f));
    for (int i = (end + 15) / 16 * 16; i < chunk.key_end; i += 16) Lanes::store(scores + i, Lanes::set(0.0f));
    unit.chunk_largest[row] = row_largest;
    unit.chunk_sum[row] = Lanes::sum(sum);
  }

  // Merges a later (m, l) of sixteen rows into an earlier one; alpha and beta are what the earlier and the later O are
  // multiplied by.
  struct Merged {
    Vec largest;
    Vec sum;
    Vec alpha;
    Vec beta;
  };
  static Merged merge(const Vec& largest, const Vec& sum, const Vec& later_largest, const Vec& later_sum) {
    Merged merged;
    merged.largest = Lanes::max(largest, later_largest);
    merged.alpha = Math::exp2(Lanes::sub(largest, merged.largest));
    merged.beta = Math::exp2(Lanes::sub(later_largest, merged.largest));
    merged.sum = Lanes::fma(sum, merged.alpha, Lanes::mul(later_sum, merged.beta));
    return merged;
  }

  static void merge_sums(const Unit& unit, const Chunk& chunk) {
    for (int row = chunk.row_begin; row < chunk.row_end; row += 16) {
      const int count = chunk.row_end - row < 16 ? chunk.row_end - row : 16;
      const Merged merged =
          merge(Lanes::load(unit.state.largest + row, count), Lanes::load(unit.state.sum + row, count),
                Lanes::load(unit.chunk_largest + row, count), Lanes::load(unit.chunk_sum + row, count));
      Lanes::store(unit.state.largest + row, merged.largest, count);
      Lanes::store(unit.state.sum + row, merged.sum, count);
      Lanes::store(unit.alpha + row, merged.alpha, count);
      Lanes::store(unit.beta + row, merged.beta, count);
    }
  }

  // ---- Items -------------------------------------------------------------------------------------------------------

  static void attend_chunk(const Unit& unit, int64_t chunk_index) {
    Chunk chunk;
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

    switch (unit.inputs.kv.dtype) {
      case DType::kF32:
        return attend_chunk<F32Format>(unit, chunk);
      case DType::kF16:
        return attend_chunk<F16Format>(unit, chunk);
      default:
        return attend_chunk<BF16Format>(unit, chunk);
    }
  }

  template <typename Format>
  static void attend_chunk(const Unit& unit, const Chunk& chunk) {
    if (unit.num_rows <= kTileRows) return attend_chunk_directly<Format>(unit, chunk);
    load_keys<Format>(unit, chunk);
    load_values<Format>(unit, chunk);
    compute_scores(unit, chunk);
    for (int row = chunk.row_begin; row < chunk.row_end; ++row) soften_row(unit, chunk, row);
    merge_sums(unit, chunk);
    add_values(unit, chunk);
  }

  static void pack_queries(const Unit& unit) {
    const AttentionInputs& inputs = unit.inputs;
    const float factor = inputs.soft_cap > 0 ? inputs.scale / inputs.soft_cap : inputs.scale * LaneMath<Lanes>::kLog2E;
    for (int tile = 0; tile < unit.num_rows; tile += kTileRows) {
      const int tile_rows = unit.num_rows - tile < kTileRows ? unit.num_rows - tile : kTileRows;
      for (int r = 0; r < tile_rows; ++r) {
        const int row = tile + r;
        const int64_t token = unit.item.token_begin + row / unit.group_size;
        const int64_t head = int64_t{unit.item.kv_head} * unit.group_size + row % unit.group_size;
        const float* q = inputs.q + token * inputs.q_token_stride + head * inputs.q_head_stride;
        float* packed = unit.q + int64_t{tile} * unit.head_dim + r;
        for (int d = 0; d < unit.head_dim; ++d) packed[d * tile_rows] = q[d] * factor;
      }
    }
  }

  // out = O / l; 0 where no key was seen.
  static void store_output(const AttentionInputs& inputs, const AttentionItem& item, const State& state) {
    const int head_dim = inputs.kv.head_dim;
    const int64_t padded_dim = padded_to_lanes(head_dim);
    const int num_rows = (item.token_end - item.token_begin) * inputs.group_size;
    for (int row = 0; row < num_rows; ++row) {
      const int64_t token = item.token_begin + row / inputs.group_size;
      const int64_t head = int64_t{item.kv_head} * inputs.group_size + row % inputs.group_size;
      float* out = inputs.out + token * inputs.out_token_stride + head * inputs.out_head_stride;
      const Vec sum = Lanes::set(state.sum[row] == 0.0f ? 1.0f : state.sum[row]);
      for (int d = 0; d < head_dim; d += 16) {
        const Vec quotient = Lanes::div(Lanes::load(state.out + row * padded_dim + d), sum);
        Lanes::store(out + d, quotient, head_dim - d < 16 ? head_dim - d : 16);
      }
    }
  }

  static void attend_item(const AttentionInputs& inputs, const AttentionItem& item, float* workspace) {
    const int group_size = inputs.group_size;
    const int head_dim = inputs.kv.head_dim;
    const int padded_dim = static_cast<int>(padded_to_lanes(head_dim));
    const int num_rows = (item.token_end - item.token_begin) * group_size;
    const int64_t padded_rows = padded_to_lanes(num_rows);
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
              .q = take(int64_t{num_rows} * head_dim),
              .scores = take(int64_t{num_rows} * kChunk),
              .k = take(int64_t{kChunk} * head_dim),
              .v = take(int64_t{kChunk} * padded_dim),
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
        unit.state = state_at(state_memory, num_rows);
        reset(unit.state, num_rows, padded_dim);
        state_memory += attention_state_floats(num_rows, head_dim);
      }
      attend_chunk(unit, chunk);
    }
    if (!is_split) store_output(inputs, item, unit.state);
  }

  static void attend(const AttentionCall& call) {
    for (int i = 0; i < call.num_items; ++i) attend_item(call.inputs, call.items[i], call.workspace);
  }

  // ---- Splits ------------------------------------------------------------------------------------------------------

  static void merge_state(const State& state, const State& later, int num_rows, int64_t padded_dim) {
    for (int row = 0; row < num_rows; row += 16) {
      const int count = num_rows - row < 16 ? num_rows - row : 16;
      float largest[16];
      float sum[16];
      float alpha[16];
      float beta[16];
      const Merged merged = merge(Lanes::load(state.largest + row, count), Lanes::load(state.sum + row, count),
                                  Lanes::load(later.largest + row, count), Lanes::load(later.sum + row, count));
      Lanes::store(largest, merged.largest);
      Lanes::store(sum, merged.sum);
      Lanes::store(alpha, merged.alpha);
      Lanes::store(beta, merged.beta);
      for (int r = 0; r < count; ++r) {
        if (later.sum[row + r] == 0.0f) continue;  // this row saw nothing of the later chunk
        state.largest[row + r] = largest[r];
        state.sum[row + r] = sum[r];
        float* out = state.out + (row + r) * padded_dim;
        const float* added = later.out + (row + r) * padded_dim;
        for (int64_t d = 0; d < padded_dim; d += 16) {
          const Vec scaled = Lanes::mul(Lanes::load(added + d), Lanes::set(beta[r]));
          Lanes::store(out + d, Lanes::fma(Lanes::load(out + d), Lanes::set(alpha[r]), scaled));
        }
      }
    }
  }

  static void merge_split(const AttentionMergeCall& call) {
    const AttentionInputs& inputs = call.inputs;
    const AttentionItem& first = call.items[0];
    const int num_rows = (first.token_end - first.token_begin) * inputs.group_size;
    const int64_t padded_dim = padded_to_lanes(inputs.kv.head_dim);
    const int64_t state_floats = attention_state_floats(num_rows, inputs.kv.head_dim);
    const State state = state_at(inputs.partials + first.partial_offset, num_rows);
    for (int i = 1; i < call.num_items; ++i) {
      float* later = inputs.partials + call.items[i].partial_offset;
      for (int chunk = call.items[i].chunk_begin; chunk < call.items[i].chunk_end; ++chunk) {
        merge_state(state, state_at(later, num_rows), num_rows, padded_dim);
        later += state_floats;
      }
    }
    store_output(inputs, first, state);
  }
};

}  // namespace
}  // namespace quire::cpu

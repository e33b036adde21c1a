// How attention multiplies: what its operands become, and in which order they are added. Products is the argument of
// all templates of the attention kernels:
//   FloatProducts           order "chunks_of_128": floats, one fused multiply-add an element, ascending
//   EmulatedBf16Products    order "chunks_of_128_bf16" by ordinary fused multiply-adds on floats that are bfloat16
//   Avx512Bf16Products      the same by the processor's products of pairs (attention_products_avx512_bf16.h)
// A word is a float, or two bfloat16 of which the lower half is the earlier element. kStepWords words are multiplied
// the last one first. A column is a word of each of sixteen lanes: of sixteen keys, or of sixteen elements of values.
//
// Here also are the formats that a cache can have. Included where kernels are instantiated.
#pragma once

#include <cstdint>

#include "ops/cpu/lane_math.h"

namespace quire::cpu {
namespace {

// How elements of the cache become floats: sixteen, or the first `count` of them and zeros. A square is sixteen
// neighbouring elements of sixteen rows (`count` of them, then zeros up to num_columns, the rest of no meaning), turned
// around: column k holds element k of each row.
template <typename Lanes>
struct CacheFormats {
  using Vec = typename Lanes::Vec;

  struct F32 {
    using Element = float;
    static constexpr bool kIsBf16 = false;
    struct Square {
      float columns[256];
    };
    static Vec load(const float* p) { return Lanes::load(p); }
    static Vec load(const float* p, int count) { return Lanes::load(p, count); }
    [[gnu::always_inline]] static void load_square(const float* const (&rows)[16], int d, int count, int num_columns,
                                                   Square& square) {
      Vec vectors[16];
      for (int i = 0; i < 16; ++i) vectors[i] = count == 16 ? load(rows[i] + d) : load(rows[i] + d, count);
      Lanes::store_transposed(vectors, square.columns, num_columns);
    }
    static Vec column(const Square& square, int k) { return Lanes::load(square.columns + k * 16); }
  };

  // Those of 16 bits are turned around first, which moves half as many bytes.
  struct Halves {
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
    [[gnu::always_inline]] static void load_square(const uint16_t* const (&rows)[16], int d, int count, int,
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
  struct F16 : Halves {
    static constexpr bool kIsBf16 = false;
    static Vec load(const uint16_t* p) { return Lanes::load_f16(p); }
    static Vec load(const uint16_t* p, int count) { return Lanes::load_f16(Halves::copy_part(p, count).numbers); }
    static Vec column(const typename Halves::Square& square, int k) { return Lanes::from_f16(square.columns[k]); }
  };
  struct BF16 : Halves {
    static constexpr bool kIsBf16 = true;
    static Vec load(const uint16_t* p) { return Lanes::load_bf16(p); }
    static Vec load(const uint16_t* p, int count) { return Lanes::load_bf16(Halves::copy_part(p, count).numbers); }
    static Vec column(const typename Halves::Square& square, int k) { return Lanes::from_bf16(square.columns[k]); }
  };
};

template <typename L>
struct FloatProducts {
  using Lanes = L;
  using Vec = typename L::Vec;
  using Word = float;
  using Column = Vec;
  static constexpr int kWordElements = 1;
  static constexpr int kStepWords = 1;

  static Column load(const Word* p) { return L::load(p); }
  static void store(Word* p, const Column& column) { L::store(p, column); }
  static Column broadcast(const Word* p) { return L::set(*p); }
  static Vec multiply_add(const Column& a, const Column& b, const Vec& sum) { return L::fma(a, b, sum); }

  // Sixteen words of a query, times factor: `count` elements, then zeros.
  static Column query_words(const float* q, const Vec& factor) { return L::mul(L::load(q), factor); }
  static Column query_words(const float* q, int count, const Vec& factor) { return L::mul(L::load(q, count), factor); }

  // Sixteen words of each of sixteen keys, turned around.
  template <typename Format>
  using Square = typename Format::Square;
  template <typename Format>
  [[gnu::always_inline]] static void load_square(const typename Format::Element* const (&rows)[16], int d, int count,
                                                 Square<Format>& square) {
    Format::load_square(rows, d, count, count, square);
  }
  template <typename Format>
  static Column column(const Square<Format>& square, int k) {
    return Format::column(square, k);
  }

  // Elements d on, `count` of them and zeros, of the kWordElements keys of a word.
  template <typename Format>
  static Column value_words(const typename Format::Element* const (&rows)[1], int d) {
    return Format::load(rows[0] + d);
  }
  template <typename Format>
  static Column value_words(const typename Format::Element* const (&rows)[1], int d, int count) {
    return Format::load(rows[0] + d, count);
  }

  // 2^x, x <= 0: to all bits, or to those that are kept.
  static Vec exp2(const Vec& x) { return LaneMath<L>::exp2(x); }

  // Puts the probabilities of keys i to i + 15 of a row where words of them are read, and returns them as they are
  // multiplied.
  static Vec keep_probabilities(float* row, int i, const Vec& p) {
    L::store(row + i, p);
    return p;
  }
};

template <typename L>
struct EmulatedBf16Products : FloatProducts<L> {
  using Base = FloatProducts<L>;
  using Vec = typename L::Vec;
  using Column = Vec;
  static constexpr int kStepWords = 2;

  static Column query_words(const float* q, const Vec& factor) {
    return L::round_to_bf16(Base::query_words(q, factor));
  }
  static Column query_words(const float* q, int count, const Vec& factor) {
    return L::round_to_bf16(Base::query_words(q, count, factor));
  }

  template <typename Format>
  [[gnu::always_inline]] static void load_square(const typename Format::Element* const (&rows)[16], int d, int count,
                                                 typename Format::Square& square) {
    Format::load_square(rows, d, count, (count + 1) / 2 * 2, square);
  }
  template <typename Format>
  static Vec rounded(const Vec& v) {
    if constexpr (Format::kIsBf16) {
      return v;
    } else {
      return L::round_to_bf16(v);
    }
  }
  template <typename Format>
  static Column column(const typename Format::Square& square, int k) {
    return rounded<Format>(Format::column(square, k));
  }

  template <typename Format>
  static Column value_words(const typename Format::Element* const (&rows)[1], int d) {
    return rounded<Format>(Format::load(rows[0] + d));
  }
  template <typename Format>
  static Column value_words(const typename Format::Element* const (&rows)[1], int d, int count) {
    return rounded<Format>(Format::load(rows[0] + d, count));
  }

  static Vec exp2(const Vec& x) { return LaneMath<L>::exp2_13_bits(x); }

  static Vec keep_probabilities(float* row, int i, const Vec& p) {
    return Base::keep_probabilities(row, i, L::round_to_bf16(p));
  }
};

}  // namespace
}  // namespace quire::cpu

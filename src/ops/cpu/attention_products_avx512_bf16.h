// Products of pairs of bfloat16 by the instructions of AVX512_BF16 (attention_products.h says what the members do). One
// instruction multiplies and adds both elements of a pair: sum = even + (odd + sum), each a fused multiply-add, with
// subnormals flushed. Conversions flush too. Included by one file only, which is compiled for AVX-512 with BF16.
#pragma once

#include "ops/cpu/lane_math.h"
#include "ops/cpu/lanes_avx512.h"

namespace quire::cpu {
namespace {

struct Avx512Bf16Products {
  using Lanes = Avx512Lanes;
  using Vec = Lanes::Vec;
  using Word = uint32_t;
  struct Column {
    __m512i v;
  };
  static constexpr int kWordElements = 2;
  static constexpr int kStepWords = 1;

  static Column load(const Word* p) { return {_mm512_loadu_si512(p)}; }
  static void store(Word* p, const Column& column) { _mm512_storeu_si512(p, column.v); }
  static Column broadcast(const Word* p) { return {_mm512_set1_epi32(static_cast<int>(*p))}; }
  static Vec multiply_add(const Column& a, const Column& b, const Vec& sum) {
    return {_mm512_dpbf16_ps(sum.v, __builtin_bit_cast(__m512bh, a.v), __builtin_bit_cast(__m512bh, b.v))};
  }
  static Column join(const Vec& low, const Vec& high) {
    return {__builtin_bit_cast(__m512i, _mm512_cvtne2ps_pbh(high.v, low.v))};
  }

  static Column query_words(const float* q, const Vec& factor) {
    return join(Lanes::mul(Lanes::load(q), factor), Lanes::mul(Lanes::load(q + 16), factor));
  }
  static Column query_words(const float* q, int count, const Vec& factor) {
    return join(Lanes::mul(Lanes::load(q, count), factor), Lanes::mul(Lanes::load(q + 16, count - 16), factor));
  }

  // Sixteen words of one key.
  template <typename Format>
  static Column key_words(const typename Format::Element* p, int count) {
    if constexpr (Format::kIsBf16) {
      if (count == 32) return {_mm512_loadu_si512(p)};
      return {_mm512_maskz_loadu_epi16((__mmask32{1} << count) - 1, p)};
    } else {
      if (count == 32) return join(Format::load(p), Format::load(p + 16));
      return join(Format::load(p, count), Format::load(p + 16, count - 16));
    }
  }
  template <typename Format>
  struct Square {
    Vec columns[16];
  };
  template <typename Format>
  [[gnu::always_inline]] static void load_square(const typename Format::Element* const (&rows)[16], int d, int count,
                                                 Square<Format>& square) {
    Vec words[16];
    for (int i = 0; i < 16; ++i) words[i] = {_mm512_castsi512_ps(key_words<Format>(rows[i] + d, count).v)};
    Lanes::transpose(words, square.columns);
  }
  template <typename Format>
  static Column column(const Square<Format>& square, int k) {
    return {_mm512_castps_si512(square.columns[k].v)};
  }

  // Sixteen elements as bfloat16.
  template <typename Format>
  static __m256i value_halves(const typename Format::Element* p) {
    if constexpr (Format::kIsBf16) {
      return Lanes::load_16_halves(p);
    } else {
      return __builtin_bit_cast(__m256i, _mm512_cvtneps_pbh(Format::load(p).v));
    }
  }
  template <typename Format>
  static __m256i value_halves(const typename Format::Element* p, int count) {
    if constexpr (Format::kIsBf16) {
      return _mm256_maskz_loadu_epi16(Lanes::lane_mask(0, count), p);
    } else {
      return __builtin_bit_cast(__m256i, _mm512_cvtneps_pbh(Format::load(p, count).v));
    }
  }
  static Column interleave(__m256i even, __m256i odd) {
    const __m512i indices = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                             37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    return {_mm512_permutex2var_epi16(_mm512_castsi256_si512(even), indices, _mm512_castsi256_si512(odd))};
  }
  template <typename Format>
  static Column value_words(const typename Format::Element* const (&rows)[2], int d) {
    return interleave(value_halves<Format>(rows[0] + d), value_halves<Format>(rows[1] + d));
  }
  template <typename Format>
  static Column value_words(const typename Format::Element* const (&rows)[2], int d, int count) {
    return interleave(value_halves<Format>(rows[0] + d, count), value_halves<Format>(rows[1] + d, count));
  }

  static Vec exp2(const Vec& x) { return LaneMath<Lanes>::exp2_13_bits(x); }

  // Words take half the room of the floats that they are made of: they are behind what is still to be read.
  static Vec keep_probabilities(float* row, int i, const Vec& p) {
    const __m256i halves = __builtin_bit_cast(__m256i, _mm512_cvtneps_pbh(p.v));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + i / 2), halves);
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
  }
};

}  // namespace
}  // namespace quire::cpu

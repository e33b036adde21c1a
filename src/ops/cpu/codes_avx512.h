// Sixty-four weight codes as one AVX-512 register, multiplied by VNNI where a file is compiled for it. What each member
// computes is written in codes_scalar.h. Included by files that are compiled for AVX-512 F, BW, VL, DQ.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "ops/cpu/lanes_avx512.h"

namespace quire::cpu {
namespace {

struct Avx512Codes {
  using Lanes = Avx512Lanes;
  using Vec = Avx512Lanes::Vec;
  struct Bytes {
    __m512i v;
  };

  static Bytes load(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
  static void store(uint8_t* p, const Bytes& a) { _mm512_storeu_si512(p, a.v); }
  static Bytes bit_or(const Bytes& a, const Bytes& b) { return {_mm512_or_si512(a.v, b.v)}; }
  template <int kShift, int kMask>
  static Bytes shift_and_mask(const Bytes& a) {
    const __m512i shifted = kShift > 0   ? _mm512_srli_epi16(a.v, kShift > 0 ? kShift : 0)
                            : kShift < 0 ? _mm512_slli_epi16(a.v, kShift < 0 ? -kShift : 0)
                                         : a.v;
    return {_mm512_and_si512(shifted, _mm512_set1_epi8(kMask))};
  }
  static Bytes lookup(const uint8_t (&table)[16], const Bytes& indices) {
    const __m512i entries = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
    return {_mm512_shuffle_epi8(entries, indices.v)};
  }
  template <int kOffset>
  static Bytes subtract(const Bytes& a) {
    return {_mm512_sub_epi8(a.v, _mm512_set1_epi8(static_cast<char>(kOffset)))};
  }
  template <int kByte>
  static Vec to_float(const Bytes& a, int offset) {
    __m512i byte = _mm512_srli_epi32(a.v, 8 * kByte);
    if (kByte != 3) byte = _mm512_and_si512(byte, _mm512_set1_epi32(255));
    return {_mm512_cvtepi32_ps(_mm512_sub_epi32(byte, _mm512_set1_epi32(offset)))};
  }
  static void load_bf16_pairs(const uint16_t* p, Vec& first, Vec& second) {
    const __m512i pairs = _mm512_loadu_si512(p);
    first = {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))};
    second = {_mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int32_t>(0xffff0000u))))};
  }
  static __m128i load_16(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  static Vec load_u8(const uint8_t* p) { return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_16(p)))}; }
  static Vec load_i8(const uint8_t* p) { return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_16(p)))}; }
  static Vec load_low_nibbles(const uint8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_and_si512(_mm512_cvtepu8_epi32(load_16(p)), _mm512_set1_epi32(15)))};
  }
  static Vec load_high_nibbles(const uint8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_srli_epi32(_mm512_cvtepu8_epi32(load_16(p)), 4))};
  }

#if defined(__AVX512VNNI__)
  static constexpr int code_class(int) {
    return 255;
  }

  template <int kMaxCode>
  struct Dot {
    __m512i sum;

    explicit Dot(int32_t bias) : sum(_mm512_set1_epi32(bias)) {}
    template <int kIndex>
    void add(const Bytes& codes, const int8_t* x) {
      int32_t four;
      std::memcpy(&four, x, sizeof(four));
      sum = _mm512_dpbusd_epi32(sum, codes.v, _mm512_set1_epi32(four));
    }
    template <int kCount>
    Vec finish() const {
      return {_mm512_cvtepi32_ps(sum)};
    }
  };
#else
  static constexpr int code_class(int max_code) {
    return max_code <= 15 ? 15 : max_code;
  }

  // As that of codes_avx2.h.
  template <int kMaxCode>
  struct Dot {
    // 2 * 127 * kMaxCode * kVectorsPer16Bits <= 32767
    static constexpr int kVectorsPer16Bits = kMaxCode <= 15 ? 8 : kMaxCode <= 31 ? 4 : kMaxCode <= 63 ? 2 : 1;
    __m512i shorts;
    __m512i sum;
    int32_t bias;  // joins the sum when that begins: until then it needs no register

    // 8-bit codes are made signed below, so their offset is gone already.
    explicit Dot(int32_t group_bias) : bias(kMaxCode == 255 ? 0 : group_bias) {}
    template <int kIndex>
    void add(const Bytes& codes, const int8_t* x) {
      int32_t four;
      std::memcpy(&four, x, sizeof(four));
      const __m512i activations = _mm512_set1_epi32(four);
      __m512i products;
      if constexpr (kMaxCode == 255) {
        // |w| * (x with the sign of w): 128 * 127 * 2 fits 16 bits. A weight of 128 is below zero.
        const __m512i weights = _mm512_xor_si512(codes.v, _mm512_set1_epi8(static_cast<char>(0x80)));
        const __m512i with_sign =
            _mm512_mask_sub_epi8(activations, _mm512_movepi8_mask(weights), _mm512_setzero_si512(), activations);
        products = _mm512_maddubs_epi16(_mm512_abs_epi8(weights), with_sign);
      } else {
        products = _mm512_maddubs_epi16(codes.v, activations);
      }
      if constexpr (kIndex % kVectorsPer16Bits == 0) {
        if constexpr (kIndex > 0) widen<kIndex == kVectorsPer16Bits>();
        shorts = products;
      } else {
        shorts = _mm512_add_epi16(shorts, products);
      }
    }
    template <int kCount>
    Vec finish() {
      widen<kCount <= kVectorsPer16Bits>();
      return {_mm512_cvtepi32_ps(sum)};
    }

   private:
    template <bool kIsFirst>
    void widen() {
      if constexpr (kIsFirst) sum = _mm512_set1_epi32(bias);
      sum = _mm512_add_epi32(sum, _mm512_madd_epi16(shorts, _mm512_set1_epi16(1)));
    }
  };
#endif

  // The reductions of Lanes::sum_of_each and largest_of_each for rows that are made where they are needed: sixteen
  // finished ones would not stay in registers.
  template <int kCount, typename MakeRow, typename Join>
  [[gnu::always_inline]] static void join_16(MakeRow make_row, Join join, Vec (&out)[kCount]) {
    const auto shuffle_four = [&](const Vec& a, const Vec& b) __attribute__((always_inline)) {
      return join(Vec{_mm512_shuffle_f32x4(a.v, b.v, 0x44)}, Vec{_mm512_shuffle_f32x4(a.v, b.v, 0xee)});
    };
    const auto shuffle_two = [&](const Vec& a, const Vec& b) __attribute__((always_inline)) {
      return join(Vec{_mm512_shuffle_ps(a.v, b.v, 0x44)}, Vec{_mm512_shuffle_ps(a.v, b.v, 0xee)});
    };
    Vec ends[4][kCount];  // quarter q of number c: four lanes of row 4 q + c
    for (int c = 0; c < 4; ++c) {
      Vec rows[4][kCount];
      for (int q = 0; q < 4; ++q) make_row(c + 4 * q, rows[q]);
      for (int n = 0; n < kCount; ++n) {
        const Vec low = shuffle_four(rows[0][n], rows[1][n]);
        const Vec high = shuffle_four(rows[2][n], rows[3][n]);
        ends[c][n] =
            join(Vec{_mm512_shuffle_f32x4(low.v, high.v, 0x88)}, Vec{_mm512_shuffle_f32x4(low.v, high.v, 0xdd)});
      }
    }
    for (int n = 0; n < kCount; ++n) {
      const Vec even = shuffle_two(ends[0][n], ends[1][n]);
      const Vec odd = shuffle_two(ends[2][n], ends[3][n]);
      out[n] = join(Vec{_mm512_shuffle_ps(even.v, odd.v, 0x88)}, Vec{_mm512_shuffle_ps(even.v, odd.v, 0xdd)});
    }
  }
  static void store_low_bytes(int8_t* p, const Vec& a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_castps_si512(a.v)));
  }
};

}  // namespace
}  // namespace quire::cpu

// Sixteen float lanes as two AVX2 registers. What each member computes is written in lanes_scalar.h. Included by one
// file only, which is compiled for AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "ops/cpu/lanes_x86_halves.h"

namespace quire::cpu {
namespace {

struct Avx2Lanes {
  struct Vec {
    __m256 low;   // lanes 0..7
    __m256 high;  // lanes 8..15
  };
  static constexpr int kTileRows = 6;
  // 16 registers: rows * panels accumulators of two registers, and room for a panel and a broadcast.
  static constexpr int panels_for_rows(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }

  static __m256i iota() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
  // All ones in lanes begin <= i < end of a register.
  static __m256i lane_mask(int begin, int end) {
    const __m256i not_before = _mm256_cmpgt_epi32(iota(), _mm256_set1_epi32(begin - 1));
    return _mm256_and_si256(not_before, _mm256_cmpgt_epi32(_mm256_set1_epi32(end), iota()));
  }

  static Vec set(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  static Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static Vec load(const float* p, int count) {
    return {_mm256_maskload_ps(p, lane_mask(0, count)), _mm256_maskload_ps(p + 8, lane_mask(0, count - 8))};
  }
  static void store(float* p, const Vec& v) {
    _mm256_storeu_ps(p, v.low);
    _mm256_storeu_ps(p + 8, v.high);
  }
  static void store(float* p, const Vec& v, int count) {
    _mm256_maskstore_ps(p, lane_mask(0, count), v.low);
    _mm256_maskstore_ps(p + 8, lane_mask(0, count - 8), v.high);
  }
  static __m128i load_8_halves(const uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  static Vec load_f16(const uint16_t* p) {
    return {_mm256_cvtph_ps(load_8_halves(p)), _mm256_cvtph_ps(load_8_halves(p + 8))};
  }
  static __m256 from_bf16(__m128i v) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16)); }
  static Vec load_bf16(const uint16_t* p) { return {from_bf16(load_8_halves(p)), from_bf16(load_8_halves(p + 8))}; }
  static void store_f16(uint16_t* p, const Vec& v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v.low, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(v.high, _MM_FROUND_TO_NEAREST_INT));
  }
  // Each 32-bit result has the bfloat16 in its lower half and zeros above.
  static __m256i to_bf16(__m256 v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i upper = _mm256_srli_epi32(bits, 16);
    const __m256i tie = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), tie), 16);
    const __m256i quiet_nan = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(rounded, quiet_nan, is_nan);
  }
  static void store_bf16(uint16_t* p, const Vec& v) {
    const __m256i packed = _mm256_packus_epi32(to_bf16(v.low), to_bf16(v.high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
  }
  static __m256 round_to_bf16(__m256 v) {
    const __m256i exponent = _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7f800000));
    const __m256 is_subnormal = _mm256_castsi256_ps(_mm256_cmpeq_epi32(exponent, _mm256_setzero_si256()));
    const __m256 flushed = _mm256_blendv_ps(v, _mm256_and_ps(v, _mm256_set1_ps(-0.0f)), is_subnormal);
    return _mm256_castsi256_ps(_mm256_slli_epi32(to_bf16(flushed), 16));
  }
  static Vec round_to_bf16(const Vec& v) { return {round_to_bf16(v.low), round_to_bf16(v.high)}; }
  using Halves = X86Halves;
  static void load_transposed(const uint16_t* const (&rows)[16], int64_t offset, Halves (&out)[16]) {
    load_transposed_halves(rows, offset, out);
  }
  static Vec from_f16(const Halves& h) {
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(h.v)), _mm256_cvtph_ps(_mm256_extracti128_si256(h.v, 1))};
  }
  static Vec from_bf16(const Halves& h) {
    return {from_bf16(_mm256_castsi256_si128(h.v)), from_bf16(_mm256_extracti128_si256(h.v, 1))};
  }
  static Vec load_doubled(const float* p) {
    const __m256 v = _mm256_loadu_ps(p);
    return {_mm256_permutevar8x32_ps(v, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
            _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7))};
  }

  static Vec add(const Vec& a, const Vec& b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
  static Vec sub(const Vec& a, const Vec& b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
  static Vec mul(const Vec& a, const Vec& b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
  static Vec div(const Vec& a, const Vec& b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
  static Vec fma(const Vec& a, const Vec& b, const Vec& c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  static Vec max(const Vec& a, const Vec& b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
  static Vec min(const Vec& a, const Vec& b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
  static Vec swap_pairs(const Vec& v) { return {_mm256_permute_ps(v.low, 0xb1), _mm256_permute_ps(v.high, 0xb1)}; }
  static Vec negate_even(const Vec& v) {
    const __m256 signs = _mm256_castsi256_ps(_mm256_set1_epi64x(int64_t{0x80000000}));
    return {_mm256_xor_ps(v.low, signs), _mm256_xor_ps(v.high, signs)};
  }
  static Vec abs(const Vec& v) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, v.low), _mm256_andnot_ps(sign, v.high)};
  }
  static Vec copy_sign(const Vec& magnitude, const Vec& sign_of) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_or_ps(_mm256_andnot_ps(sign, magnitude.low), _mm256_and_ps(sign, sign_of.low)),
            _mm256_or_ps(_mm256_andnot_ps(sign, magnitude.high), _mm256_and_ps(sign, sign_of.high))};
  }
  static Vec select_less(const Vec& a, const Vec& b, const Vec& x, const Vec& y) {
    return {_mm256_blendv_ps(y.low, x.low, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
            _mm256_blendv_ps(y.high, x.high, _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))};
  }
  static Vec keep_lanes(const Vec& v, int begin, int end, float fill) {
    const __m256 other = _mm256_set1_ps(fill);
    return {_mm256_blendv_ps(other, v.low, _mm256_castsi256_ps(lane_mask(begin, end))),
            _mm256_blendv_ps(other, v.high, _mm256_castsi256_ps(lane_mask(begin - 8, end - 8)))};
  }
  static __m256 power_of_two(__m256 v) {
    const __m256i exponents = _mm256_slli_epi32(_mm256_castps_si256(v), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(exponents, _mm256_set1_epi32(0x3f800000)));
  }
  static __m256 add_to_exponent(__m256 v, __m256 powers) {
    const __m256i exponents = _mm256_slli_epi32(_mm256_castps_si256(powers), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v), exponents));
  }
  static Vec add_to_exponent(const Vec& v, const Vec& powers) {
    return {add_to_exponent(v.low, powers.low), add_to_exponent(v.high, powers.high)};
  }
  static Vec power_of_two(const Vec& v) { return {power_of_two(v.low), power_of_two(v.high)}; }

  static float sum(const Vec& v) {
    const __m256 eight = _mm256_add_ps(v.low, v.high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static float largest(const Vec& v) {
    const __m256 eight = _mm256_max_ps(v.low, v.high);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
  static Vec sum_of_each(const Vec (&rows)[16]) {
    float sums[16];
    for (int r = 0; r < 16; ++r) sums[r] = sum(rows[r]);
    return load(sums);
  }
  static Vec largest_of_each(const Vec (&rows)[16]) {
    float all[16];
    for (int r = 0; r < 16; ++r) all[r] = largest(rows[r]);
    return load(all);
  }

  // One 8 x 8 corner: rows r..r+7 of registers, to columns of `out` 16 apart.
  [[gnu::always_inline]] static void transpose_8x8(const __m256 (&r)[8], float* out, int count) {
    __m256 a[8];
    __m256 b[8];
    for (int i = 0; i < 8; i += 2) {
      a[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
      a[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
      b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
      b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
      b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
      if (i < count) _mm256_storeu_ps(out + i * 16, _mm256_permute2f128_ps(b[i], b[i + 4], 0x20));
      if (i + 4 < count) _mm256_storeu_ps(out + (i + 4) * 16, _mm256_permute2f128_ps(b[i], b[i + 4], 0x31));
    }
  }
  [[gnu::always_inline]] static void store_transposed(const Vec (&rows)[16], float* out, int count) {
    for (int half = 0; half < 2; ++half) {
      __m256 r[8];
      for (int i = 0; i < 8; ++i) r[i] = rows[8 * half + i].low;
      transpose_8x8(r, out + 8 * half, count);
      if (count <= 8) continue;
      for (int i = 0; i < 8; ++i) r[i] = rows[8 * half + i].high;
      transpose_8x8(r, out + 8 * 16 + 8 * half, count - 8);
    }
  }
  // Inlined at once: a function that does nothing else has no effect for gcc, which drops calls of it.
  [[gnu::always_inline]] static void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
};

}  // namespace
}  // namespace quire::cpu

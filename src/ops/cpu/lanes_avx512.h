// Sixteen float lanes as one AVX-512 register. What each member computes is written in lanes_scalar.h. Included by one
// file only, which is compiled for AVX-512 F, BW, VL and DQ.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "ops/cpu/lanes_x86_halves.h"

namespace quire::cpu {
namespace {

struct Avx512Lanes {
  struct Vec {
    __m512 v;
  };
  static constexpr int kTileRows = 12;
  // 32 registers: rows * panels accumulators, and room for the panels and a broadcast; at least 8 accumulators, so that
  // four cycles of latency on two units are covered.
  static constexpr int panels_for_rows(int rows) { return rows <= 2 ? 8 : rows <= 5 ? 4 : 2; }

  // Bits begin <= i < end.
  static __mmask16 lane_mask(int begin, int end) {
    const int first = begin < 0 ? 0 : begin > 16 ? 16 : begin;
    const int last = end < 0 ? 0 : end > 16 ? 16 : end;
    return static_cast<__mmask16>(((1u << last) - 1u) & ~((1u << first) - 1u));
  }

  static Vec set(float value) { return {_mm512_set1_ps(value)}; }
  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Vec load(const float* p, int count) { return {_mm512_maskz_loadu_ps(lane_mask(0, count), p)}; }
  static void store(float* p, const Vec& a) { _mm512_storeu_ps(p, a.v); }
  static void store(float* p, const Vec& a, int count) { _mm512_mask_storeu_ps(p, lane_mask(0, count), a.v); }
  static __m256i load_16_halves(const uint16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static Vec load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(load_16_halves(p))}; }
  static Vec load_bf16(const uint16_t* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_16_halves(p)), 16))};
  }
  static void store_f16(uint16_t* p, const Vec& a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
  }
  // Each 32-bit result has the bfloat16 in its lower half. Not the instruction of AVX512_BF16: that flushes subnormals.
  static __m512i to_bf16(const Vec& a) {
    const __m512i bits = _mm512_castps_si512(a.v);
    const __m512i upper = _mm512_srli_epi32(bits, 16);
    const __m512i tie = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), tie), 16);
    const __m512i quiet_nan = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    return _mm512_mask_blend_epi32(is_nan, rounded, quiet_nan);
  }
  static void store_bf16(uint16_t* p, const Vec& a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(to_bf16(a)));
  }
  static Vec round_to_bf16(const Vec& a) {
    const __mmask16 is_normal = _mm512_test_epi32_mask(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x7f800000));
    const __m512 signs = _mm512_and_ps(a.v, _mm512_set1_ps(-0.0f));
    const Vec flushed{_mm512_mask_blend_ps(is_normal, signs, a.v)};
    return {_mm512_castsi512_ps(_mm512_slli_epi32(to_bf16(flushed), 16))};
  }
  using Halves = X86Halves;
  static void load_transposed(const uint16_t* const (&rows)[16], int64_t offset, Halves (&out)[16]) {
    load_transposed_halves(rows, offset, out);
  }
  static Vec from_f16(const Halves& h) { return {_mm512_cvtph_ps(h.v)}; }
  static Vec from_bf16(const Halves& h) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h.v), 16))};
  }
  static Vec load_doubled(const float* p) {
    const __m512i indices = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return {_mm512_permutexvar_ps(indices, _mm512_castps256_ps512(_mm256_loadu_ps(p)))};
  }

  static Vec add(const Vec& a, const Vec& b) { return {_mm512_add_ps(a.v, b.v)}; }
  static Vec sub(const Vec& a, const Vec& b) { return {_mm512_sub_ps(a.v, b.v)}; }
  static Vec mul(const Vec& a, const Vec& b) { return {_mm512_mul_ps(a.v, b.v)}; }
  static Vec div(const Vec& a, const Vec& b) { return {_mm512_div_ps(a.v, b.v)}; }
  static Vec fma(const Vec& a, const Vec& b, const Vec& c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static Vec max(const Vec& a, const Vec& b) { return {_mm512_max_ps(a.v, b.v)}; }
  static Vec min(const Vec& a, const Vec& b) { return {_mm512_min_ps(a.v, b.v)}; }
  static Vec swap_pairs(const Vec& a) { return {_mm512_permute_ps(a.v, 0xb1)}; }
  static Vec negate_even(const Vec& a) {
    return {_mm512_xor_ps(a.v, _mm512_castsi512_ps(_mm512_set1_epi64(int64_t{0x80000000})))};
  }
  static Vec abs(const Vec& a) { return {_mm512_abs_ps(a.v)}; }
  static Vec copy_sign(const Vec& magnitude, const Vec& sign_of) {
    const __m512 sign = _mm512_set1_ps(-0.0f);
    return {_mm512_or_ps(_mm512_andnot_ps(sign, magnitude.v), _mm512_and_ps(sign, sign_of.v))};
  }
  static Vec select_less(const Vec& a, const Vec& b, const Vec& x, const Vec& y) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
  }
  static Vec keep_lanes(const Vec& a, int begin, int end, float fill) {
    return {_mm512_mask_blend_ps(lane_mask(begin, end), _mm512_set1_ps(fill), a.v)};
  }
  static Vec power_of_two(const Vec& a) {
    const __m512i exponents = _mm512_slli_epi32(_mm512_castps_si512(a.v), 23);
    return {_mm512_castsi512_ps(_mm512_add_epi32(exponents, _mm512_set1_epi32(0x3f800000)))};
  }
  static Vec add_to_exponent(const Vec& a, const Vec& powers) {
    const __m512i exponents = _mm512_slli_epi32(_mm512_castps_si512(powers.v), 23);
    return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a.v), exponents))};
  }

  static __m256 low_half(const Vec& a) { return _mm512_castps512_ps256(a.v); }
  static __m256 high_half(const Vec& a) { return _mm512_extractf32x8_ps(a.v, 1); }
  static float sum(const Vec& a) {
    const __m256 eight = _mm256_add_ps(low_half(a), high_half(a));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static float largest(const Vec& a) {
    const __m256 eight = _mm256_max_ps(low_half(a), high_half(a));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }

  // Lane r: sum(rows[r]), or largest(rows[r]).
  static Vec sum_of_each(const Vec (&rows)[16]) {
    return join_each(rows, [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); });
  }
  static Vec largest_of_each(const Vec (&rows)[16]) {
    return join_each(rows, [](__m512 a, __m512 b) { return _mm512_max_ps(a, b); });
  }
  // Lanes 8, 4, 2 and 1 apart are joined, of twice as many rows to a register each time.
  template <typename Join>
  [[gnu::always_inline]] static Vec join_each(const Vec (&rows)[16], Join join) {
    __m512 ends[4];  // quarter q of number c: four lanes of row 4 q + c
    for (int c = 0; c < 4; ++c) {
      const auto two_rows = [&](int row) __attribute__((always_inline)) {
        const __m512 a = rows[row].v;
        const __m512 b = rows[row + 4].v;
        return join(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
      };
      const __m512 low = two_rows(c);
      const __m512 high = two_rows(c + 8);
      ends[c] = join(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd));
    }
    const auto two_ends = [&](__m512 a, __m512 b) __attribute__((always_inline)) {
      return join(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
    };
    const __m512 even = two_ends(ends[0], ends[1]);
    const __m512 odd = two_ends(ends[2], ends[3]);
    return {join(_mm512_shuffle_ps(even, odd, 0x88), _mm512_shuffle_ps(even, odd, 0xdd))};
  }

  // out[k] holds lane k of each row.
  [[gnu::always_inline]] static void transpose(const Vec (&rows)[16], Vec (&out)[16]) {
    __m512 a[16];
    __m512 b[16];
    // Within every 128-bit quarter: 4 x 4 transposes of four rows each.
    for (int i = 0; i < 16; i += 2) {
      a[i] = _mm512_unpacklo_ps(rows[i].v, rows[i + 1].v);
      a[i + 1] = _mm512_unpackhi_ps(rows[i].v, rows[i + 1].v);
    }
    for (int i = 0; i < 16; i += 4) {
      b[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
      b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
      b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
      b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    // b[4 g + c], quarter q, holds column 4 q + c of rows 4 g .. 4 g + 3: gather the four g of each column.
    for (int c = 0; c < 4; ++c) {
      const __m512 even_low = _mm512_shuffle_f32x4(b[c], b[4 + c], 0x88);  // quarters 0 and 2 of rows 0..7
      const __m512 odd_low = _mm512_shuffle_f32x4(b[c], b[4 + c], 0xdd);   // quarters 1 and 3
      const __m512 even_high = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0x88);
      const __m512 odd_high = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0xdd);
      out[c] = {_mm512_shuffle_f32x4(even_low, even_high, 0x88)};
      out[4 + c] = {_mm512_shuffle_f32x4(odd_low, odd_high, 0x88)};
      out[8 + c] = {_mm512_shuffle_f32x4(even_low, even_high, 0xdd)};
      out[12 + c] = {_mm512_shuffle_f32x4(odd_low, odd_high, 0xdd)};
    }
  }
  [[gnu::always_inline]] static void store_transposed(const Vec (&rows)[16], float* out, int count) {
    Vec columns[16];
    transpose(rows, columns);
    for (int k = 0; k < 16; ++k) {
      if (k < count) store(out + k * 16, columns[k]);
    }
  }
  // Inlined at once: a function that does nothing else has no effect for gcc, which drops calls of it.
  [[gnu::always_inline]] static void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
};

}  // namespace
}  // namespace quire::cpu

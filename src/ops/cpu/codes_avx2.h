// Sixty-four weight codes as two AVX2 registers. What each member computes is written in codes_scalar.h. Included by
// files that are compiled for AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "ops/cpu/lanes_avx2.h"

namespace quire::cpu {
namespace {

struct Avx2Codes {
  using Lanes = Avx2Lanes;
  using Vec = Avx2Lanes::Vec;
  struct Bytes {
    __m256i low;   // outputs 0..7
    __m256i high;  // outputs 8..15
  };

  static __m256i load_32(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static Bytes load(const uint8_t* p) { return {load_32(p), load_32(p + 32)}; }
  static void store(uint8_t* p, const Bytes& v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v.low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), v.high);
  }
  static Bytes bit_or(const Bytes& a, const Bytes& b) {
    return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)};
  }
  template <int kShift, int kMask>
  static __m256i shift_and_mask(__m256i v) {
    const __m256i shifted = kShift > 0   ? _mm256_srli_epi16(v, kShift > 0 ? kShift : 0)
                            : kShift < 0 ? _mm256_slli_epi16(v, kShift < 0 ? -kShift : 0)
                                         : v;
    return _mm256_and_si256(shifted, _mm256_set1_epi8(kMask));
  }
  template <int kShift, int kMask>
  static Bytes shift_and_mask(const Bytes& v) {
    return {shift_and_mask<kShift, kMask>(v.low), shift_and_mask<kShift, kMask>(v.high)};
  }
  static Bytes lookup(const uint8_t (&table)[16], const Bytes& indices) {
    const __m256i entries = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
    return {_mm256_shuffle_epi8(entries, indices.low), _mm256_shuffle_epi8(entries, indices.high)};
  }
  template <int kByte>
  static __m256 to_float(__m256i v, int offset) {
    __m256i byte = _mm256_srli_epi32(v, 8 * kByte);
    if (kByte != 3) byte = _mm256_and_si256(byte, _mm256_set1_epi32(255));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(byte, _mm256_set1_epi32(offset)));
  }
  template <int kByte>
  static Vec to_float(const Bytes& v, int offset) {
    return {to_float<kByte>(v.low, offset), to_float<kByte>(v.high, offset)};
  }
  static __m256 first_of_pairs(const __m256i& pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
  static __m256 second_of_pairs(const __m256i& pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u))));
  }
  static void load_bf16_pairs(const uint16_t* p, Vec& first, Vec& second) {
    const __m256i low = load_32(p);
    const __m256i high = load_32(p + 16);
    first = {first_of_pairs(low), first_of_pairs(high)};
    second = {second_of_pairs(low), second_of_pairs(high)};
  }
  static __m128i load_8(const uint8_t* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }
  static Vec load_u8(const uint8_t* p) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_8(p))),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_8(p + 8)))};
  }
  static Vec load_i8(const uint8_t* p) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_8(p))),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_8(p + 8)))};
  }
  static __m256 low_nibbles(__m128i v) {
    return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_cvtepu8_epi32(v), _mm256_set1_epi32(15)));
  }
  static __m256 high_nibbles(__m128i v) { return _mm256_cvtepi32_ps(_mm256_srli_epi32(_mm256_cvtepu8_epi32(v), 4)); }
  static Vec load_low_nibbles(const uint8_t* p) { return {low_nibbles(load_8(p)), low_nibbles(load_8(p + 8))}; }
  static Vec load_high_nibbles(const uint8_t* p) { return {high_nibbles(load_8(p)), high_nibbles(load_8(p + 8))}; }

  static constexpr int code_class(int max_code) { return max_code <= 15 ? 15 : max_code; }

  // Products of bytes are summed in pairs to 16 bits, then over as many vectors as cannot overflow, then to 32 bits.
  template <int kMaxCode>
  struct Dot {
    // 2 * 127 * kMaxCode * kVectorsPer16Bits <= 32767
    static constexpr int kVectorsPer16Bits = kMaxCode <= 15 ? 8 : kMaxCode <= 31 ? 4 : kMaxCode <= 63 ? 2 : 1;
    __m256i short_low;
    __m256i short_high;
    __m256i sum_low;
    __m256i sum_high;
    int32_t bias;  // joins the sums when they begin: until then it needs no register

    // 8-bit codes are made signed below, so their offset is gone already.
    explicit Dot(int32_t group_bias) : bias(kMaxCode == 255 ? 0 : group_bias) {}
    template <int kIndex>
    void add(const Bytes& codes, const int8_t* x) {
      int32_t four;
      std::memcpy(&four, x, sizeof(four));
      const __m256i activations = _mm256_set1_epi32(four);
      __m256i low;
      __m256i high;
      if constexpr (kMaxCode == 255) {
        low = multiply_signed(codes.low, activations);
        high = multiply_signed(codes.high, activations);
      } else {
        low = _mm256_maddubs_epi16(codes.low, activations);
        high = _mm256_maddubs_epi16(codes.high, activations);
      }
      if constexpr (kIndex % kVectorsPer16Bits == 0) {
        if constexpr (kIndex > 0) widen<kIndex == kVectorsPer16Bits>();
        short_low = low;
        short_high = high;
      } else {
        short_low = _mm256_add_epi16(short_low, low);
        short_high = _mm256_add_epi16(short_high, high);
      }
    }
    template <int kCount>
    Vec finish() {
      widen<kCount <= kVectorsPer16Bits>();
      return {_mm256_cvtepi32_ps(sum_low), _mm256_cvtepi32_ps(sum_high)};
    }

   private:
    // |w| * (x with the sign of w): 128 * 127 * 2 fits 16 bits.
    static __m256i multiply_signed(__m256i codes, __m256i activations) {
      const __m256i weights = _mm256_xor_si256(codes, _mm256_set1_epi8(static_cast<char>(0x80)));
      return _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(activations, weights));
    }
    template <bool kIsFirst>
    void widen() {
      const __m256i ones = _mm256_set1_epi16(1);
      if constexpr (kIsFirst) sum_low = sum_high = _mm256_set1_epi32(bias);
      sum_low = _mm256_add_epi32(sum_low, _mm256_madd_epi16(short_low, ones));
      sum_high = _mm256_add_epi32(sum_high, _mm256_madd_epi16(short_high, ones));
    }
  };

  static void store_low_bytes(int8_t* p, const Vec& a) {
    const __m256i first = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                           0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m256i low = _mm256_shuffle_epi8(_mm256_castps_si256(a.low), first);
    const __m256i high = _mm256_shuffle_epi8(_mm256_castps_si256(a.high), first);
    // Four bytes at the beginning of each half of a register.
    const __m256i eights = _mm256_unpacklo_epi32(low, high);  // 0..3, 8..11 | 4..7, 12..15
    const __m128i ordered = _mm_unpacklo_epi32(_mm256_castsi256_si128(eights), _mm256_extracti128_si256(eights, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), ordered);
  }
};

}  // namespace
}  // namespace quire::cpu

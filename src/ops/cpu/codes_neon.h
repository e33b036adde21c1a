// Sixty-four weight codes as four NEON registers, multiplied by sdot where the file is compiled for it, else by
// widening products. What each member computes is written in codes_scalar.h. Included by files that are compiled for
// 64-bit ARM.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "ops/cpu/lanes_neon.h"

namespace quire::cpu {
namespace {

struct NeonCodes {
  using Lanes = NeonLanes;
  using Vec = NeonLanes::Vec;
  struct Bytes {
    uint8x16_t q[4];  // outputs 4 j .. 4 j + 3, four codes each
  };

  template <typename F>
  static Bytes make(F&& f) {
    return {{f(0), f(1), f(2), f(3)}};
  }
  static Bytes load(const uint8_t* p) {
    return make([&](int j) { return vld1q_u8(p + 16 * j); });
  }
  static void store(uint8_t* p, const Bytes& v) {
    for (int j = 0; j < 4; ++j) vst1q_u8(p + 16 * j, v.q[j]);
  }
  static Bytes bit_or(const Bytes& a, const Bytes& b) {
    return make([&](int j) { return vorrq_u8(a.q[j], b.q[j]); });
  }
  template <int kShift, int kMask>
  static Bytes shift_and_mask(const Bytes& v) {
    return make([&](int j) {
      uint8x16_t shifted = v.q[j];
      if constexpr (kShift > 0) shifted = vshrq_n_u8(shifted, kShift);
      if constexpr (kShift < 0) shifted = vshlq_n_u8(shifted, -kShift);
      return vandq_u8(shifted, vdupq_n_u8(kMask));
    });
  }
  static Bytes lookup(const uint8_t (&table)[16], const Bytes& indices) {
    const uint8x16_t entries = vld1q_u8(table);
    return make([&](int j) { return vqtbl1q_u8(entries, indices.q[j]); });
  }
  static float32x4_t less_offset(uint32x4_t v, int offset) {
    return vcvtq_f32_s32(vsubq_s32(vreinterpretq_s32_u32(v), vdupq_n_s32(offset)));
  }
  template <int kByte>
  static Vec to_float(const Bytes& v, int offset) {
    return Lanes::make([&](int j) {
      uint32x4_t byte = vreinterpretq_u32_u8(v.q[j]);
      if constexpr (kByte > 0) byte = vshrq_n_u32(byte, 8 * kByte);
      return less_offset(vandq_u32(byte, vdupq_n_u32(255)), offset);
    });
  }
  static Vec widen(uint8x16_t v) {
    const uint16x8_t low = vmovl_u8(vget_low_u8(v));
    const uint16x8_t high = vmovl_u8(vget_high_u8(v));
    return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(low))),
            vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(high)))};
  }
  static void load_bf16_pairs(const uint16_t* p, Vec& first, Vec& second) {
    for (int j = 0; j < 4; ++j) {
      const uint32x4_t pairs = vreinterpretq_u32_u16(vld1q_u16(p + 8 * j));
      first.q[j] = vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16));
      second.q[j] = vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000u)));
    }
  }
  static Vec load_u8(const uint8_t* p) { return widen(vld1q_u8(p)); }
  static Vec load_i8(const uint8_t* p) {
    const int8x16_t v = vreinterpretq_s8_u8(vld1q_u8(p));
    const int16x8_t low = vmovl_s8(vget_low_s8(v));
    const int16x8_t high = vmovl_s8(vget_high_s8(v));
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))};
  }
  static Vec load_low_nibbles(const uint8_t* p) { return widen(vandq_u8(vld1q_u8(p), vdupq_n_u8(15))); }
  static Vec load_high_nibbles(const uint8_t* p) { return widen(vshrq_n_u8(vld1q_u8(p), 4)); }

  // Codes of up to seven bits are signed bytes as they are.
  static constexpr int code_class(int max_code) { return max_code <= 127 ? 127 : 255; }

  template <int kMaxCode>
  struct Dot {
    int32x4_t sum[4];

    // 8-bit codes are made signed below, so their offset is gone already.
    explicit Dot(int32_t bias) {
      for (int32x4_t& lanes : sum) lanes = vdupq_n_s32(kMaxCode == 255 ? 0 : bias);
    }
    template <int kIndex>
    void add(const Bytes& codes, const int8_t* x) {
      int32_t four;
      std::memcpy(&four, x, sizeof(four));
      const int8x16_t activations = vreinterpretq_s8_s32(vdupq_n_s32(four));
      for (int j = 0; j < 4; ++j) {
        uint8x16_t code = codes.q[j];
        if constexpr (kMaxCode == 255) code = veorq_u8(code, vdupq_n_u8(0x80));
        sum[j] = dot(sum[j], vreinterpretq_s8_u8(code), activations);
      }
    }
    template <int kCount>
    Vec finish() const {
      return Lanes::make([&](int j) { return vcvtq_f32_s32(sum[j]); });
    }

   private:
    static int32x4_t dot(int32x4_t start, int8x16_t a, int8x16_t b) {
#if defined(__ARM_FEATURE_DOTPROD)
      return vdotq_s32(start, a, b);
#else
      const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
      const int32x4_t high = vpaddlq_s16(vmull_high_s8(a, b));
      return vaddq_s32(start, vpaddq_s32(low, high));
#endif
    }
  };

  static void store_low_bytes(int8_t* p, const Vec& a) {
    uint16x4_t words[4];
    for (int j = 0; j < 4; ++j) words[j] = vmovn_u32(vreinterpretq_u32_f32(a.q[j]));
    const uint8x8_t low = vmovn_u16(vcombine_u16(words[0], words[1]));
    const uint8x8_t high = vmovn_u16(vcombine_u16(words[2], words[3]));
    vst1q_s8(p, vreinterpretq_s8_u8(vcombine_u8(low, high)));
  }
};

}  // namespace
}  // namespace quire::cpu

// Sixteen float lanes as four NEON registers. What each member computes is written in lanes_scalar.h. Included by files
// that are compiled for 64-bit ARM.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace quire::cpu {
namespace {

struct NeonLanes {
  struct Vec {
    float32x4_t q[4];  // lanes 4 j .. 4 j + 3
  };
  static constexpr int kTileRows = 4;
  // 32 registers: rows * panels accumulators of four registers, and room for a panel and a broadcast.
  static constexpr int panels_for_rows(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }

  template <typename F>
  static Vec make(F&& f) {
    return {f(0), f(1), f(2), f(3)};
  }
  static int32x4_t lane_indices(int j) {
    const int32_t indices[4] = {4 * j, 4 * j + 1, 4 * j + 2, 4 * j + 3};
    return vld1q_s32(indices);
  }

  static Vec set(float value) {
    return make([&](int) { return vdupq_n_f32(value); });
  }
  static Vec load(const float* p) {
    return make([&](int j) { return vld1q_f32(p + 4 * j); });
  }
  static Vec load(const float* p, int count) {
    float lanes[16] = {};
    if (count > 0) std::memcpy(lanes, p, static_cast<size_t>(count < 16 ? count : 16) * sizeof(float));
    return load(lanes);
  }
  static void store(float* p, const Vec& v) {
    for (int j = 0; j < 4; ++j) vst1q_f32(p + 4 * j, v.q[j]);
  }
  static void store(float* p, const Vec& v, int count) {
    float lanes[16];
    store(lanes, v);
    if (count > 0) std::memcpy(p, lanes, static_cast<size_t>(count < 16 ? count : 16) * sizeof(float));
  }
  static Vec load_f16(const uint16_t* p) {
    return make([&](int j) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * j))); });
  }
  static Vec load_bf16(const uint16_t* p) {
    return make([&](int j) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * j), 16)); });
  }
  static void store_f16(uint16_t* p, const Vec& v) {
    for (int j = 0; j < 4; ++j) vst1_u16(p + 4 * j, vreinterpret_u16_f16(vcvt_f16_f32(v.q[j])));
  }
  // Each 32-bit result has the bfloat16 in its lower half and zeros above.
  static uint32x4_t to_bf16(float32x4_t v) {
    const uint32x4_t bits = vreinterpretq_u32_f32(v);
    const uint32x4_t upper = vshrq_n_u32(bits, 16);
    const uint32x4_t tie = vandq_u32(upper, vdupq_n_u32(1));
    const uint32x4_t rounded = vshrq_n_u32(vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), tie), 16);
    const uint32x4_t quiet_nan = vorrq_u32(upper, vdupq_n_u32(0x40));
    return vbslq_u32(vceqq_f32(v, v), rounded, quiet_nan);
  }
  static void store_bf16(uint16_t* p, const Vec& v) {
    for (int j = 0; j < 4; ++j) vst1_u16(p + 4 * j, vmovn_u32(to_bf16(v.q[j])));
  }
  static Vec round_to_bf16(const Vec& v) {
    return make([&](int j) {
      const uint32x4_t bits = vreinterpretq_u32_f32(v.q[j]);
      const uint32x4_t is_normal = vtstq_u32(bits, vdupq_n_u32(0x7f800000u));
      const uint32x4_t flushed = vandq_u32(bits, vorrq_u32(is_normal, vdupq_n_u32(0x80000000u)));
      return vreinterpretq_f32_u32(vshlq_n_u32(to_bf16(vreinterpretq_f32_u32(flushed)), 16));
    });
  }
  struct Halves {
    uint16x8_t q[2];
  };
  static void load_transposed(const uint16_t* const (&rows)[16], int64_t offset, Halves (&out)[16]) {
    for (int k = 0; k < 16; ++k) {
      uint16_t column[16];
      for (int i = 0; i < 16; ++i) column[i] = rows[i][offset + k];
      out[k] = {{vld1q_u16(column), vld1q_u16(column + 8)}};
    }
  }
  static uint16x4_t quarter(const Halves& h, int j) {
    return j % 2 == 0 ? vget_low_u16(h.q[j / 2]) : vget_high_u16(h.q[j / 2]);
  }
  static Vec from_f16(const Halves& h) {
    return make([&](int j) { return vcvt_f32_f16(vreinterpret_f16_u16(quarter(h, j))); });
  }
  static Vec from_bf16(const Halves& h) {
    return make([&](int j) { return vreinterpretq_f32_u32(vshll_n_u16(quarter(h, j), 16)); });
  }
  static Vec load_doubled(const float* p) {
    const float32x4_t low = vld1q_f32(p);
    const float32x4_t high = vld1q_f32(p + 4);
    return {vzip1q_f32(low, low), vzip2q_f32(low, low), vzip1q_f32(high, high), vzip2q_f32(high, high)};
  }

  static Vec add(const Vec& a, const Vec& b) {
    return make([&](int j) { return vaddq_f32(a.q[j], b.q[j]); });
  }
  static Vec sub(const Vec& a, const Vec& b) {
    return make([&](int j) { return vsubq_f32(a.q[j], b.q[j]); });
  }
  static Vec mul(const Vec& a, const Vec& b) {
    return make([&](int j) { return vmulq_f32(a.q[j], b.q[j]); });
  }
  static Vec div(const Vec& a, const Vec& b) {
    return make([&](int j) { return vdivq_f32(a.q[j], b.q[j]); });
  }
  static Vec fma(const Vec& a, const Vec& b, const Vec& c) {
    return make([&](int j) { return vfmaq_f32(c.q[j], a.q[j], b.q[j]); });
  }
  // Of a NaN and a number the second: not what vmaxq and vminq do.
  static float32x4_t larger(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static Vec max(const Vec& a, const Vec& b) {
    return make([&](int j) { return larger(a.q[j], b.q[j]); });
  }
  static Vec min(const Vec& a, const Vec& b) {
    return make([&](int j) { return vbslq_f32(vcltq_f32(a.q[j], b.q[j]), a.q[j], b.q[j]); });
  }
  static Vec swap_pairs(const Vec& v) {
    return make([&](int j) { return vrev64q_f32(v.q[j]); });
  }
  static Vec negate_even(const Vec& v) {
    const uint32x4_t even_signs = vreinterpretq_u32_u64(vdupq_n_u64(0x80000000u));
    return make([&](int j) { return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(v.q[j]), even_signs)); });
  }
  static Vec abs(const Vec& v) {
    return make([&](int j) { return vabsq_f32(v.q[j]); });
  }
  static Vec copy_sign(const Vec& magnitude, const Vec& sign) {
    return make([&](int j) { return vbslq_f32(vdupq_n_u32(0x80000000u), sign.q[j], magnitude.q[j]); });
  }
  static Vec select_less(const Vec& a, const Vec& b, const Vec& x, const Vec& y) {
    return make([&](int j) { return vbslq_f32(vcltq_f32(a.q[j], b.q[j]), x.q[j], y.q[j]); });
  }
  static Vec keep_lanes(const Vec& v, int begin, int end, float fill) {
    return make([&](int j) {
      const int32x4_t lanes = lane_indices(j);
      const uint32x4_t is_kept = vandq_u32(vcgeq_s32(lanes, vdupq_n_s32(begin)), vcltq_s32(lanes, vdupq_n_s32(end)));
      return vbslq_f32(is_kept, v.q[j], vdupq_n_f32(fill));
    });
  }
  static Vec power_of_two(const Vec& v) {
    return make([&](int j) {
      const uint32x4_t exponent = vshlq_n_u32(vreinterpretq_u32_f32(v.q[j]), 23);
      return vreinterpretq_f32_u32(vaddq_u32(exponent, vdupq_n_u32(0x3f800000u)));
    });
  }
  static Vec add_to_exponent(const Vec& v, const Vec& powers) {
    return make([&](int j) {
      const uint32x4_t exponents = vshlq_n_u32(vreinterpretq_u32_f32(powers.q[j]), 23);
      return vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(v.q[j]), exponents));
    });
  }

  static float sum(const Vec& v) {
    const float32x4_t four = vaddq_f32(vaddq_f32(v.q[0], v.q[2]), vaddq_f32(v.q[1], v.q[3]));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
  }
  static float largest(const Vec& v) {
    const float32x4_t four = larger(larger(v.q[0], v.q[2]), larger(v.q[1], v.q[3]));
    float s[4];
    vst1q_f32(s, four);
    for (int width = 2; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) s[i] = s[i] > s[i + width] ? s[i] : s[i + width];
    }
    return s[0];
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

  static void store_transposed(const Vec (&rows)[16], float* out, int count) {
    float lanes[16][16];
    for (int i = 0; i < 16; ++i) store(lanes[i], rows[i]);
    for (int column = 0; column < count; ++column) {
      for (int i = 0; i < 16; ++i) out[column * 16 + i] = lanes[i][column];
    }
  }
  // Inlined at once: a function that does nothing else has no effect for gcc, which drops calls of it.
  [[gnu::always_inline]] static void prefetch(const void* p) { __builtin_prefetch(p); }
};

}  // namespace
}  // namespace quire::cpu

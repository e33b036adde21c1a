// Sixteen float lanes without any vector instruction: the definition of what a kernel template computes, and the row
// that runs everywhere. lanes_avx2.h and lanes_avx512.h have the same members with the same results, bit for bit: every
// operation is lane-wise and correctly rounded, and reductions follow one fixed tree. Included by one file only, which
// instantiates the kernels.
#pragma once

#include <bit>
#include <cstdint>

#include "tensor/dtype.h"

namespace quire::cpu {
namespace {

struct ScalarLanes {
  struct Vec {
    float lane[16];
  };
  // Rows and panels (16 columns each) of the matrix tile that fits the registers.
  static constexpr int kTileRows = 2;
  static constexpr int panels_for_rows(int) { return 1; }

  template <typename F>
  static Vec make(F&& f) {
    Vec v;
    for (int i = 0; i < 16; ++i) v.lane[i] = f(i);
    return v;
  }

  static Vec set(float value) {
    return make([&](int) { return value; });
  }
  static Vec load(const float* p) {
    return make([&](int i) { return p[i]; });
  }
  static Vec load(const float* p, int count) {  // lanes from `count` on are 0
    return make([&](int i) { return i < count ? p[i] : 0.0f; });
  }
  static void store(float* p, const Vec& v) { store(p, v, 16); }
  static void store(float* p, const Vec& v, int count) {
    for (int i = 0; i < count; ++i) p[i] = v.lane[i];
  }
  // 16-bit floats.
  static Vec load_f16(const uint16_t* p) {
    return make([&](int i) { return f16_to_f32(p[i]); });
  }
  static Vec load_bf16(const uint16_t* p) {
    return make([&](int i) { return bf16_to_f32(p[i]); });
  }
  static void store_f16(uint16_t* p, const Vec& v) {
    for (int i = 0; i < 16; ++i) p[i] = f32_to_f16(v.lane[i]);
  }
  static void store_bf16(uint16_t* p, const Vec& v) {
    for (int i = 0; i < 16; ++i) p[i] = f32_to_bf16(v.lane[i]);
  }
  // The nearest bfloat16, subnormals becoming zeros.
  static Vec round_to_bf16(const Vec& v) {
    return make([&](int i) {
      const uint32_t bits = std::bit_cast<uint32_t>(v.lane[i]);
      const bool is_subnormal = (bits & 0x7f800000u) == 0;
      return bf16_to_f32(f32_to_bf16(is_subnormal ? std::bit_cast<float>(bits & 0x80000000u) : v.lane[i]));
    });
  }
  // Sixteen 16-bit floats as they are. load_transposed: out[k] holds number offset + k of each row.
  struct Halves {
    uint16_t lane[16];
  };
  static void load_transposed(const uint16_t* const (&rows)[16], int64_t offset, Halves (&out)[16]) {
    for (int k = 0; k < 16; ++k) {
      for (int i = 0; i < 16; ++i) out[k].lane[i] = rows[i][offset + k];
    }
  }
  static Vec from_f16(const Halves& h) { return load_f16(h.lane); }
  static Vec from_bf16(const Halves& h) { return load_bf16(h.lane); }
  // 8 numbers, each in two neighbouring lanes.
  static Vec load_doubled(const float* p) {
    return make([&](int i) { return p[i / 2]; });
  }

  static Vec add(const Vec& a, const Vec& b) {
    return make([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static Vec sub(const Vec& a, const Vec& b) {
    return make([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static Vec mul(const Vec& a, const Vec& b) {
    return make([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static Vec div(const Vec& a, const Vec& b) {
    return make([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  static Vec fma(const Vec& a, const Vec& b, const Vec& c) {  // a * b + c, rounded once
    return make([&](int i) { return __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]); });
  }
  // Of a NaN and a number the second argument is taken, as the vector instructions do.
  static Vec max(const Vec& a, const Vec& b) {
    return make([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static Vec min(const Vec& a, const Vec& b) {
    return make([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static Vec swap_pairs(const Vec& v) {
    return make([&](int i) { return v.lane[i ^ 1]; });
  }
  static Vec negate_even(const Vec& v) {
    return make([&](int i) { return i % 2 == 0 ? -v.lane[i] : v.lane[i]; });
  }
  static Vec abs(const Vec& v) {
    return make([&](int i) { return __builtin_fabsf(v.lane[i]); });
  }
  static Vec copy_sign(const Vec& magnitude, const Vec& sign) {
    return make([&](int i) { return __builtin_copysignf(magnitude.lane[i], sign.lane[i]); });
  }
  // where a < b: x, else y.
  static Vec select_less(const Vec& a, const Vec& b, const Vec& x, const Vec& y) {
    return make([&](int i) { return a.lane[i] < b.lane[i] ? x.lane[i] : y.lane[i]; });
  }
  // Lanes begin <= i < end of v, the others `fill`. The bounds may lie outside [0, 16].
  static Vec keep_lanes(const Vec& v, int begin, int end, float fill) {
    return make([&](int i) { return begin <= i && i < end ? v.lane[i] : fill; });
  }
  // 2^n, where v = n + 1.5 * 2^23 and -126 <= n <= 127.
  static Vec power_of_two(const Vec& v) {
    return make([&](int i) {
      const uint32_t bits = std::bit_cast<uint32_t>(v.lane[i]);
      return std::bit_cast<float>((bits << 23) + 0x3f800000u);
    });
  }
  // v * 2^n, where powers = n + 1.5 * 2^23 and neither v nor the result is a zero or a subnormal.
  static Vec add_to_exponent(const Vec& v, const Vec& powers) {
    return make([&](int i) {
      return std::bit_cast<float>(std::bit_cast<uint32_t>(v.lane[i]) + (std::bit_cast<uint32_t>(powers.lane[i]) << 23));
    });
  }

  // Lane i + lane i + 8, then + 4, + 2, + 1.
  static float sum(const Vec& v) {
    float s[8];
    for (int i = 0; i < 8; ++i) s[i] = v.lane[i] + v.lane[i + 8];
    for (int i = 0; i < 4; ++i) s[i] = s[i] + s[i + 4];
    for (int i = 0; i < 2; ++i) s[i] = s[i] + s[i + 2];
    return s[0] + s[1];
  }
  static float largest(const Vec& v) {
    float s[8];
    for (int i = 0; i < 8; ++i) s[i] = v.lane[i] > v.lane[i + 8] ? v.lane[i] : v.lane[i + 8];
    for (int width = 4; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) s[i] = s[i] > s[i + width] ? s[i] : s[i + width];
    }
    return s[0];
  }
  // Lane r: sum(rows[r]), or largest(rows[r]).
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
    for (int column = 0; column < count; ++column) {
      for (int i = 0; i < 16; ++i) out[column * 16 + i] = rows[i].lane[column];
    }
  }
  static void prefetch(const void*) {}
};

}  // namespace
}  // namespace quire::cpu

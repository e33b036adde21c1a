// Sixty-four weight codes (4 k of 16 outputs) without any vector instruction: the definition of what the kernels of
// linear layers do with integers. The other codes_*.h have the same members with the same results (join_16 only where
// it helps). Included by files that instantiate kernels, each of them for one instruction set. Members are calls, not
// inlined: the templates unroll them many times, and this row need not be fast.
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/cpu/lanes_scalar.h"

namespace quire::cpu {
namespace {

struct ScalarCodes {
  using Lanes = ScalarLanes;
  using Vec = ScalarLanes::Vec;
  struct Bytes {
    uint8_t byte[64];
  };

  template <typename F>
  static Bytes make(F&& f) {
    Bytes v;
    for (int i = 0; i < 64; ++i) v.byte[i] = static_cast<uint8_t>(f(i));
    return v;
  }
  [[gnu::noinline]] static Bytes load(const uint8_t* p) {
    return make([&](int i) { return p[i]; });
  }
  static void store(uint8_t* p, const Bytes& v) { std::memcpy(p, v.byte, 64); }
  [[gnu::noinline]] static Bytes bit_or(const Bytes& a, const Bytes& b) {
    return make([&](int i) { return a.byte[i] | b.byte[i]; });
  }
  // (v >> kShift) & kMask, or v << -kShift for a negative kShift; kMask must clear what crosses byte borders.
  template <int kShift, int kMask>
  [[gnu::noinline]] static Bytes shift_and_mask(const Bytes& v) {
    return make([&](int i) { return (kShift >= 0 ? v.byte[i] >> kShift : v.byte[i] << -kShift) & kMask; });
  }
  // table[index]; indices are below 16.
  [[gnu::noinline]] static Bytes lookup(const uint8_t (&table)[16], const Bytes& indices) {
    return make([&](int i) { return table[indices.byte[i]]; });
  }
  // Lane i: byte 4 i + kByte, less the offset, as a float.
  template <int kByte>
  [[gnu::noinline]] static Vec to_float(const Bytes& v, int offset) {
    return Lanes::make([&](int i) { return static_cast<float>(v.byte[4 * i + kByte] - offset); });
  }
  // Pairs of bf16, a pair a lane.
  [[gnu::noinline]] static void load_bf16_pairs(const uint16_t* p, Vec& first, Vec& second) {
    first = Lanes::make([&](int i) { return bf16_to_f32(p[2 * i]); });
    second = Lanes::make([&](int i) { return bf16_to_f32(p[2 * i + 1]); });
  }
  // 16 small integers.
  static Vec load_u8(const uint8_t* p) {
    return Lanes::make([&](int i) { return static_cast<float>(p[i]); });
  }
  static Vec load_i8(const uint8_t* p) {
    return Lanes::make([&](int i) { return static_cast<float>(static_cast<int8_t>(p[i])); });
  }
  // The low and the high halves of 16 bytes.
  static Vec load_low_nibbles(const uint8_t* p) {
    return Lanes::make([&](int i) { return static_cast<float>(p[i] & 15); });
  }
  static Vec load_high_nibbles(const uint8_t* p) {
    return Lanes::make([&](int i) { return static_cast<float>(p[i] >> 4); });
  }

  // Codes up to the same class share their kernels.
  static constexpr int code_class(int) { return 255; }

  // The integer dot product of a group, a lane an output: start at `bias`, add up to 8 code vectors with 4 activations
  // each, numbered from 0, end as float with the number of vectors added. Codes are at most kMaxCode; bias is -offset
  // times the sum of the activations, and offset is not 0 where kMaxCode is 255.
  template <int kMaxCode>
  struct Dot {
    int32_t sum[16];

    explicit Dot(int32_t bias) {
      for (int32_t& lane : sum) lane = bias;
    }
    template <int kIndex>
    [[gnu::noinline]] void add(const Bytes& codes, const int8_t* x) {
      for (int i = 0; i < 16; ++i) {
        for (int b = 0; b < 4; ++b) sum[i] += codes.byte[4 * i + b] * x[b];
      }
    }
    template <int kCount>
    Vec finish() const {
      return Lanes::make([&](int i) { return static_cast<float>(sum[i]); });
    }
  };

  // The lowest byte of each lane's bits.
  static void store_low_bytes(int8_t* p, const Vec& a) {
    for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(__builtin_bit_cast(uint32_t, a.lane[i]));
  }
};

}  // namespace
}  // namespace quire::cpu

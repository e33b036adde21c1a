// The chunks of a sequence come together without counters and barriers, where each block has one unit and so all of
// them run at once: warps of the last chunk's block take over what the same warps of the others' blocks have sent
// (messages.cuh). The same sums as merge_chunks. Included by attention_decode_kernel.cuh alone.
#pragma once

#include "ops/cuda/attention_decode_slices.cuh"
#include "ops/cuda/messages.cuh"

namespace quire::cuda::decode {

template <typename S, int D>
struct Messages {
  static constexpr int kGroups = Slices<S, D>::kOwn;  // of sums, that a lane has parts of
  static constexpr int kVectors = kGroups + 1;        // then largest and weight of its two heads
  static constexpr int kUnitVectors = S::kWarps * kVectors * 32;
  static_assert(kUnitVectors * 16 <= kMessageBytes);
  static constexpr int kAtOnce = D <= 128 ? 8 : 4;  // chunks

  uint4* first;    // the lane's, of the sequence's first chunk
  int64_t stride;  // to the next chunk's

  __device__ __forceinline__ void send(int chunk, const float (&sums)[kGroups][4], const float (&largest)[2],
                                       const float (&weight)[2]) const {
    uint4* const target = first + chunk * stride;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      send_quad(target + 32 * j, {__float_as_uint(sums[j][0]), __float_as_uint(sums[j][1]), __float_as_uint(sums[j][2]),
                                  __float_as_uint(sums[j][3])});
    }
    send_quad(target + 32 * kGroups, {__float_as_uint(largest[0]), __float_as_uint(largest[1]),
                                      __float_as_uint(weight[0]), __float_as_uint(weight[1])});
  }

  // Own sums, of the last chunk, and those of `num_others` before it become the sequence's, in ascending order.
  __device__ __forceinline__ void add_all(int num_others, float (&sums)[kGroups][4], const float (&own_largest)[2],
                                          float (&weight)[2]) const {
    uint4 parts[kAtOnce][kVectors];
    const auto take = [&](int from) {
      bool have_come = false;
      while (!have_come) {
        have_come = true;
#pragma unroll
        for (int c = 0; c < kAtOnce; ++c) {
#pragma unroll
          for (int v = 0; v < kVectors; ++v) {
            if (from + c < num_others) parts[c][v] = look_at_quad(first + (from + c) * stride + 32 * v);
          }
        }
#pragma unroll
        for (int c = 0; c < kAtOnce; ++c) {
#pragma unroll
          for (int v = 0; v < kVectors; ++v) have_come &= from + c >= num_others || has_come(parts[c][v]);
        }
      }
    };
    float largest[2] = {own_largest[0], own_largest[1]};
    for (int from = 0; from < num_others; from += kAtOnce) {
      take(from);
#pragma unroll
      for (int c = 0; c < kAtOnce; ++c) {
        if (from + c >= num_others) break;
        largest[0] = fmaxf(largest[0], __uint_as_float(parts[c][kGroups].x));
        largest[1] = fmaxf(largest[1], __uint_as_float(parts[c][kGroups].y));
      }
    }
    float all_sums[kGroups][4] = {};
    float all_weight[2] = {0, 0};
    const auto add = [&](const float(&chunk_sums)[kGroups][4], const float(&chunk_largest)[2],
                         const float(&chunk_weight)[2]) {
      float factors[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        factors[h] = chunk_largest[h] == -INFINITY ? 0.0f : exp2_fast(chunk_largest[h] - largest[h]);
        all_weight[h] = fmaf(chunk_weight[h], factors[h], all_weight[h]);
      }
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) all_sums[j][i] = fmaf(chunk_sums[j][i], factors[i % 2], all_sums[j][i]);
      }
    };
    for (int from = 0; from < num_others; from += kAtOnce) {
      if (num_others > kAtOnce) take(from);
#pragma unroll
      for (int c = 0; c < kAtOnce; ++c) {
        if (from + c >= num_others) break;
        float chunk_sums[kGroups][4];
#pragma unroll
        for (int j = 0; j < kGroups; ++j) {
          const uint4& x = parts[c][j];
          chunk_sums[j][0] = __uint_as_float(x.x);
          chunk_sums[j][1] = __uint_as_float(x.y);
          chunk_sums[j][2] = __uint_as_float(x.z);
          chunk_sums[j][3] = __uint_as_float(x.w);
        }
        const uint4& stats = parts[c][kGroups];
        add(chunk_sums, {__uint_as_float(stats.x), __uint_as_float(stats.y)},
            {__uint_as_float(stats.z), __uint_as_float(stats.w)});
#pragma unroll
        for (int v = 0; v < kVectors; ++v) forget_quad(first + (from + c) * stride + 32 * v);
      }
    }
    add(sums, own_largest, weight);
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[j][i] = all_sums[j][i];
    }
    weight[0] = all_weight[0];
    weight[1] = all_weight[1];
  }
};

}  // namespace quire::cuda::decode

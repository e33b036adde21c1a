// Warps that share a unit of decode attention add their sums together: each takes a slice of head_dim, from all warps
// in ascending order, with the same roundings as one that adds whole states (merge_stored). Included by
// attention_decode_kernel.cuh alone.
#pragma once

#include "ops/cuda/attention_decode_state.cuh"

namespace quire::cuda::decode {

// A warp's slice is kOwn of the D / 16 groups of sums; where there are fewer groups than warps the last have none. What
// others need of a warp lies in its region of shared memory: the groups that are not its own, weights, and maxima.
template <typename S, int D>
struct Slices {
  static constexpr int kGroups = D / 16;
  static constexpr int kOwn = kGroups >= S::kWarps ? kGroups / S::kWarps : 1;
  static constexpr int kStored = kGroups >= S::kWarps ? kGroups - kOwn : kGroups;
  static constexpr int kRegionFloats = kStored * 128 + 64 + 8;
  static constexpr int kBytes = S::kWarps * kRegionFloats * 4;

  __device__ __forceinline__ static void store(float* exchange, const State<D>& state, int warp, int lane) {
    float* const region = exchange + warp * kRegionFloats;
    const int first = warp * kOwn;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      if (j >= first && j < first + kOwn) continue;
      *reinterpret_cast<float4*>(region + ((j < first ? j : j - kOwn) * 32 + lane) * 4) = {
          state.sums[j][0], state.sums[j][1], state.sums[j][2], state.sums[j][3]};
    }
    float* const rest = region + kStored * 128;
    *reinterpret_cast<float2*>(rest + 2 * lane) = {state.weight[0], state.weight[1]};
    if (lane < 4) *reinterpret_cast<float2*>(rest + 64 + 2 * lane) = {state.largest[0], state.largest[1]};
  }

  // The warp's slice of all states together; largest and weight as in State.
  float sums[kOwn][4];
  float largest[2];
  float weight[2];

  __device__ __forceinline__ void add_all(const float* exchange, const State<D>& own, int warp, int lane) {
    float2 all_weights[S::kWarps];
    float2 all_largest[S::kWarps];
#pragma unroll
    for (int n = 0; n < S::kWarps; ++n) {
      const float* const rest = exchange + n * kRegionFloats + kStored * 128;
      all_weights[n] = *reinterpret_cast<const float2*>(rest + 2 * lane);
      all_largest[n] = *reinterpret_cast<const float2*>(rest + 64 + lane % 4 * 2);
    }
    Factors factors[S::kWarps][2];
    largest[0] = all_largest[0].x;
    largest[1] = all_largest[0].y;
    weight[0] = all_weights[0].x;
    weight[1] = all_weights[0].y;
#pragma unroll
    for (int n = 1; n < S::kWarps; ++n) {
      factors[n][0] = add_largest(largest[0], all_largest[n].x);
      factors[n][1] = add_largest(largest[1], all_largest[n].y);
      weight[0] = add_scaled(weight[0], all_weights[n].x, factors[n][0]);
      weight[1] = add_scaled(weight[1], all_weights[n].y, factors[n][1]);
    }
    const int first = warp * kOwn;
#pragma unroll
    for (int o = 0; o < kOwn; ++o) {
      const int j = first + o;
      float4 mine = {0, 0, 0, 0};
#pragma unroll
      for (int candidate = o; candidate < kGroups; candidate += kOwn) {
        if (candidate == j) {
          mine = {own.sums[candidate][0], own.sums[candidate][1], own.sums[candidate][2], own.sums[candidate][3]};
        }
      }
#pragma unroll
      for (int n = 0; n < S::kWarps; ++n) {
        float4 x = mine;
        if (n != warp && j < kGroups) {
          const int stored = j < n * kOwn ? j : j - kOwn;
          x = *reinterpret_cast<const float4*>(exchange + n * kRegionFloats + (stored * 32 + lane) * 4);
        }
        const float values[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[o][i] = n == 0 ? values[i] : add_scaled(sums[o][i], values[i], factors[n][i % 2]);
        }
      }
    }
  }
};

}  // namespace quire::cuda::decode

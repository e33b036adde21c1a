// Decode attention's arithmetic: a warp's running sums, one step of keys, and how partial results are merged: see
// attention_decode.cu, which alone includes it.
#pragma once

#include "ops/cuda/attention_decode_units.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/packed_pairs.cuh"

namespace quire::cuda::decode {

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// One warp's running state: thread (g, t) has heads 2t and 2t + 1.
template <int D>
struct State {
  float sums[D / 16][4];  // d and its partner (d_of), of both heads
  float largest[2];       // of the warp, base 2
  float weight[2];        // of the thread's own keys

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int j = 0; j < D / 16; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[j][i] = 0;
    }
    largest[0] = largest[1] = -INFINITY;
    weight[0] = weight[1] = 0;
  }
};

// The d that sums[j][2 half + h] stand for.
template <typename C>
__device__ __forceinline__ int d_of(int g, int j, int half) {
  return kIsCode<C> ? 16 * j + 2 * g + half : 16 * j + g + 8 * half;
}

// What running sums and those added are multiplied by, where `largest` is that of both. A NaN among the scores spoils
// sums and weights, not the maximum, which may stay -inf.
struct Factors {
  float mine;
  float theirs;
};
__device__ __forceinline__ Factors add_largest(float& largest, float other) {
  const float both = fmaxf(largest, other);
  const Factors factors = {largest == -INFINITY ? 0.0f : exp2_fast(largest - both),
                           other == -INFINITY ? 0.0f : exp2_fast(other - both)};
  largest = both;
  return factors;
}
// Written out, so that every sum is rounded alike wherever it is made.
__device__ __forceinline__ float add_scaled(float sum, float other, const Factors& factors) {
  return fmaf(sum, factors.mine, other * factors.theirs);
}

// into = into and then `other`.
template <int D>
__device__ __forceinline__ void merge(State<D>& into, const State<D>& other) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const Factors factors = add_largest(into.largest[h], other.largest[h]);
    into.weight[h] = add_scaled(into.weight[h], other.weight[h], factors);
#pragma unroll
    for (int j = 0; j < D / 16; ++j) {
      into.sums[j][h] = add_scaled(into.sums[j][h], other.sums[j][h], factors);
      into.sums[j][h + 2] = add_scaled(into.sums[j][h + 2], other.sums[j][h + 2], factors);
    }
  }
}

// A warp's state in shared memory.
template <int D>
__device__ __forceinline__ void store_state(float* target, const State<D>& state, int lane) {
#pragma unroll
  for (int j = 0; j < D / 16; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) target[(4 * j + i) * 32 + lane] = state.sums[j][i];
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    target[(D / 4 + h) * 32 + lane] = state.largest[h];
    target[(D / 4 + 2 + h) * 32 + lane] = state.weight[h];
  }
}
// into = into and then N states that were stored, one after the other: the same as if each had been merged.
template <int D, int N>
__device__ __forceinline__ void merge_stored(State<D>& into, const float* stored, int lane) {
  constexpr int kStateFloats = (D / 4 + 4) * 32;
  Factors factors[N][2];
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float* state = stored + n * kStateFloats + lane;
      factors[n][h] = add_largest(into.largest[h], state[(D / 4 + h) * 32]);
      into.weight[h] = add_scaled(into.weight[h], state[(D / 4 + 2 + h) * 32], factors[n][h]);
    }
  }
#pragma unroll
  for (int j = 0; j < D / 16; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        into.sums[j][i] =
            add_scaled(into.sums[j][i], stored[n * kStateFloats + (4 * j + i) * 32 + lane], factors[n][i % 2]);
      }
    }
  }
}

__device__ __forceinline__ float scale_at(const char* scales, int i) {
  return __uint_as_float(static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(scales)[i]) << 16);
}

// Where a step's tiles lie in shared memory, for this lane's rows, and which of its keys are seen.
struct Step {
  uint32_t keys;
  uint32_t key_column;  // swizzled
  uint32_t values;
  uint32_t value_column;
  const char* scales;  // of K, then of V
  int begin;
  int end;
};

// Bytes A and B of a word of codes as f16, exactly.
template <typename C, int A, int B>
__device__ __forceinline__ uint32_t unpack_codes(uint32_t word) {
  if constexpr (std::is_same_v<C, I8>) {
    return unpack_i8<A, B>(word);
  } else if constexpr (A == 0 && B == 1) {
    return unpack_f8_pair(word);
  } else if constexpr (A == 2 && B == 3) {
    return unpack_f8_pair(word >> 16);
  } else {
    static_assert((A == 0 && B == 2) || (A == 1 && B == 3));
    return unpack_f8_pair(__byte_perm(word, 0, 0x3120) >> (16 * A));
  }
}

// The keys of one step. T is the dtype of queries and products, but where the cache holds codes, of C: then products
// are of f16.
template <typename T, typename C, typename S, int D>
__device__ __forceinline__ void take_step(State<D>& some, const Step& place, const uint32_t (&query)[D / 8],
                                          const float (&score_scale)[2], float soft_cap, int g) {
  using P = std::conditional_t<S::kHasCodes, f16, T>;
  float scores[S::kTiles][4];
#pragma unroll
  for (int tile = 0; tile < S::kTiles; ++tile) {
    const uint32_t address = place.keys + tile * S::kTileBytes;
    float some_scores[4] = {0, 0, 0, 0};
    float more_scores[4] = {0, 0, 0, 0};
    if constexpr (S::kHasCodes) {
#pragma unroll
      for (int i = 0; i < D / 32; ++i) {
        uint32_t x[4];
        load_matrices<false>(x, address + i / 4 * kBoxBytes + (place.key_column ^ static_cast<uint32_t>(32 * (i % 4))));
        mma<f16>(some_scores,
                 {unpack_codes<C, 0, 1>(x[0]), unpack_codes<C, 0, 1>(x[1]), unpack_codes<C, 2, 3>(x[0]),
                  unpack_codes<C, 2, 3>(x[1])},
                 query[4 * i], query[4 * i + 1]);
        mma<f16>(more_scores,
                 {unpack_codes<C, 0, 1>(x[2]), unpack_codes<C, 0, 1>(x[3]), unpack_codes<C, 2, 3>(x[2]),
                  unpack_codes<C, 2, 3>(x[3])},
                 query[4 * i + 2], query[4 * i + 3]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
        uint32_t x[4];
        load_matrices<false>(x, address + i / 4 * kBoxBytes + (place.key_column ^ static_cast<uint32_t>(32 * (i % 4))));
        mma<T>(i % 2 == 0 ? some_scores : more_scores, x, query[2 * i], query[2 * i + 1]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[tile][i] = some_scores[i] + more_scores[i];
  }

  // ---- Scores become weights, and sums so far fit the new maximum
  float new_largest[2] = {some.largest[0], some.largest[1]};
#pragma unroll
  for (int tile = 0; tile < S::kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = tile * kKeys + g + i / 2 * 8;
      float score = scores[tile][i] * score_scale[i % 2];
      if constexpr (S::kHasCodes) score *= scale_at(place.scales, key);
      if (soft_cap > 0) score = soft_cap * tanhf(score) * kLog2e;
      scores[tile][i] = place.begin <= key && key < place.end ? score : -INFINITY;
      new_largest[i % 2] = fmaxf(new_largest[i % 2], scores[tile][i]);
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2) {
      new_largest[h] = fmaxf(new_largest[h], __shfl_xor_sync(0xffffffffu, new_largest[h], offset));
    }
    const float correction = new_largest[h] == -INFINITY ? 0.0f : exp2_fast(some.largest[h] - new_largest[h]);
    some.largest[h] = new_largest[h];
    some.weight[h] *= correction;
#pragma unroll
    for (int j = 0; j < D / 16; ++j) {
      some.sums[j][h] *= correction;
      some.sums[j][h + 2] *= correction;
    }
  }
  uint32_t weights[S::kTiles][2];
#pragma unroll
  for (int tile = 0; tile < S::kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = tile * kKeys + g + i / 2 * 8;
      const bool is_seen = place.begin <= key && key < place.end;
      float weight = is_seen ? exp2_fast(scores[tile][i] - new_largest[i % 2]) : 0.0f;
      some.weight[i % 2] += weight;
      if constexpr (S::kHasCodes) {
        // NaN stays NaN.
        const float scaled = weight * (scale_at(place.scales, S::kStepKeys + key) * kValueBoost);
        weight = is_seen ? (scaled > kLargestF16 ? kLargestF16 : scaled) : 0.0f;
      }
      scores[tile][i] = weight;
    }
    weights[tile][0] = transpose_8x8(pack_pair<P>(scores[tile][0], scores[tile][1]));
    weights[tile][1] = transpose_8x8(pack_pair<P>(scores[tile][2], scores[tile][3]));
  }
#pragma unroll
  for (int tile = 0; tile < S::kTiles; ++tile) {
    const uint32_t address = place.values + tile * S::kTileBytes;
    if constexpr (S::kHasCodes) {
#pragma unroll
      for (int i = 0; i < D / 32; ++i) {
        uint32_t x[4];
        load_matrices<true>(x,
                            address + i / 4 * kBoxBytes + (place.value_column ^ static_cast<uint32_t>(32 * (i % 4))));
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          // Bytes: d 2g and 2g + 1 of key 2t, then of key 2t + 1.
          mma<f16>(some.sums[2 * i + part],
                   {unpack_codes<C, 0, 2>(x[part]), unpack_codes<C, 1, 3>(x[part]), unpack_codes<C, 0, 2>(x[part + 2]),
                    unpack_codes<C, 1, 3>(x[part + 2])},
                   weights[tile][0], weights[tile][1]);
        }
      }
    } else {
#pragma unroll
      for (int j = 0; j < D / 16; ++j) {
        uint32_t x[4];
        load_matrices<true>(x,
                            address + j / 4 * kBoxBytes + (place.value_column ^ static_cast<uint32_t>(32 * (j % 4))));
        mma<T>(some.sums[j], x, weights[tile][0], weights[tile][1]);
      }
    }
  }
}

// What other warps have stored: from the L2 cache.
template <int N>
__device__ __forceinline__ Vector<float, N> load_of_others(const float* source) {
  Vector<float, N> x;
  if constexpr (N % 4 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const float4 loaded = __ldcg(reinterpret_cast<const float4*>(source + i));
      x.v[i] = loaded.x;
      x.v[i + 1] = loaded.y;
      x.v[i + 2] = loaded.z;
      x.v[i + 3] = loaded.w;
    }
  } else {
    static_assert(N == 2);
    const float2 loaded = __ldcg(reinterpret_cast<const float2*>(source));
    x = {loaded.x, loaded.y};
  }
  return x;
}

// One head's chunks, in ascending order. A lane has D / 32 elements of d, and the factor of one chunk.
template <typename T, int D>
__device__ __forceinline__ void merge_chunks(const Args& args, const DecodeItem& item, int head, int lane,
                                             bool has_codes) {
  constexpr int kOwn = D / 32;
  const int64_t slot = int64_t{item.sequence} * kMaxDecodeChunks * args.num_heads + head;
  float2 stats = {-INFINITY, 0.0f};
  if (lane < item.num_chunks) {
    stats = __ldcg(reinterpret_cast<const float2*>(args.partial_stats) + slot + int64_t{lane} * args.num_heads);
  }
  const float largest = warp_max(stats.x);
  const float own_factor = stats.x == -INFINITY ? 0.0f : exp2_fast(stats.x - largest);
  float weight = 0;
  float sums[kOwn] = {};
  const bool has_own = lane * kOwn < args.head_dim;
  const float* source = args.partial_sums + slot * args.head_dim + (has_own ? lane * kOwn : 0);
  constexpr int kAtOnce = 32 / kOwn;
  for (int first = 0; first < item.num_chunks; first += kAtOnce) {
    Vector<float, kOwn> parts[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i < item.num_chunks) {
        parts[i] = load_of_others<kOwn>(source + (first + i) * int64_t{args.num_heads} * args.head_dim);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= item.num_chunks) break;
      const float factor = __shfl_sync(0xffffffffu, own_factor, first + i);
      weight += __shfl_sync(0xffffffffu, stats.y, first + i) * factor;
#pragma unroll
      for (int j = 0; j < kOwn; ++j) sums[j] += parts[i].v[j] * factor;
    }
  }
  if (!has_own) return;
  T* out = static_cast<T*>(args.out) + item.token * args.out_token_stride + head * args.out_head_stride + lane * kOwn;
  const float factor = weight == 0 ? 0.0f : (has_codes ? 1.0f / kValueBoost : 1.0f) / weight;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) out[j] = from_float<T>(sums[j] * factor);
}

}  // namespace quire::cuda::decode

// Prefill attention's consumers: a warpgroup of 64 queries each: see attention_prefill.cu. Included by it alone.
#pragma once

#include "ops/cuda/attention_prefill_tiles.cuh"
#include "ops/cuda/lanes.cuh"
#include "ops/cuda/packed_pairs.cuh"

namespace quire::cuda::prefill {

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Thread `lane` of warp w has rows 16 w + lane / 4 (i % 4 < 2) and 8 more; element i is column 8 (i / 4) + 2 (lane % 4)
// + i % 2.
struct Softmax {
  float largest[2] = {-INFINITY, -INFINITY};  // scaled, base 2
  float weight[2] = {0, 0};                   // of the thread's own columns
  float correction[2] = {1, 1};
};

struct Mask {
  int first_key;  // of the tile
  int position;   // of the thread's first row: the last key that it sees
  int next_row;   // from it to the position of the second
  int window;
  bool is_needed;
};

// A row's largest score is not followed while it rises by less: sums would have to be multiplied, and weights of up to
// 2^8 are as exact as those up to one.
constexpr float kLargestRise = 8.0f;

// Each score, or weight, times its key's factor; `factors` are those of the thread's columns.
template <int N>
__device__ __forceinline__ void multiply_columns(float (&values)[N], const float* factors) {
#pragma unroll
  for (int i = 0; i < N / 8; ++i) {
    const float4 x = reinterpret_cast<const float4*>(factors)[i];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      values[8 * i + 2 * r] *= x.x;
      values[8 * i + 2 * r + 1] *= x.y;
      values[8 * i + 4 + 2 * r] *= x.z;
      values[8 * i + 4 + 2 * r + 1] *= x.w;
    }
  }
}

// Scores become weights; the correction is what sums so far are to be multiplied by. IsPlain: there is neither mask nor
// cap.
template <bool IsPlain, bool FollowsLargest, int N>
__device__ __forceinline__ void soften(float (&scores)[N], Softmax& state, const Mask& mask, float scale,
                                       float soft_cap, int t) {
  if (!IsPlain && soft_cap > 0) {
#pragma unroll
    for (int i = 0; i < N; ++i) scores[i] = soft_cap * tanhf(scores[i] * scale);
    scale = kLog2e;
  }
  if (!IsPlain && mask.is_needed) {
    const int end = mask.position - mask.first_key - 2 * t;
    const int ends[2] = {end, end + mask.next_row};
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i / 4 * 8 + i % 2 > ends[i % 4 / 2]) scores[i] = -INFINITY;
    }
    if (mask.window > 0) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (i / 4 * 8 + i % 2 <= ends[i % 4 / 2] - mask.window) scores[i] = -INFINITY;
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float some[4] = {scores[2 * r], scores[2 * r + 1], scores[4 + 2 * r], scores[4 + 2 * r + 1]};
#pragma unroll
    for (int i = 2; i < N / 4; ++i) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        float& one = some[i % 2 * 2 + k];
        one = fmaxf(one, scores[4 * i + 2 * r + k]);
      }
    }
    float largest = fmaxf(fmaxf(some[0], some[1]), fmaxf(some[2], some[3]));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    largest = fmaxf(state.largest[r], largest * scale);
    if (!FollowsLargest && !(largest > state.largest[r] + kLargestRise)) largest = state.largest[r];
    const float base = largest == -INFINITY ? 0.0f : largest;
    state.correction[r] = exp2_fast(state.largest[r] - base);
    state.largest[r] = largest;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < N / 4; ++i) {
      float& first = scores[4 * i + 2 * r];
      float& second = scores[4 * i + 2 * r + 1];
      first = exp2_fast(fmaf(first, scale, -base));
      second = exp2_fast(fmaf(second, scale, -base));
      sum += first + second;
    }
    state.weight[r] = state.weight[r] * state.correction[r] + sum;
  }
}

// Which stage of shared memory is next, and the parity of its barrier.
template <int N>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void next() {
    if (++stage < N) return;
    stage = 0;
    parity ^= 1u;
  }
};

// T is the dtype of queries and outputs; products are of f16 where the cache holds codes.
template <typename T, int D, bool HasCodes, typename S>
struct Consumer {
  using P = std::conditional_t<HasCodes, f16, T>;
  static constexpr int kScores = S::kKeys / 2;        // a thread
  static constexpr int kColumns = D < 128 ? D : 128;  // of D, that one product adds to
  static constexpr int kParts = D / kColumns;

  const Args& args;
  const Shared<S>& shared;
  Control<S>& control;
  int consumer;
  int thread;
  int lane;
  int row;  // the thread's first, of the tile
  int q_turn = 0;
  Ring<S::kKStages> k_ring = {};
  Ring<S::kVStages> v_ring = {};

  __device__ __forceinline__ void release(uint64_t* barrier) const {
    __syncwarp();
    if (lane == 0) barrier_arrive(barrier);
  }

  __device__ __forceinline__ Tile take_queries() const {
    const int stage = q_turn % S::kQStages;
    barrier_wait(&control.q_full[stage], static_cast<uint32_t>(q_turn / S::kQStages % 2));
    const Tile tile = control.tiles[stage];
    if constexpr (!std::is_same_v<P, T>) {
      if (tile.num_rows > 0) {
        // Each 16 bytes where they are: the swizzle stays.
        constexpr int kChunks = kConsumerRows * 8;
#pragma unroll
        for (int i = 0; i < S::kSlabs * kChunks / 128; ++i) {
          const int chunk = thread + 128 * i;
          uint4* const at = reinterpret_cast<uint4*>(shared.q(stage) + chunk / kChunks * S::kQSlabBytes +
                                                     consumer * kConsumerRows * kRowBytes) +
                            chunk % kChunks;
          const uint4 x = *at;
          *at = {convert(x.x), convert(x.y), convert(x.z), convert(x.w)};
        }
        fence_async_proxy();
        asm volatile("bar.sync %0, 128;" ::"r"(1 + consumer) : "memory");
      }
    }
    return tile;
  }
  __device__ __forceinline__ static uint32_t convert(uint32_t pair) {
    return pack_pair<P>(low_float<bf16>(pair), high_float<bf16>(pair));
  }

  // Where the consumer's queries, and the next keys and values are: low words of descriptors.
  __device__ __forceinline__ uint32_t q_word() const {
    const uint32_t row_bytes = static_cast<uint32_t>(consumer * kConsumerRows * kRowBytes);
    return matrix_word(shared_address(shared.q(q_turn % S::kQStages)) + row_bytes, 16);
  }
  __device__ __forceinline__ uint32_t k_word() const {
    return matrix_word(shared_address(shared.k(k_ring.stage)), 16);
  }
  __device__ __forceinline__ uint32_t v_word() const {
    return matrix_word(shared_address(shared.v(v_ring.stage)), kBlockBytes);
  }
  __device__ __forceinline__ void multiply_keys(float (&scores)[kScores], uint32_t q, uint32_t k) const {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      wgmma_shared<P>(scores, matrix_at(q + static_cast<uint32_t>(i / 4 * S::kQSlabBytes + i % 4 * 32) / 16, 1024),
                      matrix_at(k + static_cast<uint32_t>(i / 4 * kBlockBytes + i % 4 * 32) / 16, S::kGroupBytes),
                      i > 0);
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void add_values(float (&sums)[kParts][kColumns / 2],
                                             const uint32_t (&weights)[kScores / 2], uint32_t v) const {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < S::kKeys / 16; ++i) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        constexpr int kPartBytes = kColumns / 64 * kBlockBytes;
        wgmma_registers<P>(
            sums[part], &weights[4 * i],
            matrix_at(v + static_cast<uint32_t>(part * kPartBytes + i * 2 * S::kGroupBytes) / 16, S::kGroupBytes),
            true);
      }
    }
    wgmma_commit();
  }

  // Of a unit's tiles of keys those from `first` on, and those before `end`, hide keys from some query.
  struct MaskedTiles {
    int first;
    int end;
  };
  __device__ __forceinline__ MaskedTiles masked_tiles(const Tile& tile) const {
    const int first_position = args.is_causal ? tile.first_position + consumer * kConsumerRows : tile.last_key;
    const int last_hidden = first_position + kConsumerRows - 1 - args.window;
    return {.first = (first_position + 1) / S::kKeys,
            .end = args.window > 0 && last_hidden >= 0 ? last_hidden / S::kKeys + 1 : 0};
  }
  template <bool IsPlain>
  __device__ __forceinline__ void soften_tile(float (&scores)[kScores], Softmax& state, const Tile& tile, int j,
                                              const MaskedTiles& masked, const float* k_scales) const {
    const int t = lane % 4;
    if constexpr (HasCodes) multiply_columns(scores, k_scales + t * S::kScaleStride);
    const Mask mask{.first_key = j * S::kKeys,
                    .position = args.is_causal ? tile.first_position + row : tile.last_key,
                    .next_row = args.is_causal ? 8 : 0,
                    .window = args.window,
                    .is_needed = j >= masked.first || j < masked.end};
    // Over codes weights times scales of V must not become larger than f16 holds.
    soften<IsPlain, HasCodes>(scores, state, mask, args.scale, args.soft_cap, t);
  }
  __device__ __forceinline__ void pack_weights(uint32_t (&packed)[kScores / 2], float (&weights)[kScores]) const {
    if constexpr (HasCodes) {
      barrier_wait(&control.v_full[v_ring.stage], v_ring.parity);
      multiply_columns(weights, shared.v_scales(v_ring.stage) + lane % 4 * S::kScaleStride);
    }
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) packed[i] = pack_pair<P>(weights[2 * i], weights[2 * i + 1]);
  }

  __device__ __forceinline__ void store(const Tile& tile, const float (&sums)[kParts][kColumns / 2],
                                        const float (&weights)[2]) const {
    const int t = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float weight = weights[r];
      weight += __shfl_xor_sync(0xffffffffu, weight, 1);
      weight += __shfl_xor_sync(0xffffffffu, weight, 2);
      const float inverse = weight == 0 ? 0.0f : (HasCodes ? 1.0f / kValueBoost : 1.0f) / weight;
      const int out_row = row + 8 * r;
      T* const out = static_cast<T*>(args.out) + (tile.first_token + out_row) * args.out_token_stride +
                     tile.head * args.out_head_stride;
#pragma unroll
      for (int i = 0; i < D / 8; i += 4) {
        uint32_t words[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float(&part)[kColumns / 2] = sums[i / (kColumns / 8)];
          const int first = 4 * ((i + k) % (kColumns / 8)) + 2 * r;
          words[k] = pack_pair<T>(part[first] * inverse, part[first + 1] * inverse);
        }
        const uint4 whole = transpose_in_four(words, t);
        if (out_row < tile.num_rows && 8 * (i + t) < args.head_dim) {
          *reinterpret_cast<uint4*>(out + 8 * (i + t)) = whole;
        }
      }
    }
  }

  // The scores of a tile of keys, and the sums of the one before, which is another unit's where is_new. IsPlain: it is
  // not, every query sees every key, and there is no soft cap. The warp's instructions bind here: whatever is not the
  // plain step's stays out of its loop, and what it must know it knows before it waits.
  template <bool IsPlain>
  __device__ __forceinline__ void step(float (&scores)[kScores], float (&sums)[kParts][kColumns / 2],
                                       uint32_t (&weights)[kScores / 2], Softmax& state, const Tile& tile, int j,
                                       const MaskedTiles& masked, const Tile& last, bool is_new) {
    if (!IsPlain && is_new) barrier_wait(&control.k_full[k_ring.stage], k_ring.parity);
    multiply_keys(scores, q_word(), k_word());
    const int k_stage = k_ring.stage;
    k_ring.next();
    if constexpr (!HasCodes) barrier_wait(&control.v_full[v_ring.stage], v_ring.parity);
    add_values(sums, weights, v_word());
    const bool is_last = j + 1 == tile.end;
    uint64_t* const next = is_last ? &control.v_full[v_ring.stage] : &control.k_full[k_ring.stage];
    const uint32_t next_parity = is_last ? v_ring.parity : k_ring.parity;
    wgmma_wait<1>();
    hold(scores);
    if constexpr (!HasCodes) release(&control.k_empty[k_stage]);
    const float last_weight[2] = {state.weight[0], state.weight[1]};
    if (!IsPlain && is_new) state = Softmax{};
    soften_tile<IsPlain>(scores, state, tile, j, masked, shared.k_scales(k_stage));
    if constexpr (HasCodes) release(&control.k_empty[k_stage]);
    if (is_last) release(&control.q_empty[q_turn % S::kQStages]);
    // The exponentials run under the last products, if only the compiler does not move the wait before them: it moves
    // nothing over this wait, which is for the next step's keys (there are none: for what has been there).
    hold(scores);
    barrier_wait(next, next_parity);
    wgmma_wait<0>();
#pragma unroll
    for (int part = 0; part < kParts; ++part) hold(sums[part]);
    release(&control.v_empty[v_ring.stage]);
    v_ring.next();
    if (!IsPlain && is_new) {
      store(last, sums, last_weight);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int i = 0; i < kColumns / 2; ++i) sums[part][i] = 0;
      }
    } else if (__any_sync(0xffffffffu, state.correction[0] != 1.0f || state.correction[1] != 1.0f)) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int i = 0; i < kColumns / 2; ++i) sums[part][i] *= state.correction[i % 4 / 2];
      }
    }
    pack_weights(weights, scores);
  }

  __device__ __forceinline__ void run() {
    float scores[kScores];
    float sums[kParts][kColumns / 2] = {};
    uint32_t weights[kScores / 2];
    Softmax state;
    Tile tile = take_queries();
    MaskedTiles masked = masked_tiles(tile);
    int j = tile.begin;
    barrier_wait(&control.k_full[0], 0);
    multiply_keys(scores, q_word(), k_word());
    wgmma_wait<0>();
    hold(scores);
    if (j + 1 == tile.end) release(&control.q_empty[0]);
    if constexpr (!HasCodes) release(&control.k_empty[0]);
    soften_tile<false>(scores, state, tile, j, masked, shared.k_scales(0));
    if constexpr (HasCodes) release(&control.k_empty[0]);
    k_ring.next();
    pack_weights(weights, scores);
    if (j + 1 < tile.end) barrier_wait(&control.k_full[k_ring.stage], k_ring.parity);
    while (true) {
      ++j;
      if (j >= masked.end) {
        const int plain_end = args.soft_cap > 0 ? 0 : min(tile.end, masked.first);
        for (; j < plain_end; ++j) step<true>(scores, sums, weights, state, tile, j, masked, tile, false);
      }
      const bool is_new = j == tile.end;
      const Tile last = tile;
      if (is_new) {
        ++q_turn;
        tile = take_queries();
        if (tile.num_rows == 0) {
          tile = last;
          break;
        }
        masked = masked_tiles(tile);
        j = tile.begin;
      }
      step<false>(scores, sums, weights, state, tile, j, masked, last, is_new);
    }
    if constexpr (!HasCodes) barrier_wait(&control.v_full[v_ring.stage], v_ring.parity);
    add_values(sums, weights, v_word());
    wgmma_wait<0>();
#pragma unroll
    for (int part = 0; part < kParts; ++part) hold(sums[part]);
    store(tile, sums, state.weight);
  }
};

}  // namespace quire::cuda::prefill

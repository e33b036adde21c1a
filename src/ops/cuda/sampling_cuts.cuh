// Which tokens of a row top_k and top_p leave, and the draw among them. Where they are few, as mostly, they are listed
// in shared memory, sorted, and the rest is done there (draw_from_list). Else a threshold is found 8 bits at a time by
// histograms over the whole row (select, find_end_of_ties). For blocks of kThreads; all threads call.
#pragma once

#include "ops/cuda/token_weights.cuh"

namespace quire::cuda::sampling {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kBins = 256;
constexpr int kMostListed = 2 * kThreads;
// Of the list's own histogram: bins of 2^-6 in x, the greatest x first.
constexpr int kListBinShift = 20;
constexpr int kListBins = 1761;
static_assert(kListBins == (static_cast<uint32_t>(-kLowestX * kTokenKeyScale) >> kListBinShift) + 1);
static_assert(kListBins <= kMostListed);
// Shared memory adds 32 bits at once, so weights are added in parts: 2^20 tokens of 11 bits.
constexpr int kPartBits = 11;
constexpr int kParts = 4;

struct Shared {
  union {
    uint32_t parts[kParts][kBins];  // of a histogram's sums
    uint32_t counts[kMostListed];
    uint64_t order[kMostListed];  // key, then ~id: the greatest is the best, of equal keys the lower id
  };
  uint64_t running[kMostListed];  // sums of weights up to each listed token
  uint64_t sums[kWarps];
  float bests[kWarps];
  int32_t best_ids[kWarps];
  int spoiled;
  uint32_t prefix;
  uint64_t left;
  int place;
  int fitting;
  int num_listed;
};

// What the threads before this one have; the sum of all goes to *total.
__device__ __forceinline__ uint64_t sum_before(Shared& shared, uint64_t own, uint64_t* total) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint64_t running = own;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const uint64_t other = __shfl_up_sync(0xffffffffu, running, offset);
    if (lane >= offset) running += other;
  }
  __syncthreads();
  if (lane == 31) shared.sums[warp] = running;
  __syncthreads();
  uint64_t before = 0;
  uint64_t all = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w == warp) before = all;
    all += shared.sums[w];
  }
  *total = all;
  return before + running - own;
}

// ---- Few tokens
// ------------------------------------------------------------------------------------------------------

// Sorts order[0, count), the greatest first; what stands behind up to the next power of two becomes 0.
__device__ __forceinline__ void sort_list(Shared& shared, int count) {
  int padded = 2;
  while (padded < count) padded *= 2;
  __syncthreads();
  for (int i = count + static_cast<int>(threadIdx.x); i < padded; i += kThreads) shared.order[i] = 0;
  for (int run = 2; run <= padded; run *= 2) {
    for (int stride = run / 2; stride > 0; stride /= 2) {
      __syncthreads();
      const int t = static_cast<int>(threadIdx.x);
      if (t >= padded / 2) continue;
      const int i = 2 * t - (t & (stride - 1));
      const uint64_t a = shared.order[i];
      const uint64_t b = shared.order[i + stride];
      if ((a < b) != ((i & run) == 0)) continue;
      shared.order[i] = b;
      shared.order[i + stride] = a;
    }
  }
  __syncthreads();
}

__device__ __forceinline__ int32_t listed_id(uint64_t order) {
  return static_cast<int32_t>(~static_cast<uint32_t>(order));
}

// Fills running[0, count).
__device__ __forceinline__ void sum_list(Shared& shared, const float* logits, const Scaled& s, int count) {
  const int first = 2 * static_cast<int>(threadIdx.x);
  const uint64_t a = first < count ? weight_of(logits[listed_id(shared.order[first])], s) : 0;
  const uint64_t b = first + 1 < count ? weight_of(logits[listed_id(shared.order[first + 1])], s) : 0;
  uint64_t total = 0;
  const uint64_t before = sum_before(shared, a + b, &total);
  shared.running[first] = before + a;
  shared.running[first + 1] = before + a + b;
  __syncthreads();
}

// The first of running[0, count) that is at least `wanted`, or `count`.
__device__ __forceinline__ int first_to_reach(Shared& shared, int count, uint64_t wanted) {
  if (threadIdx.x == 0) shared.place = count;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    if (shared.running[i] >= wanted && (i == 0 || shared.running[i - 1] < wanted)) shared.place = i;
  }
  __syncthreads();
  const int place = shared.place;
  __syncthreads();
  return place;
}

// -1 where the tokens that are left, and those near the threshold, do not fit in the list.
__device__ __forceinline__ int32_t draw_from_list(Shared& shared, const float* logits, int size, const Scaled& s,
                                                  const SamplingRow& row) {
  const bool has_top_k = row.top_k > 0 && row.top_k < size;
  // ---- How many tokens there are in each stretch of x
  for (int i = static_cast<int>(threadIdx.x); i < kMostListed; i += kThreads) shared.counts[i] = 0;
  if (threadIdx.x == 0) {
    shared.place = kListBins - 1;
    shared.fitting = kListBins - 1;
    shared.num_listed = 0;
  }
  __syncthreads();
  uint64_t own = 0;
  for_own_tokens<kThreads>(logits, size, [&](float logit, int) {
    const uint32_t key = key_of(logit, s);
    if (key == 0) return;
    atomicAdd(&shared.counts[(kHighestTokenKey - key) >> kListBinShift], 1u);
    if (!has_top_k) own += weight_of(logit, s);
  });
  uint64_t total = 0;
  (void)sum_before(shared, own, &total);

  // ---- The stretch where enough are reached: exactly for top_k, and for top_p as if all weighed what the last do
  const int first = 2 * static_cast<int>(threadIdx.x);
  const uint64_t counts[2] = {shared.counts[first], shared.counts[first + 1]};
  uint64_t num_all = 0;
  uint64_t num_before = sum_before(shared, counts[0] + counts[1], &num_all);
  uint64_t amounts[2] = {counts[0], counts[1]};
  uint64_t wanted = static_cast<uint64_t>(row.top_k);
  if (!has_top_k) {
    wanted = mass_of_share(total, row.top_p);
    for (int b = 0; b < 2; ++b) {
      const float x = -static_cast<float>(first + b + 1) * 0.015625f;
      amounts[b] *= static_cast<uint64_t>(__expf(x) * 0.9999f * kTokenWeightScale);
    }
  }
  uint64_t all = 0;
  uint64_t before = sum_before(shared, amounts[0] + amounts[1], &all);
  for (int b = 0; b < 2; ++b) {
    num_before += counts[b];
    if (before < wanted && before + amounts[b] >= wanted) shared.place = first + b;
    before += amounts[b];
    if (num_before > kMostListed && num_before - counts[b] <= kMostListed) shared.fitting = first + b - 1;
  }
  __syncthreads();
  const int last_bin = min(shared.place, shared.fitting);
  if (last_bin < 0 || (has_top_k && shared.place > shared.fitting)) {
    __syncthreads();
    return -1;
  }

  // ---- The list
  const uint32_t floor_key = kHighestTokenKey - ((static_cast<uint32_t>(last_bin + 1) << kListBinShift) - 1);
  __syncthreads();
  for_own_tokens<kThreads>(logits, size, [&](float logit, int i) {
    const uint32_t key = key_of(logit, s);
    if (key < floor_key) return;
    shared.order[atomicAdd(&shared.num_listed, 1)] = uint64_t{key} << 32 | (~static_cast<uint32_t>(i));
  });
  __syncthreads();
  int count = shared.num_listed;
  sort_list(shared, count);
  sum_list(shared, logits, s, count);
  if (has_top_k) {
    count = min(count, row.top_k);
    total = shared.running[count - 1];
  }
  if (row.top_p < 1.0f) {
    const int place = first_to_reach(shared, count, mass_of_share(total, row.top_p));
    if (place == count) return -1;
    count = place + 1;
    total = shared.running[count - 1];
  }

  // ---- The draw, in the order of ids
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) shared.order[i] &= 0xffffffffu;
  sort_list(shared, count);
  sum_list(shared, logits, s, count);
  const int place = first_to_reach(shared, count, __umul64hi(total, row.uniform_bits << 11) + 1);
  return listed_id(shared.order[place]);
}

// ---- Any number of them
// ----------------------------------------------------------------------------------------------

// Of keys from floor_key on (at it, ids before floor_end), the least that must stay so that those above and at it reach
// `wanted` (tokens, or weight). Returns how much of `wanted` those above it leave over, for its own tokens, in the
// order of their ids.
template <bool IsMass>
__device__ uint32_t select(Shared& shared, const float* logits, int size, const Scaled& s, uint32_t floor_key,
                           int floor_end, uint64_t wanted, uint64_t* left_over) {
  uint32_t prefix = 0;
  uint64_t left = wanted;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = static_cast<int>(threadIdx.x); i < kParts * kBins; i += kThreads)
      shared.parts[i / kBins][i % kBins] = 0;
    __syncthreads();
    for_own_tokens<kThreads>(logits, size, [&](float logit, int i) {
      const uint32_t key = key_of(logit, s);
      if (key < floor_key || (key == floor_key && i >= floor_end)) return;
      if (shift < 24 && (key >> (shift + 8)) != (prefix >> (shift + 8))) return;
      const uint64_t amount = IsMass ? weight_of(logit, s) : 1;
#pragma unroll
      for (int part = 0; part < (IsMass ? kParts : 1); ++part) {
        const uint32_t bits = static_cast<uint32_t>(amount >> (part * kPartBits)) & ((1u << kPartBits) - 1);
        if (bits != 0) atomicAdd(&shared.parts[part][key >> shift & 255], bits);
      }
    });
    __syncthreads();
    // A thread a bin, the highest first.
    const int bin = kBins - 1 - static_cast<int>(threadIdx.x);
    uint64_t own = 0;
    for (int part = 0; part < kParts && bin >= 0; ++part)
      own += uint64_t{shared.parts[part][bin]} << (part * kPartBits);
    uint64_t all = 0;
    const uint64_t above = sum_before(shared, own, &all);
    // Where all together do not reach it, the lowest stays.
    if (own > 0 && above < left && (above + own >= left || above + own == all)) {
      shared.prefix = prefix | static_cast<uint32_t>(bin) << shift;
      shared.left = left - above;
    }
    __syncthreads();
    prefix = shared.prefix;
    left = shared.left;
    __syncthreads();
  }
  *left_over = left;
  return prefix;
}

// Of the tokens whose key is `key`, in the order of their ids, the first id that is no longer needed: those before it
// use up `left`, a count or a weight.
template <bool IsMass>
__device__ int find_end_of_ties(Shared& shared, const float* logits, int size, const Scaled& s, uint32_t key,
                                uint64_t left) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int per_warp = (size + kThreads - 1) / kThreads * 32;
  const int begin = min(size, warp * per_warp);
  const int end = min(size, begin + per_warp);
  uint64_t own = 0;
  for (int i = begin + lane; i < end; i += 32) {
    if (key_of(logits[i], s) == key) own += IsMass ? weight_of(logits[i], s) : 1;
  }
  own = warp_sum_u64(own);
  if (lane == 0) shared.sums[warp] = own;
  if (threadIdx.x == 0) shared.prefix = static_cast<uint32_t>(size);
  __syncthreads();
  uint64_t before = 0;
  for (int w = 0; w < warp; ++w) before += shared.sums[w];
  if (before < left && before + own >= left) {
    for (int first = begin; before < left; first += 32) {
      const int i = first + lane;
      const bool is_tie = i < end && key_of(logits[i], s) == key;
      uint64_t running = !is_tie ? 0 : IsMass ? weight_of(logits[i], s) : 1;
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const uint64_t other = __shfl_up_sync(0xffffffffu, running, offset);
        if (lane >= offset) running += other;
      }
      const unsigned reached = __ballot_sync(0xffffffffu, before + running >= left);
      if (reached != 0 && lane == 0) shared.prefix = static_cast<uint32_t>(first + __ffs(static_cast<int>(reached)));
      before += __shfl_sync(0xffffffffu, running, 31);
    }
  }
  __syncthreads();
  const int found = static_cast<int>(shared.prefix);
  __syncthreads();
  return found;
}

}  // namespace quire::cuda::sampling

// From rows of logits to tokens: the op `sample` of ops.h, equal to the plain loops of ops/sample_rows.cc bit for bit.
//
// Grid: a block of 1024 threads a row. Weights are integers, so sums are exact in any order. Each warp owns a run of
// neighbouring tokens, which gives the running sum its order. A row is read once for its greatest logit, and if it is
// drawn from three times more; top_k and top_p take four readings each, which find a threshold 8 bits at a time by a
// histogram in shared memory. Readings after the first come from the L2 cache, where 40 rows of 128k tokens fit.
#include "ops/cuda/sampling.h"

#include "ops/cuda/cuda_support.h"
#include "ops/cuda/token_weights.cuh"

namespace quire::cuda {

namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kBins = 256;

struct Shared {
  unsigned long long bins[kBins];
  uint64_t sums[kWarps];
  float bests[kWarps];
  int32_t best_ids[kWarps];
  int spoiled;
  uint32_t prefix;
  uint64_t left;
};

// Of keys from floor_key on (at it, ids before floor_end), the least that must stay so that those above and at it reach
// `wanted` (tokens, or weight). Returns how much of `wanted` those above it leave over, for its own tokens, in the
// order of their ids.
template <bool IsMass>
__device__ uint32_t select(Shared& shared, const float* logits, int size, const Scaled& s, uint32_t floor_key,
                           int floor_end, uint64_t wanted, uint64_t* left_over) {
  uint32_t prefix = 0;
  uint64_t left = wanted;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) shared.bins[i] = 0;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads) {
      const uint32_t key = key_of(logits[i], s);
      if (key < floor_key || (key == floor_key && i >= floor_end)) continue;
      if (shift < 24 && (key >> (shift + 8)) != (prefix >> (shift + 8))) continue;
      atomicAdd(&shared.bins[key >> shift & 255], IsMass ? weight_of(logits[i], s) : 1ull);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int bin = kBins - 1;
      uint64_t above = 0;
      int lowest = bin;
      for (; bin >= 0; --bin) {
        if (shared.bins[bin] == 0) continue;
        lowest = bin;
        if (above + shared.bins[bin] >= left) break;
        above += shared.bins[bin];
      }
      // Where all together do not reach it, the lowest stays.
      if (bin < 0) above -= shared.bins[lowest];
      shared.prefix = prefix | static_cast<uint32_t>(lowest) << shift;
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
  if (lane == 0 && before < left && before + own >= left) {
    for (int i = begin; i < end; ++i) {
      if (key_of(logits[i], s) != key) continue;
      before += IsMass ? weight_of(logits[i], s) : 1;
      if (before >= left) {
        shared.prefix = static_cast<uint32_t>(i + 1);
        break;
      }
    }
  }
  __syncthreads();
  const int found = static_cast<int>(shared.prefix);
  __syncthreads();
  return found;
}

__global__ void __launch_bounds__(kThreads)
    sample_kernel(int32_t* ids, const float* all_logits, int64_t stride, int size, const SamplingRow* rows) {
  __shared__ Shared shared;
  const float* logits = all_logits + blockIdx.x * stride;
  const SamplingRow row = rows[blockIdx.x];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (row.num_token_ids < size) size = row.num_token_ids;

  // ---- The greatest logit, and whether all are numbers
  if (threadIdx.x == 0) shared.spoiled = 0;
  __syncthreads();
  float best = -INFINITY;
  int32_t best_id = INT32_MAX;
  bool is_spoiled = false;
  const auto take = [&](float logit, int i) {
    is_spoiled = is_spoiled || !(logit < INFINITY);
    if (logit > best || (logit == best && i < best_id)) {
      best = logit;
      best_id = i;
    }
  };
  if (reinterpret_cast<uintptr_t>(logits) % 16 == 0) {
    const int num_vectors = size / 4;
    for (int v = static_cast<int>(threadIdx.x); v < num_vectors; v += kThreads) {
      const float4 x = reinterpret_cast<const float4*>(logits)[v];
      take(x.x, 4 * v);
      take(x.y, 4 * v + 1);
      take(x.z, 4 * v + 2);
      take(x.w, 4 * v + 3);
    }
    for (int i = num_vectors * 4 + static_cast<int>(threadIdx.x); i < size; i += kThreads) take(logits[i], i);
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads) take(logits[i], i);
  }
  const auto keep_better = [&](float other, int32_t other_id) {
    if (other > best || (other == best && other_id < best_id)) {
      best = other;
      best_id = other_id;
    }
  };
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    keep_better(__shfl_xor_sync(0xffffffffu, best, offset), __shfl_xor_sync(0xffffffffu, best_id, offset));
  }
  if (is_spoiled) shared.spoiled = 1;
  if (lane == 0) {
    shared.bests[warp] = best;
    shared.best_ids[warp] = best_id;
  }
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) keep_better(shared.bests[w], shared.best_ids[w]);
  if (shared.spoiled != 0 || best == -INFINITY) {
    if (threadIdx.x == 0) ids[blockIdx.x] = -1;
    return;
  }
  if (row.inverse_temperature <= 0) {
    if (threadIdx.x == 0) ids[blockIdx.x] = best_id;
    return;
  }

  // ---- Who may be drawn: keys above `key`, and those at it before `end_of_ties`
  const Scaled s{best, row.inverse_temperature, row.lowest};
  uint32_t key = 1;
  int end_of_ties = size;
  if (row.top_k > 0 && row.top_k < size) {
    uint64_t left = 0;
    key = select<false>(shared, logits, size, s, key, end_of_ties, static_cast<uint64_t>(row.top_k), &left);
    end_of_ties = find_end_of_ties<false>(shared, logits, size, s, key, left);
  }
  const int per_warp = (size + kThreads - 1) / kThreads * 32;
  const int begin = min(size, warp * per_warp);
  const int end = min(size, begin + per_warp);
  const auto sum_candidates = [&]() {
    uint64_t own = 0;
    for (int i = begin + lane; i < end; i += 32) {
      const uint32_t own_key = key_of(logits[i], s);
      if (own_key > key || (own_key == key && i < end_of_ties)) own += weight_of(logits[i], s);
    }
    own = warp_sum_u64(own);
    if (lane == 0) shared.sums[warp] = own;
    __syncthreads();
    uint64_t total = 0;
    for (int w = 0; w < kWarps; ++w) total += shared.sums[w];
    return total;
  };
  uint64_t total = sum_candidates();
  if (row.top_p < 1.0f) {
    const uint64_t mass = mass_of_share(total, row.top_p);
    uint64_t left = 0;
    const uint32_t top_p_key = select<true>(shared, logits, size, s, key, end_of_ties, mass, &left);
    // At the same key, both ends hold.
    const int top_p_end = find_end_of_ties<true>(shared, logits, size, s, top_p_key, left);
    end_of_ties = top_p_key == key ? min(end_of_ties, top_p_end) : top_p_end;
    key = top_p_key;
    total = sum_candidates();
  }

  // ---- The token at which the running sum passes the draw
  const uint64_t target = __umul64hi(total, row.uniform_bits << 11);
  uint64_t before = 0;
  for (int w = 0; w < warp; ++w) before += shared.sums[w];
  if (target < before || target >= before + shared.sums[warp]) return;
  for (int first = begin; first < end; first += 32) {
    const int i = first + lane;
    uint64_t weight = 0;
    if (i < end) {
      const uint32_t own_key = key_of(logits[i], s);
      if (own_key > key || (own_key == key && i < end_of_ties)) weight = weight_of(logits[i], s);
    }
    uint64_t running = weight;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const uint64_t other = __shfl_up_sync(0xffffffffu, running, offset);
      if (lane >= offset) running += other;
    }
    const unsigned passed = __ballot_sync(0xffffffffu, before + running > target);
    if (passed != 0) {
      if (lane == 0) ids[blockIdx.x] = first + __ffs(static_cast<int>(passed)) - 1;
      return;
    }
    before += __shfl_sync(0xffffffffu, running, 31);
  }
}

}  // namespace

void sample(cudaStream_t stream, const TensorView& ids, const ConstTensorView& logits, const SamplingRow* rows) {
  const int64_t num_rows = logits.size(0);
  if (num_rows == 0) return;
  sample_kernel<<<static_cast<unsigned>(num_rows), kThreads, 0, stream>>>(
      ids.data<int32_t>(), logits.data<float>(), logits.stride(0), static_cast<int>(logits.size(1)), rows);
  CUDA_CHECK_LAUNCH();
}

}  // namespace quire::cuda

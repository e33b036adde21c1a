// What comes before a token is drawn and after: the ops `adjust_logits` and `logprobs` of ops.h, equal to the plain
// loops of ops/logits_rows.cc bit for bit.
//
// adjust_logits: a block a slice of a row, which keeps, penalizes, biases and masks its own tokens one after the other.
// Lists are read by all blocks of a row. A mask is read at four tokens a thread, the logits only where bits are
// missing.
//
// logprobs: a block of 1024 threads a row, which reads it twice. The first time each thread finds its greatest logit.
// The num_top-th greatest among 256 groups of threads is a lower bound of the num_top-th greatest logit, and only
// threads of num_top groups have any at or above it: with the second reading, which sums the weights and counts the
// better tokens, few come by to be ranked. Weights are integers and tokens are ordered by logit and id, so results do
// not depend on who comes first.
#include "ops/cuda/logits.h"

#include "ops/cuda/cuda_support.h"
#include "ops/cuda/token_weights.cuh"

namespace quire::cuda {

namespace {

// ---- adjust_logits
// ---------------------------------------------------------------------------------------------------

constexpr int kAdjustThreads = 512;
constexpr int kSlice = 16384;  // tokens; whole words of a mask

__device__ __forceinline__ float penalize(float logit, const Penalties& penalties, int32_t num_in_output) {
  const float divisor = logit > 0.0f ? penalties.repetition : 1.0f;
  const float factor = logit > 0.0f ? 1.0f : penalties.repetition;
  const float presence = num_in_output > 0 ? penalties.presence : 0.0f;
  const float loss = __fadd_rn(__fmul_rn(penalties.frequency, static_cast<float>(num_in_output)), presence);
  return __fsub_rn(__fmul_rn(__fdiv_rn(logit, divisor), factor), loss);
}

__device__ __forceinline__ float mask(float logit, uint32_t word, int bit) {
  return (word >> bit & 1u) != 0 ? logit : masked_logit(logit);
}

struct AdjustArgs {
  float* logits;
  int64_t stride;
  int size;
  LogitsAdjustments adjustments;
  float* kept;
  int64_t kept_stride;
};

__device__ void mask_slice(float* row, const uint32_t* words, int begin, int end) {
  int scalar_begin = begin;
  if (reinterpret_cast<uintptr_t>(row) % 16 == 0) {
    float4* const vectors = reinterpret_cast<float4*>(row);
#pragma unroll 4
    for (int v = begin / 4 + static_cast<int>(threadIdx.x); v < end / 4; v += kAdjustThreads) {
      const int bit = v % 8 * 4;
      const uint32_t word = words[v / 8];
      if ((word >> bit & 15u) == 15u) continue;
      const float4 x = vectors[v];
      vectors[v] = make_float4(mask(x.x, word, bit), mask(x.y, word, bit + 1), mask(x.z, word, bit + 2),
                               mask(x.w, word, bit + 3));
    }
    scalar_begin = end / 4 * 4;
  }
  for (int t = scalar_begin + static_cast<int>(threadIdx.x); t < end; t += kAdjustThreads) {
    const uint32_t word = words[t / 32];
    if ((word >> (t % 32) & 1u) == 0) row[t] = masked_logit(row[t]);
  }
}

__global__ void __launch_bounds__(kAdjustThreads) adjust_kernel(const AdjustArgs args) {
  const LogitsAdjustments& all = args.adjustments;
  const LogitsAdjustment own = all.rows[blockIdx.x];
  float* const row = args.logits + own.row * args.stride;
  const int begin = static_cast<int>(blockIdx.y) * kSlice;
  const int end = min(args.size, begin + kSlice);
  const int thread = static_cast<int>(threadIdx.x);
  if (own.kept_row >= 0) {
    float* const kept = args.kept + own.kept_row * args.kept_stride;
    int copied = begin;
    if ((reinterpret_cast<uintptr_t>(row) | reinterpret_cast<uintptr_t>(kept)) % 16 == 0) {
#pragma unroll 4
      for (int v = begin / 4 + thread; v < end / 4; v += kAdjustThreads) {
        reinterpret_cast<float4*>(kept)[v] = reinterpret_cast<const float4*>(row)[v];
      }
      copied = end / 4 * 4;
    }
    for (int t = copied + thread; t < end; t += kAdjustThreads) kept[t] = row[t];
    __syncthreads();
  }
  for (int i = thread; i < own.num_penalized; i += kAdjustThreads) {
    const PenalizedToken entry = all.penalized[own.first_penalized + i];
    if (entry.token_id < begin || entry.token_id >= end) continue;
    row[entry.token_id] = penalize(row[entry.token_id], own.penalties, entry.num_in_output);
  }
  if (own.num_biases > 0) {
    __syncthreads();
    const TokenBias* const biases = all.biases + own.first_bias;
    for (int i = thread; i < own.num_biases; i += kAdjustThreads) {
      const int32_t token = biases[i].token_id;
      // The first of a token's biases stands for all of them.
      if (token < begin || token >= end || (i > 0 && biases[i - 1].token_id == token)) continue;
      float logit = row[token];
      for (int j = i; j < own.num_biases && biases[j].token_id == token; ++j) logit = __fadd_rn(logit, biases[j].bias);
      row[token] = logit;
    }
  }
  if (own.first_mask_word >= 0) {
    __syncthreads();
    mask_slice(row, all.mask_words + own.first_mask_word, begin, end);
  }
}

// ---- logprobs
// --------------------------------------------------------------------------------------------------------

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kGroups = 256;
constexpr int kMostCandidates = 2048;
static_assert(kMostTopTokens <= kGroups && kMostTopTokens < kMostCandidates);

// Orders tokens by their logits, of equal ones the lower id first: no two tokens have the same. A zero has no sign.
__device__ __forceinline__ uint64_t order_of(float logit, int32_t id) {
  const uint32_t bits = __float_as_uint(__fadd_rn(logit, 0.0f));
  const uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | (~static_cast<uint32_t>(id));
}

struct Shared {
  uint64_t groups[kGroups];
  uint64_t candidates[kMostCandidates];
  uint64_t sums[kWarps];
  int ranks[kWarps];
  float bests[kWarps];
  uint64_t threshold;
  int num_candidates;
};

// The place of values[i] among `count` of them, the greatest first.
__device__ __forceinline__ int place_of(const uint64_t* values, int count, int i) {
  const uint64_t own = values[i];
  int place = 0;
  for (int j = 0; j < count; ++j) place += values[j] > own || (values[j] == own && j < i) ? 1 : 0;
  return place;
}

// The place-th greatest, for all threads. `threshold` is shared memory.
__device__ uint64_t nth_greatest(const uint64_t* values, int count, int place, uint64_t* threshold) {
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    if (place_of(values, count, i) == place) *threshold = values[i];
  }
  __syncthreads();
  return *threshold;
}

struct LogprobsArgs {
  const float* logits;
  int64_t stride;
  int size;
  LogprobsCall call;
  const float* kept;
  int64_t kept_stride;
};

__global__ void __launch_bounds__(kThreads) logprobs_kernel(const LogprobsArgs args) {
  __shared__ Shared shared;
  const LogprobsRow row = args.call.rows[blockIdx.x];
  const float* const logits =
      row.kept_row >= 0 ? args.kept + row.kept_row * args.kept_stride : args.logits + row.row * args.stride;
  const int size = min(args.size, row.num_token_ids);
  int32_t drawn_id = args.call.ids[row.row];
  if (drawn_id >= 0 && row.given_id >= 0) drawn_id = row.given_id;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (drawn_id < 0 || drawn_id >= size) {
    if (threadIdx.x == 0) args.call.results[blockIdx.x] = LogprobsResult{};
    return;
  }

  // ---- The greatest logit, and a lower bound of those that are told
  float best = -INFINITY;
  int32_t best_id = INT32_MAX;
  for_own_tokens<kThreads>(logits, size, [&](float logit, int i) {
    if (!(logit > best)) return;
    best = logit;
    best_id = i;
  });
  uint64_t group = order_of(best, best_id);
#pragma unroll
  for (int offset = 1; offset < kThreads / kGroups; offset *= 2) {
    const uint64_t other = __shfl_xor_sync(0xffffffffu, group, offset);
    if (other > group) group = other;
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, offset));
  if (lane == 0) shared.bests[warp] = best;
  if (threadIdx.x % (kThreads / kGroups) == 0) shared.groups[threadIdx.x / (kThreads / kGroups)] = group;
  if (threadIdx.x == 0) shared.num_candidates = 0;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) best = fmaxf(best, shared.bests[w]);
  const bool has_top = row.num_top > 0;
  uint64_t threshold = 0;
  if (has_top) threshold = nth_greatest(shared.groups, kGroups, row.num_top - 1, &shared.threshold);

  // ---- Sums, the rank of what was drawn, and all that reach the bound
  const auto collect = [&](float logit, int i) {
    if (!(logit > -INFINITY)) return;
    const uint64_t order = order_of(logit, i);
    if (order < threshold) return;
    const int place = atomicAdd(&shared.num_candidates, 1);
    if (place < kMostCandidates) shared.candidates[place] = order;
  };
  const Scaled s{best, row.scale, kLowestX};
  const float drawn = logits[drawn_id];
  uint64_t total = 0;
  int num_better = 0;
  for_own_tokens<kThreads>(logits, size, [&](float logit, int i) {
    total += weight_of(logit, s);
    num_better += logit > drawn || (logit == drawn && i < drawn_id) ? 1 : 0;
    if (has_top) collect(logit, i);
  });
  total = warp_sum_u64(total);
  num_better = __reduce_add_sync(0xffffffffu, num_better);
  if (lane == 0) {
    shared.sums[warp] = total;
    shared.ranks[warp] = num_better;
  }
  __syncthreads();
  // Too many for the room: among those that found one, the num_top-th greatest is a better bound.
  while (shared.num_candidates > kMostCandidates) {
    threshold = nth_greatest(shared.candidates, kMostCandidates, row.num_top - 1, &shared.threshold);
    if (threadIdx.x == 0) shared.num_candidates = 0;
    __syncthreads();
    for_own_tokens<kThreads>(logits, size, collect);
    __syncthreads();
  }

  const int num_candidates = shared.num_candidates;
  TopToken* const top = args.call.top + int64_t{blockIdx.x} * args.call.most_top;
  for (int c = static_cast<int>(threadIdx.x); c < num_candidates; c += kThreads) {
    const int place = place_of(shared.candidates, num_candidates, c);
    if (place >= row.num_top) continue;
    const int32_t id = static_cast<int32_t>(~static_cast<uint32_t>(shared.candidates[c]));
    top[place] = {id, logits[id]};
  }
  if (threadIdx.x == 0) {
    LogprobsResult result;
    result.best = best;
    result.drawn = drawn;
    result.rank = 1;
    for (int w = 0; w < kWarps; ++w) {
      result.total += shared.sums[w];
      result.rank += shared.ranks[w];
    }
    result.num_top = min(num_candidates, row.num_top);
    args.call.results[blockIdx.x] = result;
  }
}

}  // namespace

void adjust_logits(cudaStream_t stream, const TensorView& logits, const LogitsAdjustments& adjustments) {
  if (adjustments.num_rows == 0) return;
  AdjustArgs args{logits.data<float>(), logits.stride(0), static_cast<int>(logits.size(1)), adjustments, nullptr, 0};
  if (adjustments.kept.rank() == 2) {
    args.kept = adjustments.kept.data<float>();
    args.kept_stride = adjustments.kept.stride(0);
  }
  const dim3 grid(static_cast<unsigned>(adjustments.num_rows), static_cast<unsigned>(ceil_div(args.size, kSlice)));
  adjust_kernel<<<grid, kAdjustThreads, 0, stream>>>(args);
  CUDA_CHECK_LAUNCH();
}

void logprobs(cudaStream_t stream, const ConstTensorView& logits, const LogprobsCall& call) {
  if (call.num_rows == 0) return;
  LogprobsArgs args{logits.data<float>(), logits.stride(0), static_cast<int>(logits.size(1)), call, nullptr, 0};
  if (call.kept.rank() == 2) {
    args.kept = call.kept.data<float>();
    args.kept_stride = call.kept.stride(0);
  }
  logprobs_kernel<<<static_cast<unsigned>(call.num_rows), kThreads, 0, stream>>>(args);
  CUDA_CHECK_LAUNCH();
}

}  // namespace quire::cuda

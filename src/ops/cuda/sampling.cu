// From rows of logits to tokens: the op `sample` of ops.h, equal to the plain loops of ops/sample_rows.cc bit for bit.
//
// Grid: a block of 1024 threads a row. Weights are integers, so sums are exact in any order. Each warp owns a run of
// neighbouring tokens, which gives the running sum its order. A row is read once for its greatest logit, and if it is
// drawn from once more for the sums; with top_k or top_p twice, and more often where they leave many tokens
// (sampling_cuts.cuh). Readings after the first come from the L2 cache, where 40 rows of 128k tokens fit.
#include "ops/cuda/sampling.h"

#include "ops/cuda/cuda_support.h"
#include "ops/cuda/sampling_cuts.cuh"

namespace quire::cuda {

namespace {

using namespace sampling;

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
  for_own_tokens<kThreads>(logits, size, take);
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
  if ((row.top_k > 0 && row.top_k < size) || row.top_p < 1.0f) {
    const int32_t id = draw_from_list(shared, logits, size, s, row);
    if (id >= 0) {
      if (threadIdx.x == 0) ids[blockIdx.x] = id;
      return;
    }
  }
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
  const auto weight_if_kept = [&](int i) {
    const uint32_t own_key = key_of(logits[i], s);
    return own_key > key || (own_key == key && i < end_of_ties) ? weight_of(logits[i], s) : 0;
  };
  const auto sum_candidates = [&]() {
    uint64_t own = 0;
    for (int i = begin + lane; i < end; i += 32) own += weight_if_kept(i);
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

  // ---- The token at which the running sum passes the draw: first the warp whose tokens they are, then all threads
  // look
  const uint64_t target = __umul64hi(total, row.uniform_bits << 11);
  uint64_t before = 0;
  int owner = 0;
  while (before + shared.sums[owner] <= target) before += shared.sums[owner++];
  const int per_thread = (per_warp + kThreads - 1) / kThreads;
  const int owner_end = min(size, (owner + 1) * per_warp);
  const int own_begin = min(owner_end, owner * per_warp + static_cast<int>(threadIdx.x) * per_thread);
  const int own_end = min(owner_end, own_begin + per_thread);
  uint64_t own = 0;
  for (int i = own_begin; i < own_end; ++i) own += weight_if_kept(i);
  uint64_t of_owner = 0;
  before += sum_before(shared, own, &of_owner);
  if (target < before || target >= before + own) return;
  int i = own_begin;
  for (; before + weight_if_kept(i) <= target; ++i) before += weight_if_kept(i);
  ids[blockIdx.x] = i;
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

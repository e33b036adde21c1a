// Attention over pages for every dtype, head_dim, page size and stride: slow and complete. A block of 128 threads
// computes one query of one head. Keys are taken in chunks of 128 at absolute positions: a thread scores a key, then a
// thread sums an element of V over the chunk; the running maximum, weight and sums are those of FlashAttention.
#include <algorithm>

#include "ops/cuda/attention.h"
#include "ops/cuda/cuda_support.h"
#include "ops/cuda/device_dtype.cuh"

namespace quire::cuda {

namespace {

constexpr int kThreads = 128;

struct Args {
  int64_t q_token_stride;
  int64_t q_head_stride;
  int64_t out_token_stride;
  int64_t out_head_stride;
  PagedKv kv;
  int num_heads;
  int num_sequences;
  const int32_t* query_starts;
  const int32_t* context_lengths;
  const int32_t* page_table;
  int64_t page_table_stride;
  float scale;
  float soft_cap;
  int window;
  bool is_causal;
  bool takes_decode;             // sequences with one query, else those with more
  const uint8_t* takes_prefill;  // or null; of each sequence, instead of the number of its queries
};

// The largest or the sum over the block, known to all threads.
__device__ float block_max(float x, float* shared) {
  x = warp_max(x);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = shared[0];
  for (int warp = 1; warp < kThreads / 32; ++warp) x = fmaxf(x, shared[warp]);
  __syncthreads();
  return x;
}
__device__ float block_sum(float x, float* shared) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
  for (int warp = 0; warp < kThreads / 32; ++warp) x += shared[warp];
  __syncthreads();
  return x;
}

// Grid: x tokens, y heads. Shared memory: q and the sums, head_dim floats each.
template <typename T>
__global__ void attention_kernel(T* out, const T* q, Args args) {
  extern __shared__ float dynamic_shared[];
  __shared__ float weights[kThreads];
  __shared__ float reduction[kThreads / 32];
  const PagedKv& kv = args.kv;
  float* query = dynamic_shared;
  float* sums = dynamic_shared + kv.head_dim;
  const int token = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  int sequence = 0;
  while (sequence < args.num_sequences && args.query_starts[sequence + 1] <= token) ++sequence;
  if (sequence == args.num_sequences) return;
  const int num_queries = args.query_starts[sequence + 1] - args.query_starts[sequence];
  const bool is_decode = args.takes_prefill != nullptr ? args.takes_prefill[sequence] == 0 : num_queries == 1;
  if (is_decode != args.takes_decode) return;

  // The last key that is seen.
  const int position = args.context_lengths[sequence] - (args.is_causal ? args.query_starts[sequence + 1] - token : 1);
  const int first_key = args.window > 0 ? max(0, position - args.window + 1) : 0;
  const int32_t* pages = args.page_table + sequence * args.page_table_stride;
  const int kv_head = head * kv.num_kv_heads / args.num_heads;
  for (int d = threadIdx.x; d < kv.head_dim; d += kThreads) {
    query[d] = to_float(q[token * args.q_token_stride + head * args.q_head_stride + d]);
    sums[d] = 0;
  }
  __syncthreads();

  const auto offset_of = [&](int key) {
    return pages[key / kv.page_size] * kv.page_stride + kv_head * kv.head_stride + key % kv.page_size * kv.token_stride;
  };
  // Of a cache that has scales.
  const auto scale_of = [&](const void* scales, int key) {
    if (!has_kv_scales(kv.dtype)) return 1.0f;
    return load_as_float(
        scales, DType::kBF16,
        pages[key / kv.page_size] * kv.scale_page_stride + kv_head * kv.page_size + key % kv.page_size);
  };
  float largest = -INFINITY;
  float total = 0;
  for (int chunk = first_key / kThreads * kThreads; chunk <= position; chunk += kThreads) {
    const int key = chunk + static_cast<int>(threadIdx.x);
    const bool is_seen = first_key <= key && key <= position;
    float score = -INFINITY;
    if (is_seen) {
      const int64_t offset = offset_of(key);
      float sum = 0;
      for (int d = 0; d < kv.head_dim; ++d) sum += query[d] * load_as_float(kv.k, kv.dtype, offset + d);
      score = args.scale * sum * scale_of(kv.k_scales, key);
      if (args.soft_cap > 0) score = args.soft_cap * tanhf(score / args.soft_cap);
    }
    const float new_largest = fmaxf(largest, block_max(score, reduction));
    // Where all scores are NaN the maximum stays -inf; the weights are NaN all the same.
    const float correction = largest == -INFINITY ? 0.0f : expf(largest - new_largest);
    const float weight = is_seen ? expf(score - new_largest) : 0.0f;
    weights[threadIdx.x] = weight;
    total = total * correction + block_sum(weight, reduction);
    largest = new_largest;
    const int begin = max(first_key - chunk, 0);
    const int end = min(position - chunk + 1, kThreads);
    for (int d = threadIdx.x; d < kv.head_dim; d += kThreads) {
      float sum = sums[d] * correction;
      for (int i = begin; i < end; ++i) {
        sum += weights[i] * scale_of(kv.v_scales, chunk + i) * load_as_float(kv.v, kv.dtype, offset_of(chunk + i) + d);
      }
      sums[d] = sum;
    }
    __syncthreads();
  }
  for (int d = threadIdx.x; d < kv.head_dim; d += kThreads) {
    out[token * args.out_token_stride + head * args.out_head_stride + d] =
        from_float<T>(total == 0 ? 0.0f : sums[d] / total);
  }
}

}  // namespace

void attention_any_shape(const AttentionCall& call) {
  const AttentionBatch& batch = call.batch;
  const Args args{.q_token_stride = call.q.stride(0),
                  .q_head_stride = call.q.stride(1),
                  .out_token_stride = call.out.stride(0),
                  .out_head_stride = call.out.stride(1),
                  .kv = call.kv,
                  .num_heads = static_cast<int>(call.q.size(1)),
                  .num_sequences = batch.num_sequences,
                  .query_starts = batch.query_starts.data<int32_t>(),
                  .context_lengths = batch.context_lengths.data<int32_t>(),
                  .page_table = batch.page_table.data<int32_t>(),
                  .page_table_stride = batch.page_table.stride(0),
                  .scale = call.params.scale,
                  .soft_cap = call.params.soft_cap,
                  .window = call.params.window,
                  .is_causal = call.params.is_causal,
                  .takes_decode = call.part == StepPart::kDecode,
                  .takes_prefill = static_cast<const uint8_t*>(call.plan.takes_prefill.data())};
  const dim3 grid(static_cast<unsigned>(batch.num_tokens), static_cast<unsigned>(args.num_heads));
  const size_t shared_bytes = 2 * sizeof(float) * static_cast<size_t>(call.kv.head_dim);
  CHECK(shared_bytes <= 47 * 1024);
  dispatch_activation(call.q.dtype(), [&](auto type) {
    using T = decltype(type);
    attention_kernel<T><<<grid, kThreads, shared_bytes, call.stream>>>(static_cast<T*>(call.out.raw_data()),
                                                                       static_cast<const T*>(call.q.raw_data()), args);
  });
  CUDA_CHECK_LAUNCH();
}

}  // namespace quire::cuda

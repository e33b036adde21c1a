// Decode attention: one query a sequence, KV split into chunks (FlashDecoding), straight from the pages.
//
// Grid: (chunk of a sequence, KV head), item by item as the plan lists them. A block's 4 warps take 16 keys each in
// turn. All query heads of a KV head (up to 8) are the 8 columns of one tensor core product, so K and V are read once;
// nothing passes through shared memory on the way: a thread loads 16 bytes of K or V where the instruction wants its
// operand, with the order of d inside a product chosen to fit.
//   scores: Sᵀ (16 keys × 8 heads) = K (16 keys × d) · Qᵀ;  sums: Oᵀ (d × 8 heads) += Vᵀ (d × 16 keys) · Pᵀ
// The limit is the reading of KV: 2 · head_dim · 2 bytes a key and KV head. Softmax in float, base 2; P is rounded to
// the cache's dtype. Chunks of one sequence are merged in ascending order by the block that ends last, so a query's
// bits do not depend on the batch, on page size or on which block that is. Equals the loop of reference_attention.cc.
#include <algorithm>

#include "ops/cuda/attention.h"
#include "ops/cuda/cuda_support.h"
#include "ops/cuda/device_dtype.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/mma.cuh"

namespace quire::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kKeys = 16;  // a warp's step
constexpr int kHeads = 8;  // columns of a product: at most so many query heads a KV head
constexpr float kLog2e = 1.4426950408889634f;

struct Args {
  const void* q;
  int64_t q_token_stride;
  int64_t q_head_stride;
  void* out;
  int64_t out_token_stride;
  int64_t out_head_stride;
  PagedKv kv;
  int group_size;  // query heads a KV head
  int num_heads;
  const DecodeItem* items;
  const int32_t* page_table;
  int64_t page_table_stride;
  float scale;  // times log2(e), unless there is a soft cap
  float soft_cap;
  int window;
  float* partial_sums;
  float* partial_stats;
  int32_t* counters;
};

__device__ __forceinline__ uint32_t half_of(const uint4& x, int i) {
  return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

// One warp's running state for its keys: thread (g, t) has heads 2t and 2t + 1.
template <int D>
struct WarpState {
  float sums[D / 16][4];  // d 8g + j and its partner, of heads 2t and 2t + 1
  float largest[2];       // of the warp, base 2
  float weight[2];        // of the thread's own keys
};

template <int D>
struct Keys {
  uint4 x[D / 32][2];  // of keys g and g + 8: d 32 i + 8t ..
};
template <int D>
struct Values {
  uint4 x[D / 64][4];  // of keys 2t, 2t + 1, 2t + 8, 2t + 9: d 64 i + 8g ..
};

// Slots outside of [begin, end) may hold anything, NaN too: they are never read.
template <typename T, int D>
__device__ __forceinline__ void load_keys(Keys<D>& keys, const T* k, int64_t token_stride, int g, int t, int begin,
                                          int end) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = g + 8 * half;
    const bool is_seen = begin <= key && key < end;
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
      keys.x[i][half] = is_seen ? load_once(k + key * token_stride + 32 * i + 8 * t) : uint4{0, 0, 0, 0};
    }
  }
}
template <typename T, int D>
__device__ __forceinline__ void load_values(Values<D>& values, const T* v, int64_t token_stride, int g, int t,
                                            int begin, int end) {
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    const int key = 2 * t + part % 2 + part / 2 * 8;
    const bool is_seen = begin <= key && key < end;
#pragma unroll
    for (int i = 0; i < D / 64; ++i) {
      values.x[i][part] = is_seen ? load_once(v + key * token_stride + 64 * i + 8 * g) : uint4{0, 0, 0, 0};
    }
  }
}

template <typename T, int D>
__device__ __forceinline__ void score_keys(float (&scores)[4], const Keys<D>& keys, const uint32_t (&query)[D / 8]) {
#pragma unroll
  for (int i = 0; i < D / 32; ++i) {
    const uint4& a = keys.x[i][0];
    const uint4& b = keys.x[i][1];
    mma<T>(scores, {a.x, b.x, a.y, b.y}, query[4 * i], query[4 * i + 1]);
    mma<T>(scores, {a.z, b.z, a.w, b.w}, query[4 * i + 2], query[4 * i + 3]);
  }
}

// Scores become weights, and the state's sums fit the new maximum.
template <int D>
__device__ __forceinline__ void soften(WarpState<D>& state, float (&scores)[4], float scale, float soft_cap, int g,
                                       int begin, int end) {
  float new_largest[2] = {state.largest[0], state.largest[1]};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int key = g + i / 2 * 8;
    float score = scores[i] * scale;
    if (soft_cap > 0) score = soft_cap * tanhf(score) * kLog2e;
    scores[i] = begin <= key && key < end ? score : -INFINITY;
    new_largest[i % 2] = fmaxf(new_largest[i % 2], scores[i]);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2) {
      new_largest[h] = fmaxf(new_largest[h], __shfl_xor_sync(0xffffffffu, new_largest[h], offset));
    }
    // A NaN among the scores spoils the weights, not the maximum, which may stay -inf.
    const float correction = new_largest[h] == -INFINITY ? 0.0f : exp2f(state.largest[h] - new_largest[h]);
    state.largest[h] = new_largest[h];
    state.weight[h] *= correction;
#pragma unroll
    for (int j = 0; j < D / 16; ++j) {
      state.sums[j][h] *= correction;
      state.sums[j][h + 2] *= correction;
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int key = g + i / 2 * 8;
    scores[i] = begin <= key && key < end ? exp2f(scores[i] - new_largest[i % 2]) : 0.0f;
    state.weight[i % 2] += scores[i];
  }
}

template <typename T, int D>
__device__ __forceinline__ void add_values(WarpState<D>& state, const float (&weights)[4], const Values<D>& values) {
  const uint32_t p0 = transpose_8x8(pack_pair<T>(weights[0], weights[1]));
  const uint32_t p1 = transpose_8x8(pack_pair<T>(weights[2], weights[3]));
  // Rows g of product j are d 8g + j; rows g + 8 are 64 more where D is 128, else 4 more.
#pragma unroll
  for (int j = 0; j < D / 16; ++j) {
    const int first = j;  // element of the 8 that a thread loaded
    const int second = D == 128 ? j : j + 4;
    constexpr int kSecondPart = D == 128 ? 1 : 0;
    const auto pair = [&](int part, int element, int low_key) {
      const uint32_t low = half_of(values.x[part][low_key], element / 2);
      const uint32_t high = half_of(values.x[part][low_key + 1], element / 2);
      return __byte_perm(low, high, element % 2 == 0 ? 0x5410 : 0x7632);
    };
    mma<T>(state.sums[j],
           {pair(0, first, 0), pair(kSecondPart, second, 0), pair(0, first, 2), pair(kSecondPart, second, 2)}, p0, p1);
  }
}

// The d that element (j, row half) of a thread stands for.
template <int D>
__device__ __forceinline__ int d_of(int g, int j, int half) {
  return 8 * g + j + half * (D == 128 ? 64 : 4);
}

template <typename T, int D>
__global__ void __launch_bounds__(kThreads, 3) decode_kernel(Args args) {
  __shared__ float shared_sums[kWarps][kHeads][D];
  __shared__ float shared_largest[kWarps][kHeads];
  __shared__ float shared_weight[kWarps][kHeads];
  __shared__ bool is_last;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const PagedKv& kv = args.kv;
  const int kv_head = static_cast<int>(blockIdx.x) % kv.num_kv_heads;
  let_next_start();
  const DecodeItem item = args.items[blockIdx.x / kv.num_kv_heads];
  wait_for_previous();
  if (item.num_chunks == 0) return;
  const int length = item.length;
  const int token = item.token;
  const int first_head = kv_head * args.group_size;
  const int first_key = args.window > 0 ? max(0, length - args.window) : 0;
  const int chunk_begin = max(item.chunk * item.chunk_size, first_key);
  const int chunk_end = min((item.chunk + 1) * item.chunk_size, length);

  // Columns beyond the group's heads are zeros.
  uint32_t query[D / 8];
  const T* q = static_cast<const T*>(args.q) + token * args.q_token_stride +
               (first_head + min(g, args.group_size - 1)) * args.q_head_stride;
#pragma unroll
  for (int i = 0; i < D / 32; ++i) {
    const uint4 x = g < args.group_size ? *reinterpret_cast<const uint4*>(q + 32 * i + 8 * t) : uint4{0, 0, 0, 0};
    query[4 * i] = x.x;
    query[4 * i + 1] = x.y;
    query[4 * i + 2] = x.z;
    query[4 * i + 3] = x.w;
  }

  WarpState<D> state;
#pragma unroll
  for (int j = 0; j < D / 16; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) state.sums[j][i] = 0;
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    state.largest[h] = -INFINITY;
    state.weight[h] = 0;
  }

  // 16 keys at a multiple of 16 stand in one page. The warp's steps are `stride` keys apart; lane i knows the page of
  // step i, and of the 32 after it once those are reached.
  constexpr int kStride = kWarps * kKeys;
  const int32_t* pages = args.page_table + item.sequence * args.page_table_stride;
  const int64_t head_offset = kv_head * kv.head_stride;
  const int warp_begin = chunk_begin / kKeys * kKeys + warp * kKeys;
  const int num_steps = warp_begin < chunk_end ? (chunk_end - warp_begin + kStride - 1) / kStride : 0;
  int known_page = 0;
  const auto offset_of = [&](int step) {
    const int key = warp_begin + step * kStride;
    return __shfl_sync(0xffffffffu, known_page, step % 32) * kv.page_stride + head_offset +
           key % kv.page_size * kv.token_stride;
  };
  const auto learn_pages = [&](int step) {
    const int key = warp_begin + (step + lane) * kStride;
    known_page = key < chunk_end ? pages[key / kv.page_size] : 0;
  };
  Keys<D> keys;
  Values<D> values;
  if (num_steps > 0) {
    learn_pages(0);
    const int64_t offset = offset_of(0);
    load_keys<T, D>(keys, static_cast<const T*>(kv.k) + offset, kv.token_stride, g, t, chunk_begin - warp_begin,
                    chunk_end - warp_begin);
    load_values<T, D>(values, static_cast<const T*>(kv.v) + offset, kv.token_stride, g, t, chunk_begin - warp_begin,
                      chunk_end - warp_begin);
  }
  for (int step = 0; step < num_steps; ++step) {
    const int begin = chunk_begin - warp_begin - step * kStride;
    const int end = chunk_end - warp_begin - step * kStride;
    const bool has_next = step + 1 < num_steps;
    if (has_next && (step + 1) % 32 == 0) learn_pages(step + 1);
    const int64_t next = has_next ? offset_of(step + 1) : 0;
    // The next keys and values are on their way as soon as their registers are free.
    float scores[4] = {};
    score_keys<T, D>(scores, keys, query);
    if (has_next) {
      load_keys<T, D>(keys, static_cast<const T*>(kv.k) + next, kv.token_stride, g, t, 0, end - kStride);
    }
    soften<D>(state, scores, args.scale, args.soft_cap, g, begin, end);
    add_values<T, D>(state, scores, values);
    if (has_next) {
      load_values<T, D>(values, static_cast<const T*>(kv.v) + next, kv.token_stride, g, t, 0, end - kStride);
    }
  }

  // ---- The block's sums, added warp by warp
  // --------------------------------------------------------------------------
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2)
      state.weight[h] += __shfl_xor_sync(0xffffffffu, state.weight[h], offset);
    if (g == 0) {
      shared_largest[warp][2 * t + h] = state.largest[h];
      shared_weight[warp][2 * t + h] = state.weight[h];
    }
  }
  __syncthreads();
  float factor[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float largest = -INFINITY;
    for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, shared_largest[w][2 * t + h]);
    factor[h] = state.largest[h] == -INFINITY ? (state.weight[h] == 0 ? 0.0f : NAN) : exp2f(state.largest[h] - largest);
  }
#pragma unroll
  for (int j = 0; j < D / 16; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      shared_sums[warp][2 * t + i % 2][d_of<D>(g, j, i / 2)] = state.sums[j][i] * factor[i % 2];
    }
  }
  __syncthreads();
  const auto block_sum = [&](int head, int d) {
    float4 sum = *reinterpret_cast<const float4*>(&shared_sums[0][head][d]);
#pragma unroll
    for (int w = 1; w < kWarps; ++w) {
      const float4 part = *reinterpret_cast<const float4*>(&shared_sums[w][head][d]);
      sum = {sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w};
    }
    return sum;
  };
  const auto block_stats = [&](int head, float& largest, float& weight) {
    largest = -INFINITY;
    weight = 0;
    for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, shared_largest[w][head]);
    for (int w = 0; w < kWarps; ++w) {
      const float own = shared_largest[w][head];
      weight += own == -INFINITY ? shared_weight[w][head] : shared_weight[w][head] * exp2f(own - largest);
    }
  };
  T* out = static_cast<T*>(args.out) + token * args.out_token_stride + first_head * args.out_head_stride;
  constexpr int kQuads = D / 4;
  const auto store = [&](int head, int d, const float4& sum, float weight) {
    T* target = out + head * args.out_head_stride + d;
    const float inverse = weight == 0 ? 0.0f : 1.0f / weight;
    target[0] = from_float<T>(sum.x * inverse);
    target[1] = from_float<T>(sum.y * inverse);
    target[2] = from_float<T>(sum.z * inverse);
    target[3] = from_float<T>(sum.w * inverse);
  };
  if (item.num_chunks == 1) {
    for (int i = static_cast<int>(threadIdx.x); i < args.group_size * kQuads; i += kThreads) {
      float largest;
      float weight;
      block_stats(i / kQuads, largest, weight);
      store(i / kQuads, i % kQuads * 4, block_sum(i / kQuads, i % kQuads * 4), weight);
    }
    return;
  }

  // ---- Chunks of a sequence: the block that ends last adds them in ascending order
  // -----------------------------------
  const int64_t first_slot = int64_t{item.sequence} * kMaxDecodeChunks;
  const int last_chunk = (length + item.chunk_size - 1) / item.chunk_size - 1;
  const int chunk_slot = item.chunk - (last_chunk + 1 - item.num_chunks);
  for (int i = static_cast<int>(threadIdx.x); i < args.group_size * kQuads; i += kThreads) {
    const int head = i / kQuads;
    const int64_t slot = (first_slot + chunk_slot) * args.num_heads + first_head + head;
    reinterpret_cast<float4*>(args.partial_sums + slot * D)[i % kQuads] = block_sum(head, i % kQuads * 4);
    if (i % kQuads == 0) {
      float largest;
      float weight;
      block_stats(head, largest, weight);
      reinterpret_cast<float2*>(args.partial_stats)[slot] = {largest, weight};
    }
  }
  __syncthreads();
  int32_t* counter = args.counters + int64_t{item.sequence} * kv.num_kv_heads + kv_head;
  if (threadIdx.x == 0) {
    // Releases what the block's threads have stored before the barrier, and acquires what other blocks released.
    int32_t num_done;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(num_done) : "l"(counter) : "memory");
    is_last = num_done == item.num_chunks - 1;
  }
  __syncthreads();
  if (!is_last) return;
  if (threadIdx.x == 0) *counter = 0;
  for (int i = static_cast<int>(threadIdx.x); i < args.group_size * kQuads; i += kThreads) {
    const int head = i / kQuads;
    const int64_t slot = first_slot * args.num_heads + first_head + head;
    const float2* stats = reinterpret_cast<const float2*>(args.partial_stats);
    float largest = -INFINITY;
    for (int c = 0; c < item.num_chunks; ++c)
      largest = fmaxf(largest, __ldcg(&stats[slot + int64_t{c} * args.num_heads]).x);
    float weight = 0;
    float4 sum = {0, 0, 0, 0};
#pragma unroll 4
    for (int c = 0; c < item.num_chunks; ++c) {
      const int64_t chunk_slot_index = slot + int64_t{c} * args.num_heads;
      const float2 own = __ldcg(&stats[chunk_slot_index]);
      const float4 part =
          __ldcg(reinterpret_cast<const float4*>(args.partial_sums + chunk_slot_index * D) + i % kQuads);
      const float f = own.x == -INFINITY ? (own.y == 0 ? 0.0f : NAN) : exp2f(own.x - largest);
      weight += own.y * f;
      sum.x += part.x * f;
      sum.y += part.y * f;
      sum.z += part.z * f;
      sum.w += part.w * f;
    }
    store(head, i % kQuads * 4, sum, weight);
  }
}

template <typename T, int D>
void launch(const AttentionCall& call, const Args& args) {
  const unsigned grid = static_cast<unsigned>(call.plan.num_decode_items * call.kv.num_kv_heads);
  if (grid == 0) return;
  launch_dependent(call.stream, decode_kernel<T, D>, dim3(grid), dim3(kThreads), args);
}

}  // namespace

bool accepts_decode_split_kv(const AttentionCall& call) {
  const PagedKv& kv = call.kv;
  const auto is_multiple_of_8 = [](int64_t x) { return x % 8 == 0; };
  return call.part == StepPart::kDecode && (kv.dtype == DType::kBF16 || kv.dtype == DType::kF16) &&
         call.q.dtype() == kv.dtype && (kv.head_dim == 128 || kv.head_dim == 64) &&
         call.q.size(1) / kv.num_kv_heads <= kHeads && kv.page_size % kKeys == 0 && is_aligned(kv.k, 16) &&
         is_aligned(kv.v, 16) && is_multiple_of_8(kv.page_stride) && is_multiple_of_8(kv.head_stride) &&
         is_multiple_of_8(kv.token_stride) && is_aligned(call.q.raw_data(), 16) && is_multiple_of_8(call.q.stride(0)) &&
         is_multiple_of_8(call.q.stride(1));
}

void attention_decode_split_kv(const AttentionCall& call) {
  const AttentionBatch& batch = call.batch;
  const CudaAttentionPlan& plan = call.plan;
  const AttentionGeometry& geometry = plan.geometry;
  const int64_t num_slots = int64_t{std::max(1, geometry.max_num_sequences)} * kMaxDecodeChunks * geometry.num_heads;
  float* partials = static_cast<float*>(plan.partials.data());
  const float soft_cap = call.params.soft_cap;
  const Args args{.q = call.q.raw_data(),
                  .q_token_stride = call.q.stride(0),
                  .q_head_stride = call.q.stride(1),
                  .out = call.out.raw_data(),
                  .out_token_stride = call.out.stride(0),
                  .out_head_stride = call.out.stride(1),
                  .kv = call.kv,
                  .group_size = static_cast<int>(call.q.size(1)) / call.kv.num_kv_heads,
                  .num_heads = static_cast<int>(call.q.size(1)),
                  .items = static_cast<const DecodeItem*>(plan.decode_items.data()),
                  .page_table = batch.page_table.data<int32_t>(),
                  .page_table_stride = batch.page_table.stride(0),
                  .scale = soft_cap > 0 ? call.params.scale / soft_cap : call.params.scale * kLog2e,
                  .soft_cap = soft_cap,
                  .window = call.params.window,
                  .partial_sums = partials,
                  .partial_stats = partials + num_slots * geometry.head_dim,
                  .counters = static_cast<int32_t*>(plan.counters.data())};
  if (call.kv.dtype == DType::kBF16) {
    if (call.kv.head_dim == 128) return launch<bf16, 128>(call, args);
    return launch<bf16, 64>(call, args);
  }
  if (call.kv.head_dim == 128) return launch<f16, 128>(call, args);
  return launch<f16, 64>(call, args);
}

}  // namespace quire::cuda

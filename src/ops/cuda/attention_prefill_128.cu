// Prefill attention on Hopper for head_dim 128 over a cache of the queries' dtype: many queries a sequence, K and V
// straight from the pages (FlashAttention-3's shape). attention_prefill.cu has the other shapes; for this one its
// kernel is 10 to 12 % slower from 8,192 tokens on (docs/gpu_kernels.md).
//
// Grid: (tile of 128 queries of a sequence, query head), tiles that see most keys first. A block has three warpgroups.
//   producer:  one warp asks the copy engine for K and V, 128 keys a tile, 16 keys of one page a box, three tiles deep
//   consumers: two warpgroups of 64 queries each; the next tile's scores are computed while this one's values are
//   summed
// Both products run on the tensor cores from shared memory (wgmma), P from registers. The limit is arithmetic:
// 4 · head_dim operations a query, key and head. Softmax in float, base 2; P is rounded to the cache's dtype.
// Tiles of keys stand at multiples of 128 and are taken in ascending order, masked keys add zeros: a query's bits do
// not depend on how the prompt was cut. Equals the loop of reference_attention.cc.
#include "ops/cuda/attention_prefill_consumer.cuh"
#include "ops/cuda/cuda_support.h"
#include "ops/cuda/tensor_map.h"

namespace quire::cuda {

namespace {

using prefill::Mask;
using prefill::soften;
using prefill::Softmax;

constexpr int kTileKeys = 128;
constexpr int kBoxKeys = 16;  // keys of one copy: a page holds a whole number of them
constexpr int kStages = 3;    // 2 do not cover the latency of pages in the L2 cache: 477 TFLOP/s at 16k (H200)
constexpr int kConsumers = 2;
constexpr int kThreads = 128 * (1 + kConsumers);
constexpr int kRowBytes = 128;                     // 64 elements: a swizzled row
constexpr int kHalfBytes = kTileKeys * kRowBytes;  // 64 of the 128 elements of d, for 128 rows
constexpr int kTileBytes = 2 * kHalfBytes;
constexpr int kSharedBytes = kTileBytes * (1 + 2 * kStages) + 1024;

struct Args : AttentionArgs {
  using AttentionArgs::AttentionArgs;

  int page_size;
  const PrefillItem* items;
};

// One block's queries and the keys that they see.
struct Tile {
  int sequence;
  int first_token;  // row of q
  int num_rows;
  int first_position;  // of the first query
  int first_key;       // the first that any query sees
  int last_key;
  int begin;  // tiles of keys
  int end;
};

__device__ __forceinline__ Tile make_tile(const Args& args, const PrefillItem& item) {
  Tile tile;
  tile.sequence = item.sequence;
  tile.first_token = item.first_token;
  tile.num_rows = item.num_rows;
  tile.first_position = item.first_position;
  tile.first_key = args.window > 0 ? max(0, tile.first_position - args.window + 1) : 0;
  tile.last_key = tile.first_position + tile.num_rows - 1;
  tile.begin = tile.first_key / kTileKeys;
  tile.end = tile.last_key / kTileKeys + 1;
  return tile;
}

struct Barriers {
  uint64_t k_full[kStages];
  uint64_t k_empty[kStages];
  uint64_t v_full[kStages];
  uint64_t v_empty[kStages];
  uint64_t v_loaded;  // before rows that nobody may read are cleared
};

// Q, then the stages of K, then those of V.
struct Shared {
  char* base;
  __device__ __forceinline__ char* q() const { return base; }
  __device__ __forceinline__ char* k(int stage) const { return base + (1 + stage) * kTileBytes; }
  __device__ __forceinline__ char* v(int stage) const { return base + (1 + kStages + stage) * kTileBytes; }
};

// ---- Producer -------------------------------------------------------------------------------------------------------

// Asks for the boxes of a tile that hold a key in [first_key, last_key]; all lanes of one warp.
__device__ __forceinline__ void load_tile(char* target, const CUtensorMap* map, uint64_t* barrier, int page, int row,
                                          int kv_head, int lane) {
  const unsigned wanted = __ballot_sync(0xffffffffu, lane < 16 && page >= 0);
  if (lane == 0) barrier_arrive_expecting(barrier, static_cast<uint32_t>(__popc(wanted) * kBoxKeys * kRowBytes));
  __syncwarp();
  if (lane < 16 && page >= 0) {
    const int box = lane / 2;
    const int half = lane % 2;
    copy_box(target + half * kHalfBytes + box * kBoxKeys * kRowBytes, map, {half * 64, row, kv_head, page}, barrier);
  }
}

__device__ __forceinline__ void produce(const Args& args, const Tile& tile, const Shared& shared, Barriers& barriers,
                                        const CUtensorMap* k_map, const CUtensorMap* v_map, int kv_head, int lane) {
  const int32_t* pages = args.page_table + tile.sequence * args.page_table_stride;
  uint32_t num_patches = 0;
  for (int j = tile.begin; j < tile.end; ++j) {
    const int turn = j - tile.begin;
    const int stage = turn % kStages;
    const uint32_t free_parity = static_cast<uint32_t>(turn / kStages % 2) ^ 1u;
    const int key = j * kTileKeys + lane / 2 * kBoxKeys;
    const bool is_wanted = lane < 16 && key + kBoxKeys > tile.first_key && key <= tile.last_key;
    const int page = is_wanted ? pages[key / args.page_size] : -1;
    const int row = key % args.page_size;

    barrier_wait(&barriers.k_empty[stage], free_parity);
    load_tile(shared.k(stage), k_map, &barriers.k_full[stage], page, row, kv_head, lane);

    barrier_wait(&barriers.v_empty[stage], free_parity);
    const int first_valid = max(0, tile.first_key - j * kTileKeys);
    const int end_valid = min(kTileKeys, tile.last_key + 1 - j * kTileKeys);
    if (first_valid == 0 && end_valid == kTileKeys) {
      load_tile(shared.v(stage), v_map, &barriers.v_full[stage], page, row, kv_head, lane);
      continue;
    }
    // Slots outside may hold NaN, which times a weight of zero is NaN.
    load_tile(shared.v(stage), v_map, &barriers.v_loaded, page, row, kv_head, lane);
    barrier_wait(&barriers.v_loaded, num_patches++ % 2);
    for (int r = 0; r < kTileKeys; ++r) {
      if (first_valid <= r && r < end_valid) continue;
      if (lane < 16) {
        *reinterpret_cast<uint4*>(shared.v(stage) + lane / 8 * kHalfBytes + r * kRowBytes + lane % 8 * 16) =
            uint4{0, 0, 0, 0};
      }
    }
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) barrier_arrive(&barriers.v_full[stage]);
  }
}

// ---- Consumers ------------------------------------------------------------------------------------------------------

template <typename T>
__device__ __forceinline__ void pack_weights(uint32_t (&packed)[32], const float (&weights)[64]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) packed[i] = pack_pair<T>(weights[2 * i], weights[2 * i + 1]);
}

template <typename T>
__device__ __forceinline__ void consume(const Args& args, const Tile& tile, const Shared& shared, Barriers& barriers,
                                        int head, int consumer) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int lane = thread % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  // This warpgroup's queries into shared memory, zeros beyond them; all are asked for before the first is stored.
  constexpr int kChunks = 64 * 16 / 128;
  uint4 chunks[kChunks];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int row = 64 * consumer + thread / 16 + 8 * i;
    const T* q = static_cast<const T*>(args.q) +
                 (tile.first_token + min(row, tile.num_rows - 1)) * args.q_token_stride + head * args.q_head_stride;
    chunks[i] = *reinterpret_cast<const uint4*>(q + thread % 16 * 8);
  }
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int row = 64 * consumer + thread / 16 + 8 * i;
    const int chunk = thread % 16;
    if (row >= tile.num_rows) chunks[i] = {0, 0, 0, 0};
    *reinterpret_cast<uint4*>(shared.q() + chunk / 8 * kHalfBytes + row * kRowBytes + ((chunk % 8) ^ (row % 8)) * 16) =
        chunks[i];
  }
  fence_async_proxy();
  asm volatile("bar.sync %0, 128;" ::"r"(1 + consumer) : "memory");

  const uint32_t q_address = shared_address(shared.q()) + static_cast<uint32_t>(64 * consumer * kRowBytes);
  const auto multiply_keys = [&](float(&scores)[64], int stage) {
    const uint32_t k_address = shared_address(shared.k(stage));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t at = static_cast<uint32_t>(i / 4 * kHalfBytes + i % 4 * 32);
      wgmma_shared<T>(scores, matrix_descriptor(q_address + at, 16, 1024), matrix_descriptor(k_address + at, 16, 1024),
                      i > 0);
    }
    wgmma_commit();
  };
  const auto add_values = [&](float(&sums)[64], const uint32_t(&weights)[32], int stage) {
    const uint32_t v_address = shared_address(shared.v(stage));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      wgmma_registers<T>(sums, &weights[4 * i],
                         matrix_descriptor(v_address + static_cast<uint32_t>(i * 16 * kRowBytes), kHalfBytes, 1024),
                         true);
    }
    wgmma_commit();
  };
  // The consumers take turns at starting products, so that one's softmax runs under the other's products.
  const auto wait_for_turn = [&] { asm volatile("bar.sync %0, 256;" ::"r"(3 + consumer) : "memory"); };
  const auto pass_turn = [&] { asm volatile("bar.arrive %0, 256;" ::"r"(4 - consumer) : "memory"); };
  const auto release = [&](uint64_t* barrier) {
    __syncwarp();
    if (lane == 0) barrier_arrive(barrier);
  };

  const int first_row = 64 * consumer;
  const int first_position = tile.first_position + first_row;
  const int last_position = first_position + 63;
  const int row = 16 * (thread / 32) + g;
  const auto mask_of = [&](int j) {
    return Mask{.first_key = j * kTileKeys,
                .position = first_position + row,
                .window = args.window,
                .is_needed = (j + 1) * kTileKeys - 1 > first_position ||
                             (args.window > 0 && j * kTileKeys <= last_position - args.window)};
  };

  float scores[64];
  float sums[64];
  uint32_t weights[32];
  Softmax state;
#pragma unroll
  for (int i = 0; i < 64; ++i) sums[i] = 0;

  if (consumer == 1) pass_turn();
  barrier_wait(&barriers.k_full[0], 0);
  wait_for_turn();
  multiply_keys(scores, 0);
  pass_turn();
  wgmma_wait<0>();
  hold(scores);
  release(&barriers.k_empty[0]);
  soften(scores, state, mask_of(tile.begin), args.scale, args.soft_cap, t);
  pack_weights<T>(weights, scores);
  int turn = 0;
  for (int j = tile.begin + 1; j < tile.end; ++j) {
    const int v_stage = turn % kStages;
    const uint32_t v_parity = static_cast<uint32_t>(turn / kStages % 2);
    ++turn;
    const int k_stage = turn % kStages;
    barrier_wait(&barriers.k_full[k_stage], static_cast<uint32_t>(turn / kStages % 2));
    wait_for_turn();
    multiply_keys(scores, k_stage);
    barrier_wait(&barriers.v_full[v_stage], v_parity);
    add_values(sums, weights, v_stage);
    pass_turn();
    wgmma_wait<1>();
    hold(scores);
    release(&barriers.k_empty[k_stage]);
    soften(scores, state, mask_of(j), args.scale, args.soft_cap, t);
    wgmma_wait<0>();
    hold(sums);
    release(&barriers.v_empty[v_stage]);
#pragma unroll
    for (int i = 0; i < 64; ++i) sums[i] *= state.correction[i % 4 / 2];
    pack_weights<T>(weights, scores);
  }
  barrier_wait(&barriers.v_full[turn % kStages], static_cast<uint32_t>(turn / kStages % 2));
  add_values(sums, weights, turn % kStages);
  if (consumer == 0) wait_for_turn();  // takes the turn that is left over
  wgmma_wait<0>();
  hold(sums);
  release(&barriers.v_empty[turn % kStages]);

#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float weight = state.weight[r];
    weight += __shfl_xor_sync(0xffffffffu, weight, 1);
    weight += __shfl_xor_sync(0xffffffffu, weight, 2);
    const float inverse = weight == 0 ? 0.0f : 1.0f / weight;
    const int out_row = first_row + row + 8 * r;
    if (out_row >= tile.num_rows) continue;
    T* out = static_cast<T*>(args.out) + (tile.first_token + out_row) * args.out_token_stride +
             head * args.out_head_stride + 2 * t;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      *reinterpret_cast<uint32_t*>(out + 8 * i) =
          pack_pair<T>(sums[4 * i + 2 * r] * inverse, sums[4 * i + 2 * r + 1] * inverse);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_128_kernel(const __grid_constant__ CUtensorMap k_map, const __grid_constant__ CUtensorMap v_map,
                       Args args) {
  extern __shared__ char dynamic_shared[];
  __shared__ Barriers barriers;
  // The swizzle repeats every 1024 bytes.
  const Shared shared{dynamic_shared + (1024 - shared_address(dynamic_shared) % 1024) % 1024};
  const int head = static_cast<int>(blockIdx.x) % args.num_heads;
  const Tile tile = make_tile(args, args.items[blockIdx.x / static_cast<unsigned>(args.num_heads)]);
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      barrier_init(&barriers.k_full[s], 1);
      barrier_init(&barriers.v_full[s], 1);
      barrier_init(&barriers.k_empty[s], 4 * kConsumers);  // a warp each
      barrier_init(&barriers.v_empty[s], 4 * kConsumers);
    }
    barrier_init(&barriers.v_loaded, 1);
    fence_async_proxy();
  }
  __syncthreads();
  const int kv_head = head * args.num_kv_heads / args.num_heads;
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x < 32) {
      produce(args, tile, shared, barriers, &k_map, &v_map, kv_head, static_cast<int>(threadIdx.x));
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    consume<T>(args, tile, shared, barriers, head, static_cast<int>(threadIdx.x) / 128 - 1);
  }
}

// ---- Host -----------------------------------------------------------------------------------------------------------

// Boxes of 16 keys and 128 bytes of their elements, from [page][head][token][d].
CUtensorMap make_map(const PagedKv& kv, void* data) {
  const int64_t sizes[] = {kv.head_dim, kv.page_size, kv.num_kv_heads, kv.num_pages};
  const int64_t strides[] = {kv.token_stride, kv.head_stride, kv.page_stride};
  const int32_t box[] = {kRowBytes / static_cast<int>(dtype_bytes(kv.dtype)), kBoxKeys, 1, 1};
  return make_tensor_map({.dtype = kv.dtype, .data = data, .sizes = sizes, .strides = strides, .box = box});
}

template <typename T>
void launch(const AttentionCall& call, const Args& args) {
  CUDA_CHECK(cudaFuncSetAttribute(prefill_128_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  const unsigned grid = static_cast<unsigned>(call.plan.num_prefill_items * args.num_heads);
  prefill_128_kernel<T>
      <<<grid, kThreads, kSharedBytes, call.stream>>>(make_map(call.kv, call.kv.k), make_map(call.kv, call.kv.v), args);
  CUDA_CHECK_LAUNCH();
}

}  // namespace

void attention_prefill_128(const AttentionCall& call) {
  Args args(call);
  args.page_size = call.kv.page_size;
  args.items = static_cast<const PrefillItem*>(call.plan.prefill_items.data());
  if (call.q.dtype() == DType::kBF16) return launch<bf16>(call, args);
  launch<f16>(call, args);
}

}  // namespace quire::cuda

// Prefill attention on Hopper: many queries a sequence, K and V straight from the pages (FlashAttention-3's shape).
//
// Grid: (tile of 128 queries of a sequence, query head), tiles that see most keys first. A block has three warpgroups.
//   producer:  one warp asks the copy engine for K and V, 128 keys a tile, 16 keys of one page a box, three tiles deep;
//   of an e4m3 cache all four warps turn codes into numbers
//   consumers: two warpgroups of 64 queries each; the next tile's scores are computed while this one's values are
//   summed
// Both products run on the tensor cores from shared memory (wgmma), P from registers. The limit is arithmetic:
// 4 · head_dim operations a query, key and head. Softmax in float, base 2; P is rounded to the cache's dtype.
// Tiles of keys stand at multiples of 128 and are taken in ascending order, masked keys add zeros: a query's bits do
// not depend on how the prompt was cut. Equals the loop of reference_attention.cc.
#include <algorithm>

#include "ops/cuda/attention.h"
#include "ops/cuda/cuda_support.h"
#include "ops/cuda/device_dtype.cuh"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/tensor_map.h"

namespace quire::cuda {

namespace {

constexpr int kDim = 128;
constexpr int kTileKeys = 128;
constexpr int kBoxKeys = 16;  // keys of one copy: a page holds a whole number of them
// 2 stages do not cover the latency of pages in the L2 cache: 477 TFLOP/s at 16k (H200). Where the cache is e4m3 the
// third makes room for three tiles of codes.
template <bool IsF8>
constexpr int kStages = IsF8 ? 2 : 3;
constexpr int kCodeTiles = 3;
constexpr int kConsumers = 2;
constexpr int kThreads = 128 * (1 + kConsumers);
constexpr int kRowBytes = 128;                     // 64 elements: a swizzled row
constexpr int kHalfBytes = kTileKeys * kRowBytes;  // 64 of the 128 elements of d, for 128 rows
constexpr int kTileBytes = 2 * kHalfBytes;
constexpr int kCodeTileBytes = kTileKeys * kDim;
template <bool IsF8>
constexpr int kSharedBytes = kTileBytes*(1 + 2 * kStages<IsF8>)+(IsF8 ? kCodeTiles* kCodeTileBytes : 0) + 1024;
constexpr float kLog2e = 1.4426950408889634f;

struct Args {
  const void* q;
  int64_t q_token_stride;
  int64_t q_head_stride;
  void* out;
  int64_t out_token_stride;
  int64_t out_head_stride;
  int num_heads;
  int num_kv_heads;
  int page_size;
  const PrefillItem* items;
  const int32_t* query_starts;
  const int32_t* context_lengths;
  const int32_t* page_table;
  int64_t page_table_stride;
  const uint16_t* k_scales;  // bf16, of an e4m3 cache
  const uint16_t* v_scales;
  int64_t scale_page_stride;
  float scale;  // times log2(e), unless there is a soft cap
  float soft_cap;
  int window;
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
  const int start = args.query_starts[item.sequence];
  const int num_queries = args.query_starts[item.sequence + 1] - start;
  tile.first_token = start + item.first_query;
  tile.num_rows = min(kPrefillTileRows, num_queries - item.first_query);
  tile.first_position = args.context_lengths[item.sequence] - num_queries + item.first_query;
  tile.first_key = args.window > 0 ? max(0, tile.first_position - args.window + 1) : 0;
  tile.last_key = tile.first_position + tile.num_rows - 1;
  tile.begin = tile.first_key / kTileKeys;
  tile.end = tile.last_key / kTileKeys + 1;
  return tile;
}

constexpr int kMostStages = 3;
struct Barriers {
  uint64_t k_full[kMostStages];
  uint64_t k_empty[kMostStages];
  uint64_t v_full[kMostStages];
  uint64_t v_empty[kMostStages];
  uint64_t v_loaded;           // before rows that nobody may read are cleared
  uint64_t codes[kCodeTiles];  // have come
};

// Q, then the stages of K, then those of V, then codes.
template <int Stages>
struct Shared {
  char* base;
  __device__ __forceinline__ char* q() const { return base; }
  __device__ __forceinline__ char* k(int stage) const { return base + (1 + stage) * kTileBytes; }
  __device__ __forceinline__ char* v(int stage) const { return base + (1 + Stages + stage) * kTileBytes; }
  __device__ __forceinline__ char* codes(int i) const {
    return base + (1 + 2 * Stages) * kTileBytes + i * kCodeTileBytes;
  }
};

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

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

__device__ __forceinline__ void produce(const Args& args, const Tile& tile, const Shared<3>& shared, Barriers& barriers,
                                        const CUtensorMap* k_map, const CUtensorMap* v_map, int kv_head, int lane) {
  const int32_t* pages = args.page_table + tile.sequence * args.page_table_stride;
  uint32_t num_patches = 0;
  for (int j = tile.begin; j < tile.end; ++j) {
    const int turn = j - tile.begin;
    const int stage = turn % kStages<false>;
    const uint32_t free_parity = static_cast<uint32_t>(turn / kStages<false> % 2) ^ 1u;
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

// Where the cache is e4m3: the whole warpgroup turns codes into numbers of T, a key a thread. Tiles of codes, K and V
// in turn, come into buffers of their own; their scales are read ahead.
template <typename T>
__device__ __forceinline__ void produce_from_f8(const Args& args, const Tile& tile, const Shared<2>& shared,
                                                Barriers& barriers, const CUtensorMap* k_map, const CUtensorMap* v_map,
                                                int kv_head, int thread) {
  constexpr int kStagesHere = kStages<true>;
  const int32_t* pages = args.page_table + tile.sequence * args.page_table_stride;
  const int num_tiles = 2 * (tile.end - tile.begin);
  const auto is_valid = [&](int key) { return tile.first_key <= key && key <= tile.last_key; };
  const auto scale_of = [&](int i) {  // of this thread's key in tile i; bf16
    const int key = (tile.begin + i / 2) * kTileKeys + thread;
    if (i >= num_tiles || !is_valid(key)) return uint16_t{0};
    const uint16_t* scales = i % 2 == 0 ? args.k_scales : args.v_scales;
    return scales[pages[key / args.page_size] * args.scale_page_stride + kv_head * args.page_size +
                  key % args.page_size];
  };
  const auto load_codes = [&](int i) {
    if (i >= num_tiles || thread >= 32) return;
    const int key = (tile.begin + i / 2) * kTileKeys + thread * kBoxKeys;
    const bool is_wanted = thread < kTileKeys / kBoxKeys && key + kBoxKeys > tile.first_key && key <= tile.last_key;
    const int page = is_wanted ? pages[key / args.page_size] : 0;
    uint64_t* const barrier = &barriers.codes[i % kCodeTiles];
    const unsigned wanted = __ballot_sync(0xffffffffu, is_wanted);
    if (thread == 0) barrier_arrive_expecting(barrier, static_cast<uint32_t>(__popc(wanted) * kBoxKeys * kDim));
    __syncwarp();
    if (is_wanted) {
      copy_box(shared.codes(i % kCodeTiles) + thread * kBoxKeys * kDim, i % 2 == 0 ? k_map : v_map,
               {0, key % args.page_size, kv_head, page}, barrier);
    }
  };
  uint16_t scales[kCodeTiles];
#pragma unroll
  for (int i = 0; i < kCodeTiles; ++i) {
    load_codes(i);
    scales[i] = scale_of(i);
  }
  for (int i = 0; i < num_tiles; ++i) {
    const int turn = i / 2;
    const int stage = turn % kStagesHere;
    const bool is_k = i % 2 == 0;
    const float scale = __uint_as_float(static_cast<uint32_t>(scales[0]) << 16);
#pragma unroll
    for (int j = 0; j + 1 < kCodeTiles; ++j) scales[j] = scales[j + 1];
    scales[kCodeTiles - 1] = scale_of(i + kCodeTiles);
    barrier_wait(&barriers.codes[i % kCodeTiles], static_cast<uint32_t>(i / kCodeTiles % 2));
    barrier_wait(is_k ? &barriers.k_empty[stage] : &barriers.v_empty[stage],
                 static_cast<uint32_t>(turn / kStagesHere % 2) ^ 1u);
    const bool is_seen = is_valid((tile.begin + turn) * kTileKeys + thread);
    const char* source = shared.codes(i % kCodeTiles) + thread * kRowBytes;
    char* target = (is_k ? shared.k(stage) : shared.v(stage)) + thread * kRowBytes;
#pragma unroll
    for (int chunk = 0; chunk < 8; ++chunk) {
      const uint4 codes = *reinterpret_cast<const uint4*>(source + (chunk ^ (thread % 8)) * 16);
      const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
      uint32_t packed[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const uint32_t halves = unpack_f8_pair(words[j / 2] >> (j % 2 * 16));
        const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&halves));
        // Slots outside may hold NaN.
        packed[j] = is_seen ? pack_pair<T>(pair.x * scale, pair.y * scale) : 0u;
      }
      char* const half = target + chunk / 4 * kHalfBytes;
      const int first = chunk % 4 * 2;
      *reinterpret_cast<uint4*>(half + (first ^ (thread % 8)) * 16) = {packed[0], packed[1], packed[2], packed[3]};
      *reinterpret_cast<uint4*>(half + ((first + 1) ^ (thread % 8)) * 16) = {packed[4], packed[5], packed[6],
                                                                             packed[7]};
    }
    fence_async_proxy();
    __syncwarp();
    if (thread % 32 == 0) barrier_arrive(is_k ? &barriers.k_full[stage] : &barriers.v_full[stage]);
    asm volatile("bar.sync 7, 128;" ::: "memory");  // everybody has read the codes
    load_codes(i + kCodeTiles);
  }
}

// ---- Consumers ------------------------------------------------------------------------------------------------------

// Thread `lane` of warp w has rows 16 w + lane / 4 (i % 4 < 2) and 8 more; element i is column 8 (i / 4) + 2 (lane % 4)
// + i % 2.
struct Softmax {
  float largest[2] = {-INFINITY, -INFINITY};  // scaled, base 2
  float weight[2] = {0, 0};                   // of the thread's own columns
  float correction[2] = {1, 1};
};

struct Mask {
  int first_key;  // of the tile
  int position;   // of the thread's first row
  int window;
  bool is_needed;
};

// Scores become weights; the correction is what sums so far are to be multiplied by.
__device__ __forceinline__ void soften(float (&scores)[64], Softmax& state, const Mask& mask, float scale,
                                       float soft_cap, int t) {
  if (soft_cap > 0) {
#pragma unroll
    for (int i = 0; i < 64; ++i) scores[i] = soft_cap * tanhf(scores[i] * scale);
    scale = kLog2e;
  }
  if (mask.is_needed) {
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      const int key = mask.first_key + i / 4 * 8 + 2 * t + i % 2;
      const int position = mask.position + i % 4 / 2 * 8;
      if (key > position || (mask.window > 0 && key <= position - mask.window)) scores[i] = -INFINITY;
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float largest = scores[2 * r];
#pragma unroll
    for (int i = 0; i < 16; ++i) largest = fmaxf(largest, fmaxf(scores[4 * i + 2 * r], scores[4 * i + 2 * r + 1]));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    largest = fmaxf(state.largest[r], largest * scale);
    const float base = largest == -INFINITY ? 0.0f : largest;
    state.correction[r] = exp2_fast(state.largest[r] - base);
    state.largest[r] = largest;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float& first = scores[4 * i + 2 * r];
      float& second = scores[4 * i + 2 * r + 1];
      first = exp2_fast(fmaf(first, scale, -base));
      second = exp2_fast(fmaf(second, scale, -base));
      sum += first + second;
    }
    state.weight[r] = state.weight[r] * state.correction[r] + sum;
  }
}

template <typename T>
__device__ __forceinline__ void pack_weights(uint32_t (&packed)[32], const float (&weights)[64]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) packed[i] = pack_pair<T>(weights[2 * i], weights[2 * i + 1]);
}

template <typename T, int Stages>
__device__ __forceinline__ void consume(const Args& args, const Tile& tile, const Shared<Stages>& shared,
                                        Barriers& barriers, int head, int consumer) {
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
    const int v_stage = turn % Stages;
    const uint32_t v_parity = static_cast<uint32_t>(turn / Stages % 2);
    ++turn;
    const int k_stage = turn % Stages;
    barrier_wait(&barriers.k_full[k_stage], static_cast<uint32_t>(turn / Stages % 2));
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
  barrier_wait(&barriers.v_full[turn % Stages], static_cast<uint32_t>(turn / Stages % 2));
  add_values(sums, weights, turn % Stages);
  if (consumer == 0) wait_for_turn();  // takes the turn that is left over
  wgmma_wait<0>();
  hold(sums);
  release(&barriers.v_empty[turn % Stages]);

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

template <typename T, bool IsF8>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_kernel(const __grid_constant__ CUtensorMap k_map, const __grid_constant__ CUtensorMap v_map, Args args) {
  extern __shared__ char dynamic_shared[];
  __shared__ Barriers barriers;
  // The swizzle repeats every 1024 bytes.
  const Shared<kStages<IsF8>> shared{dynamic_shared + (1024 - shared_address(dynamic_shared) % 1024) % 1024};
  const int head = static_cast<int>(blockIdx.x) % args.num_heads;
  const Tile tile = make_tile(args, args.items[blockIdx.x / static_cast<unsigned>(args.num_heads)]);
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages<IsF8>; ++s) {
      barrier_init(&barriers.k_full[s], IsF8 ? 4 : 1);  // a warp each, or the copies
      barrier_init(&barriers.v_full[s], IsF8 ? 4 : 1);
      barrier_init(&barriers.k_empty[s], 4 * kConsumers);  // a warp each
      barrier_init(&barriers.v_empty[s], 4 * kConsumers);
    }
    barrier_init(&barriers.v_loaded, 1);
    for (int i = 0; i < kCodeTiles; ++i) barrier_init(&barriers.codes[i], 1);
    fence_async_proxy();
  }
  __syncthreads();
  const int kv_head = head * args.num_kv_heads / args.num_heads;
  if (threadIdx.x < 128) {
    if constexpr (IsF8) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
      produce_from_f8<T>(args, tile, shared, barriers, &k_map, &v_map, kv_head, static_cast<int>(threadIdx.x));
    } else {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
      if (threadIdx.x < 32) {
        produce(args, tile, shared, barriers, &k_map, &v_map, kv_head, static_cast<int>(threadIdx.x));
      }
    }
  } else {
    if constexpr (IsF8) {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
    } else {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    }
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

template <typename T, bool IsF8>
void launch(const AttentionCall& call, const Args& args) {
  const CUtensorMap k_map = make_map(call.kv, call.kv.k);
  const CUtensorMap v_map = make_map(call.kv, call.kv.v);
  CUDA_CHECK(
      cudaFuncSetAttribute(prefill_kernel<T, IsF8>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<IsF8>));
  const unsigned grid = static_cast<unsigned>(call.plan.num_prefill_items * args.num_heads);
  prefill_kernel<T, IsF8><<<grid, kThreads, kSharedBytes<IsF8>, call.stream>>>(k_map, v_map, args);
  CUDA_CHECK_LAUNCH();
}

}  // namespace

bool accepts_prefill_wgmma(const AttentionCall& call) {
  const PagedKv& kv = call.kv;
  const auto is_wide = [&](int64_t stride) { return stride * dtype_bytes(kv.dtype) % 16 == 0; };
  const bool is_f8 = kv.dtype == DType::kF8E4M3;
  return call.part == StepPart::kPrefill && (call.q.dtype() == DType::kBF16 || call.q.dtype() == DType::kF16) &&
         (is_f8 || kv.dtype == call.q.dtype()) && kv.head_dim == kDim && kv.page_size % kBoxKeys == 0 &&
         is_aligned(kv.k, 16) && is_aligned(kv.v, 16) && is_wide(kv.page_stride) && is_wide(kv.head_stride) &&
         is_wide(kv.token_stride) && is_aligned(call.q.raw_data(), 16) && call.q.stride(0) % 8 == 0 &&
         call.q.stride(1) % 8 == 0 && is_aligned(call.out.raw_data(), 4) && call.out.stride(0) % 2 == 0 &&
         call.out.stride(1) % 2 == 0;
}

void attention_prefill_wgmma(const AttentionCall& call) {
  const AttentionBatch& batch = call.batch;
  const float soft_cap = call.params.soft_cap;
  const Args args{.q = call.q.raw_data(),
                  .q_token_stride = call.q.stride(0),
                  .q_head_stride = call.q.stride(1),
                  .out = call.out.raw_data(),
                  .out_token_stride = call.out.stride(0),
                  .out_head_stride = call.out.stride(1),
                  .num_heads = static_cast<int>(call.q.size(1)),
                  .num_kv_heads = call.kv.num_kv_heads,
                  .page_size = call.kv.page_size,
                  .items = static_cast<const PrefillItem*>(call.plan.prefill_items.data()),
                  .query_starts = batch.query_starts.data<int32_t>(),
                  .context_lengths = batch.context_lengths.data<int32_t>(),
                  .page_table = batch.page_table.data<int32_t>(),
                  .page_table_stride = batch.page_table.stride(0),
                  .k_scales = static_cast<const uint16_t*>(call.kv.k_scales),
                  .v_scales = static_cast<const uint16_t*>(call.kv.v_scales),
                  .scale_page_stride = call.kv.scale_page_stride,
                  .scale = soft_cap > 0 ? call.params.scale / soft_cap : call.params.scale * kLog2e,
                  .soft_cap = soft_cap,
                  .window = call.params.window};
  const bool is_f8 = call.kv.dtype == DType::kF8E4M3;
  const auto function = call.q.dtype() == DType::kBF16 ? (is_f8 ? launch<bf16, true> : launch<bf16, false>)
                                                       : (is_f8 ? launch<f16, true> : launch<f16, false>);
  function(call, args);
}

}  // namespace quire::cuda

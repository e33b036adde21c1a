// Decode attention's kernel and its launch, for queries that have been rotated and for those that have not: see
// attention_decode.cu and attention_decode_fused.cu, which alone include it.
#pragma once

#include <algorithm>
#include <bit>

#include "ops/cuda/attention_decode_messages.cuh"
#include "ops/cuda/attention_decode_new_row.cuh"
#include "ops/cuda/attention_decode_slices.cuh"
#include "ops/cuda/attention_decode_state.cuh"
#include "ops/cuda/cuda_support.h"

namespace quire::cuda::decode {

namespace {

// The query heads of a part: at most eight of one KV head.
struct Heads {
  int first;
  int num;
};
__device__ __forceinline__ Heads heads_of(const Args& args, int part) {
  if (args.parts_of_group == 1) return {part * args.group_size, args.group_size};
  const int behind = part % args.parts_of_group * kHeads;
  return {part / args.parts_of_group * args.group_size + behind, min(kHeads, args.group_size - behind)};
}

// A unit's queries as the second operand of products: the lane's head is g = lane / 4, its row `q`, zeros where it is
// not there. Where the cache holds codes they become f16.
template <typename T, typename S, int D>
__device__ __forceinline__ void load_queries(uint32_t (&query)[D / 8], float (&score_scale)[2], const T* q,
                                             bool has_head, int lane, int head_dim = D) {
  const int t = lane % 4;
  if constexpr (S::kHasCodes) {
    // f16, brought to between 1 and 2 at most by a power of two.
    float values[D / 16][4];
    float largest = 0;
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const bool is_there = has_head && (S::kIsExact || 16 * i < head_dim);
      const uint2 loaded = is_there ? *reinterpret_cast<const uint2*>(q + 16 * i + 4 * t) : uint2{0, 0};
      const uint32_t words[2] = {loaded.x, loaded.y};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint16_t bits = static_cast<uint16_t>(words[j / 2] >> (16 * (j % 2)));
        values[i][j] = to_float(*reinterpret_cast<const T*>(&bits));
        largest = fmaxf(largest, fabsf(values[i][j]));
      }
    }
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    const uint32_t exponent = min(max(__float_as_uint(largest) >> 23, 2u), 252u);
    const float up = __uint_as_float(exponent << 23);
    const float down = __uint_as_float((254u - exponent) << 23);
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      query[2 * i] = pack_pair<f16>(values[i][0] * down, values[i][1] * down);
      query[2 * i + 1] = pack_pair<f16>(values[i][2] * down, values[i][3] * down);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) score_scale[h] *= __shfl_sync(0xffffffffu, up, 4 * (2 * t + h));
  } else {
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int first = 16 * i + 8 * half;
        const bool is_there = has_head && (S::kIsExact || first < head_dim);
        query[2 * i + half] = is_there ? *reinterpret_cast<const uint32_t*>(q + first + 2 * t) : 0u;
      }
    }
  }
}

// A unit's sums become outputs, or where its sequence has several chunks partial results: those are added by the block
// that ends last, or by merge_kernel (a fence here would wait for the copies on their way too).
template <typename T, typename C, typename S, int D>
struct Result {
  const Args& args;
  const DecodeItem& item;
  const Heads& heads;
  int lane;

  __device__ __forceinline__ Result(const Args& args, const DecodeItem& item, const Heads& heads, int lane)
      : args(args), item(item), heads(heads), lane(lane) {}

  // Of all keys of the unit.
  __device__ __forceinline__ static void add_weights(float (&weight)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) weight[h] += __shfl_xor_sync(0xffffffffu, weight[h], offset);
    }
  }

  // Groups first_group, first_group + 1 .. of State's sums, as far as they are there.
  template <int N>
  __device__ __forceinline__ void store_outputs(const float (&sums)[N][4], int first_group,
                                                const float (&weight)[2]) const {
    constexpr float kFactor = S::kHasCodes ? 1.0f / kValueBoost : 1.0f;
    const int g = lane / 4;
    const int t = lane % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (2 * t + h >= heads.num) continue;
      T* out = static_cast<T*>(args.out) + item.token * args.out_token_stride +
               (heads.first + 2 * t + h) * args.out_head_stride;
      const float factor = weight[h] == 0 ? 0.0f : kFactor / weight[h];
#pragma unroll
      for (int j = 0; j < N; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int d = d_of<C>(g, first_group + j, half);
          if (S::kIsExact || d < args.head_dim) out[d] = from_float<T>(sums[j][h + 2 * half] * factor);
        }
      }
    }
  }

  template <int N>
  __device__ __forceinline__ void store(const float (&sums)[N][4], int first_group, const float (&largest)[2],
                                        float (&weight)[2]) const {
    add_weights(weight);
    if (N < D / 16 && first_group >= D / 16) return;
    if (item.num_chunks == 1) return store_outputs(sums, first_group, weight);
    const int g = lane / 4;
    const int t = lane % 4;
    const int chunk_slot = item.chunk - (num_all_chunks(item) - item.num_chunks);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (2 * t + h >= heads.num) continue;
      const int64_t slot =
          (int64_t{item.sequence} * kMaxDecodeChunks + chunk_slot) * args.num_heads + heads.first + 2 * t + h;
      float* target = args.partial_sums + slot * args.head_dim;
#pragma unroll
      for (int j = 0; j < N; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int d = d_of<C>(g, first_group + j, half);
          if (S::kIsExact || d < args.head_dim) target[d] = sums[j][h + 2 * half];
        }
      }
      if (g == 0 && first_group == 0) reinterpret_cast<float2*>(args.partial_stats)[slot] = {largest[h], weight[h]};
    }
  }

  // The same where all units run at once: the last chunk's warps wait for what the others' send.
  template <int N>
  __device__ __forceinline__ void store_together(float (&sums)[N][4], int first_group, const float (&largest)[2],
                                                 float (&weight)[2], uint4* messages, int part) const {
    add_weights(weight);
    if (first_group >= D / 16) return;
    if (item.num_chunks > 1) {
      using M = Messages<S, D>;
      const int chunk_slot = item.chunk - (num_all_chunks(item) - item.num_chunks);
      const M all{.first = messages + (item.place * args.num_parts + part) * M::kUnitVectors +
                           first_group / M::kGroups * M::kVectors * 32 + lane,
                  .stride = args.num_parts * M::kUnitVectors};
      if (chunk_slot + 1 < item.num_chunks) return all.send(chunk_slot, sums, largest, weight);
      all.add_all(chunk_slot, sums, largest, weight);
    }
    store_outputs(sums, first_group, weight);
  }
};

// What a kernel finds. kFused: the kernel before has left queries as they were before the rotation, and the step's own
// keys and values are in no page yet; warps share units. kFusedFew: and each block has one, for which half of the code
// is enough: where a chain of latencies counts, so do the reads of instructions.
enum class Kind : uint8_t { kPlain, kFused, kFusedFew };
template <Kind K>
using ArgsOf = std::conditional_t<K == Kind::kPlain, Args, FusedArgs>;

// T is the dtype of q and out; products are of T, or of f16 where C is F8 or I8, else C is T.
template <typename T, typename C, int D, bool IsExact, Kind K>
__global__ void __launch_bounds__(Shape<C, D, IsExact>::kThreads, 1) decode_kernel(ArgsOf<K> args) {
  using S = Shape<C, D, IsExact>;
  constexpr bool kIsFused = K != Kind::kPlain;
  constexpr bool kIsAlone = K == Kind::kFusedFew;
  const bool is_shared = kIsFused || args.is_shared;
  extern __shared__ __align__(128) char rings[];
  __shared__ DecodeItem shared_units[kMostSharedUnits];
  __shared__ int shared_parts[kMostSharedUnits];
  __shared__ bool is_last[kMostSharedUnits];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  char* const ring = rings + warp * S::kRingBytes;
  char* const scales = rings + S::kWarps * S::kRingBytes + warp * S::kStages * S::kScaleBytes;
  float* const exchange = reinterpret_cast<float*>(rings + S::kExchangeOffset);
  if constexpr (!kIsAlone) let_next_start();

  // Neighbouring units, heads of one chunk, run at the same time on different multiprocessors.
  const int num_blocks = static_cast<int>(gridDim.x);
  const int first_unit = static_cast<int>(blockIdx.x) + (is_shared ? 0 : num_blocks * warp);
  const int unit_stride = is_shared ? num_blocks : num_blocks * S::kWarps;
  const int copied_row = lane / (32 / S::kRowsAtOnce);
  const int copied_part = lane % (32 / S::kRowsAtOnce);
  Loader<S, kIsAlone> loader{
      .args = args,
      .ring = shared_address(ring) + static_cast<uint32_t>(copied_part / 8 * kBoxBytes + copied_row * 128),
      .column = static_cast<uint32_t>((copied_part % 8 ^ copied_row) * 16),
      .scales = shared_address(scales),
      .source = copied_row * row_bytes_of<S>(args) + copied_part * 16,
      .num_wanted = copied_part * 16 < args.row_bytes ? 16 : 0,
      .lane = lane,
      .share = warp,
      .index = first_unit,
      .index_stride = unit_stride,
      .has_waited = kIsFused};
  const DecodeItem first_item = kIsAlone ? args.items[blockIdx.y] : loader.item_of(first_unit);
  const int first_part = kIsAlone ? static_cast<int>(blockIdx.x) : first_unit % args.num_parts;
  loader.start(first_item, first_part);
  for (int s = 0; s < S::kStages; ++s) loader.issue();
  int64_t first_slot = -1;
  if constexpr (kIsFused) {
    // All of this is older than the step: pages hold what earlier steps wrote.
    if (first_item.num_chunks > 0) first_slot = args.slots[first_item.token];
    wait_for_previous();
  }
  if (!loader.has_waited) {
    wait_for_previous();
    loader.has_waited = true;
  }

  // Where lanes find the rows of their matrices: of K, keys lane % 16, 8 elements (16 codes) from lane / 16 on; of V,
  // keys lane % 8 + lane / 16 * 8, from lane / 8 % 2 on.
  const uint32_t ring_address = shared_address(ring);
  const uint32_t k_row = static_cast<uint32_t>(lane % 16 * 128);
  const uint32_t k_column = static_cast<uint32_t>(((lane / 16) ^ (lane % 8)) * 16);
  const uint32_t v_row = static_cast<uint32_t>((lane % 8 + lane / 16 * 8) * 128);
  const uint32_t v_column = static_cast<uint32_t>(((lane / 8 % 2) ^ (lane % 8)) * 16);

  int stage = 0;
  int num_units = 0;         // that lie behind
  DecodeItem own_item = {};  // where units are shared, of unit number `lane`
  int own_part = 0;
  for (int index = first_unit; kIsAlone ? num_units == 0 : index < args.num_units; index += unit_stride, ++num_units) {
    const bool is_first = kIsFused && num_units == 0;  // else loaded again: it need not stay in registers
    const DecodeItem item = is_first ? first_item : args.items[index / args.num_parts];
    if (item.num_chunks == 0) break;  // so are all that follow
    const int part = is_first ? first_part : index % args.num_parts;
    const Unit unit = make_unit<S>(args, item, part, warp);
    const Heads heads = heads_of(args, part);
    const int first_head = heads.first;
    const int num_heads = heads.num;

    // ---- Queries; columns beyond the group's heads are zeros
    uint32_t query[D / 8];
    float score_scale[2] = {args.scale, args.scale};
    NewRow<T, C, D> new_row;
    bool has_new_row = false;  // this warp's last key
    if constexpr (kIsFused) {
      const int64_t slot = num_units == 0 ? first_slot : args.slots[item.token];
      const bool is_last_chunk = (item.chunk + 1) * item.chunk_size >= item.length;
      T* const staged = reinterpret_cast<T*>(exchange);
      if (num_units > 0) __syncthreads();  // the last unit's sums have been read
      const StagedUnit rows{.token = item.token,
                            .first_head = first_head,
                            .num_heads = num_heads,
                            .kv_head = unit.kv_head,
                            .has_new_row = is_last_chunk};
      stage_rows<T, D, S::kThreads>(args, staged, rows, static_cast<int>(threadIdx.x));
      __syncthreads();
      load_queries<T, S, D>(query, score_scale, staged + min(g, num_heads - 1) * kStagedStride<D>, g < num_heads, lane);
      has_new_row = is_last_chunk && slot >= 0 && unit.begin < unit.end && unit.end == item.length;
      if (has_new_row) new_row.take(staged + num_heads * kStagedStride<D>, lane);
      __syncthreads();  // rows have been read
      // Not before: the next kernel asks for its weights at once, and pages and queries would wait for those (a layer
      // of one token at 1,000 keys, e4m3 weights: 76.3 us where this is called first, 74.5 here; H200).
      if constexpr (kIsAlone) let_next_start();
      if (has_new_row && (args.parts_of_group == 1 || part % args.parts_of_group == 0)) {
        new_row.write_to_page(args, slot, unit.kv_head, lane);
      }
    } else {
      const T* const q = static_cast<const T*>(args.q) + item.token * args.q_token_stride +
                         (first_head + min(g, num_heads - 1)) * args.q_head_stride;
      load_queries<T, S, D>(query, score_scale, q, g < num_heads, lane, args.head_dim);
    }

    // ---- Keys
    State<D> all;
    State<D> some;  // of the warp's share of the chunk, or of one after another
    all.clear();
    some.clear();
    // Where warps share a unit each has one share.
    const int steps_of_share = item.chunk_size / (S::kWarps * S::kStepKeys);
    int steps_left = kIsAlone ? 0 : steps_of_share - unit.first_step % steps_of_share;
    for (int step = 0; step < unit.num_steps; ++step) {
      wait_for_copy_groups<S::kStages - 1>();
      __syncwarp();
      const uint32_t k_address = ring_address + static_cast<uint32_t>(stage * S::kStageBytes);
      const uint32_t v_address = k_address + S::kTiles * S::kTileBytes;
      const char* const step_scales = scales + stage * S::kScaleBytes;
      stage = stage + 1 == S::kStages ? 0 : stage + 1;
      const int first_key = (unit.first_step + step) * S::kStepKeys;
      const int begin = unit.begin - first_key;
      const int end = unit.end - first_key;

      const Step place{.keys = k_address + k_row,
                       .key_column = k_column,
                       .values = v_address + v_row,
                       .value_column = v_column,
                       .scales = step_scales,
                       .begin = begin,
                       .end = end};
      if constexpr (kIsFused) {
        if (has_new_row && step + 1 == unit.num_steps) {
          char* const at = ring + (k_address - ring_address);
          new_row.template put<S>(args, at, scales + (step_scales - scales), item.length - 1 - first_key, lane);
          __syncwarp();
        }
      }
      take_step<T, C, S, D>(some, place, query, score_scale, args.soft_cap, g);
      __syncwarp();  // everybody has read the stage
      loader.issue();

      if constexpr (kIsAlone) continue;
      if (--steps_left == 0 || step + 1 == unit.num_steps) {
        merge<D>(all, some);
        some.clear();
        steps_left = steps_of_share;
      }
    }

    // ---- Warps that share a unit add their sums: each a slice, or the first all
    const Result<T, C, S, D> result(args, item, heads, lane);
    if (is_shared) {
      if constexpr (kIsFused) {
        if constexpr (kIsAlone) all = some;  // as merging with nothing would have it
        Slices<S, D>::store(exchange, all, warp, lane);
        __syncthreads();
        Slices<S, D> slice;
        slice.add_all(exchange, all, warp, lane);
        const int first_group = warp * Slices<S, D>::kOwn;
        if constexpr (kIsAlone) {
          return result.store_together(slice.sums, first_group, slice.largest, slice.weight, args.messages, part);
        }
        result.store(slice.sums, first_group, slice.largest, slice.weight);
      } else {
        if (num_units > 0) __syncthreads();  // those of the last unit have been read
        if (warp > 0) store_state<D>(exchange + (warp - 1) * S::kStateFloats, all, lane);
        __syncthreads();
        if (warp > 0) continue;
        merge_stored<D, S::kWarps - 1>(all, exchange, lane);
      }
      if (lane == num_units) {
        own_item = item;
        own_part = part;
      }
      if constexpr (kIsFused) continue;
    }
    result.store(all.sums, 0, all.largest, all.weight);
  }
  if (kIsAlone || !is_shared) return;

  // ---- The block that ends a sequence's last chunk adds them all, in ascending order
  if constexpr (kIsFused) {
    __syncthreads();  // all warps have stored their slices
  } else {
    __syncwarp();
  }
  if (static_cast<int>(threadIdx.x) < num_units) {
    bool ends = false;
    if (own_item.num_chunks > 1) {
      int32_t* const counter = args.counters + int64_t{own_item.sequence} * args.num_parts + own_part;
      int32_t num_done;
      // Releases what was stored before the barrier, and acquires what others released.
      asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(num_done) : "l"(counter) : "memory");
      ends = num_done == own_item.num_chunks - 1;
      if (ends) *counter = 0;
    }
    is_last[lane] = ends;
    shared_units[lane] = own_item;
    shared_parts[lane] = own_part;
  }
  __syncthreads();
  for (int i = 0; i < num_units; ++i) {
    if (!is_last[i]) continue;
    const Heads heads = heads_of(args, shared_parts[i]);
    for (int head = warp; head < heads.num; head += S::kWarps) {
      merge_chunks<T, D>(args, shared_units[i], heads.first + head, lane, S::kHasCodes);
    }
  }
}

// The same for all sequences of several chunks. Grid: x items, y heads by eight.
constexpr int kMergeWarps = 8;
template <typename T, int D>
__global__ void __launch_bounds__(32 * kMergeWarps) merge_kernel(Args args, bool has_codes) {
  let_next_start();
  const DecodeItem item = args.items[blockIdx.x];
  wait_for_previous();
  const int head = static_cast<int>(blockIdx.y) * kMergeWarps + static_cast<int>(threadIdx.x) / 32;
  if (item.num_chunks < 2 || item.chunk != num_all_chunks(item) - item.num_chunks || head >= args.num_heads) return;
  merge_chunks<T, D>(args, item, head, static_cast<int>(threadIdx.x) % 32, has_codes);
}

// Parts of a chunk: KV heads, or eights of their query heads.
inline int num_parts_of(const AttentionCall& call) {
  const int num_kv_heads = call.kv.num_kv_heads;
  return num_kv_heads * ceil_div(static_cast<int>(call.q.size(1)) / num_kv_heads, kHeads);
}

inline Args args_of(const AttentionCall& call) {
  const CudaAttentionPlan& plan = call.plan;
  const AttentionGeometry& geometry = plan.geometry;
  const int64_t num_slots = int64_t{std::max(1, geometry.max_num_sequences)} * kMaxDecodeChunks * geometry.num_heads;
  float* partials = static_cast<float*>(plan.partials.data());
  Args args(call);
  args.k = static_cast<const char*>(call.kv.k);
  args.v = static_cast<const char*>(call.kv.v);
  args.page_bytes = call.kv.page_stride * dtype_bytes(call.kv.dtype);
  args.head_bytes = call.kv.head_stride * dtype_bytes(call.kv.dtype);
  args.page_shift = std::countr_zero(static_cast<unsigned>(call.kv.page_size));
  args.row_bytes = static_cast<int>(call.kv.head_dim * dtype_bytes(call.kv.dtype));
  args.head_dim = call.kv.head_dim;
  args.group_size = args.num_heads / call.kv.num_kv_heads;
  args.parts_of_group = ceil_div(args.group_size, kHeads);
  args.num_parts = num_parts_of(call);
  args.items = static_cast<const DecodeItem*>(plan.decode_items.data());
  args.num_units = 0;
  args.is_shared = false;
  args.partial_sums = partials;
  args.partial_stats = partials + num_slots * geometry.head_dim;
  args.counters = static_cast<int32_t*>(plan.counters.data());
  return args;
}

template <typename T, typename C, int D, bool IsExact, Kind K>
void launch(const AttentionCall& call, ArgsOf<K> args) {
  using S = Shape<C, D, IsExact>;
  constexpr bool kIsFused = K != Kind::kPlain;
  args.num_units = call.plan.num_decode_items * args.num_parts;
  if (args.num_units == 0) return;
  const int num_blocks = num_multiprocessors();
  if constexpr (K == Kind::kFused) {
    if (args.num_units <= std::min(num_blocks, kMostMessages))
      return launch<T, C, D, IsExact, Kind::kFusedFew>(call, args);
  }
  args.is_shared = args.num_units <= num_blocks * kMostSharedUnits;
  CHECK(!kIsFused || args.is_shared);
  constexpr int kSharedBytes =
      kIsFused ? S::kExchangeOffset + std::max(Slices<S, D>::kBytes, kStagedBytes<D>) : S::kSharedBytes;
  static_assert(kSharedBytes + 384 <= 227 * 1024);
  const auto kernel = decode_kernel<T, C, D, IsExact, K>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  const dim3 grid = K == Kind::kFusedFew
                        ? dim3(static_cast<unsigned>(args.num_parts), static_cast<unsigned>(call.plan.num_decode_items))
                        : dim3(static_cast<unsigned>(std::min(num_blocks, args.num_units)));
  launch_dependent_with_memory(call.stream, kernel, grid, dim3(S::kThreads),
                               args.is_shared ? kSharedBytes : S::kExchangeOffset, args);
  if constexpr (!kIsFused) {
    if (args.is_shared || !call.plan.has_several_chunks) return;
    launch_dependent(call.stream, merge_kernel<T, D>,
                     dim3(static_cast<unsigned>(call.plan.num_decode_items),
                          static_cast<unsigned>(ceil_div(args.num_heads, kMergeWarps))),
                     dim3(32 * kMergeWarps), args, S::kHasCodes);
  }
}

template <typename T, typename C, Kind K>
void launch_for_dimension(const AttentionCall& call, const ArgsOf<K>& args) {
  if (args.head_dim == 128) return launch<T, C, 128, true, K>(call, args);
  if (args.head_dim == 256) return launch<T, C, 256, true, K>(call, args);
  if constexpr (!kIsCode<C>) {
    if (args.head_dim == 64) return launch<T, C, 64, true, K>(call, args);
  }
  launch<T, C, 128, false, K>(call, args);
}

// T: that of queries, outputs and new keys and values.
template <typename T, Kind K>
void launch_any(const AttentionCall& call, const ArgsOf<K>& args) {
  if (call.kv.dtype == DType::kF8E4M3) return launch_for_dimension<T, F8, K>(call, args);
  if (call.kv.dtype == DType::kI8) return launch_for_dimension<T, I8, K>(call, args);
  launch_for_dimension<T, T, K>(call, args);
}

}  // namespace

}  // namespace quire::cuda::decode

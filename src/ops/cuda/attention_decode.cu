// Decode attention: one query a sequence, KV split into chunks (FlashDecoding), straight from the pages.
//
// A unit of work is a chunk of a sequence and a KV head, or eight of its query heads. As many blocks as multiprocessors
// run; each of their warps works by itself through units a fixed number apart. A warp takes 16 keys a step, 32 of an
// e4m3 or int8 cache. Asynchronous copies bring pages into the warp's own ring in shared memory, several steps ahead
// and over the ends of units, so that memory never waits for arithmetic. Up to 8 query heads of a KV head are the
// columns of one tensor core product, so K and V are read once:
//   scores: Sᵀ (16 keys × 8 heads) = K (16 keys × d) · Qᵀ;  sums: Oᵀ (d × 8 heads) += Vᵀ (d × 16 keys) · Pᵀ
// Where there are few units, all warps of a block share one, and then another: an eighth of the chunk each (head_dim
// 256 has four warps, and quarters).
//
// The limit is the reading of KV: 2 · head_dim elements a key and KV head. Softmax in float, base 2; P is rounded to
// the dtype of the products: the cache's, or f16 where it has codes, which f16 holds exactly; their scales multiply
// scores and weights. Eighths of a chunk are summed apart and merged in ascending order, and so are chunks,
// by a kernel of its own or, where warps share units, by the block that ends last: a query's bits do not depend on the
// batch, on page size or on who computes what. Equals the loop of reference_attention.cc.
#include <algorithm>
#include <bit>

#include "ops/cuda/attention_decode_state.cuh"
#include "ops/cuda/cuda_support.h"

namespace quire::cuda {

namespace decode {

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

// T is the dtype of q and out; products are of T, or of f16 where C is F8 or I8, else C is T.
template <typename T, typename C, int D, bool IsExact>
__global__ void __launch_bounds__(Shape<C, D, IsExact>::kThreads, 1) decode_kernel(Args args) {
  using S = Shape<C, D, IsExact>;
  extern __shared__ __align__(128) char rings[];
  __shared__ DecodeItem shared_units[kMostSharedUnits];
  __shared__ int shared_parts[kMostSharedUnits];
  __shared__ bool is_last[kMostSharedUnits];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  char* const ring = rings + warp * S::kRingBytes;
  char* const scales = rings + S::kWarps * S::kRingBytes + warp * S::kStages * S::kScaleBytes;
  float* const exchange = reinterpret_cast<float*>(rings + S::kExchangeOffset);
  let_next_start();

  // Neighbouring units, heads of one chunk, run at the same time on different multiprocessors.
  const int num_blocks = static_cast<int>(gridDim.x);
  const int first_unit = static_cast<int>(blockIdx.x) + (args.is_shared ? 0 : num_blocks * warp);
  const int unit_stride = args.is_shared ? num_blocks : num_blocks * S::kWarps;
  const int copied_row = lane / (32 / S::kRowsAtOnce);
  const int copied_part = lane % (32 / S::kRowsAtOnce);
  Loader<S> loader{.args = args,
                   .ring = shared_address(ring) + static_cast<uint32_t>(copied_part / 8 * kBoxBytes + copied_row * 128),
                   .column = static_cast<uint32_t>((copied_part % 8 ^ copied_row) * 16),
                   .scales = shared_address(scales),
                   .source = copied_row * row_bytes_of<S>(args) + copied_part * 16,
                   .num_wanted = copied_part * 16 < args.row_bytes ? 16 : 0,
                   .lane = lane,
                   .share = warp,
                   .index = first_unit,
                   .index_stride = unit_stride};
  loader.start();
  for (int s = 0; s < S::kStages; ++s) loader.issue();
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
  for (int index = first_unit; index < args.num_units; index += unit_stride, ++num_units) {
    const DecodeItem item = args.items[index / args.num_parts];
    if (item.num_chunks == 0) break;  // so are all that follow
    const Unit unit = make_unit<S>(args, item, index % args.num_parts, warp);
    const Heads heads = heads_of(args, index % args.num_parts);
    const int first_head = heads.first;
    const int num_heads = heads.num;

    // ---- Queries; columns beyond the group's heads are zeros
    uint32_t query[D / 8];
    float score_scale[2] = {args.scale, args.scale};
    const T* q = static_cast<const T*>(args.q) + item.token * args.q_token_stride +
                 (first_head + min(g, num_heads - 1)) * args.q_head_stride;
    if constexpr (S::kHasCodes) {
      // f16, brought to between 1 and 2 at most by a power of two.
      float values[D / 16][4];
      float largest = 0;
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
        const bool is_there = g < num_heads && (IsExact || 16 * i < args.head_dim);
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
          const bool is_there = g < num_heads && (IsExact || first < args.head_dim);
          query[2 * i + half] = is_there ? *reinterpret_cast<const uint32_t*>(q + first + 2 * t) : 0u;
        }
      }
    }

    // ---- Keys
    State<D> all;
    State<D> some;  // of the warp's share of the chunk, or of one after another
    all.clear();
    some.clear();
    const int steps_of_share = item.chunk_size / (S::kWarps * S::kStepKeys);
    int steps_left = steps_of_share - unit.first_step % steps_of_share;
    for (int step = 0; step < unit.num_steps; ++step) {
      asm volatile("cp.async.wait_group %0;" ::"n"(S::kStages - 1) : "memory");
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
      take_step<T, C, S, D>(some, place, query, score_scale, args.soft_cap, g);
      __syncwarp();  // everybody has read the stage
      loader.issue();

      if (--steps_left == 0 || step + 1 == unit.num_steps) {
        merge<D>(all, some);
        some.clear();
        steps_left = steps_of_share;
      }
    }

    // ---- Warps that share a unit: the first adds all sums
    if (args.is_shared) {
      if (num_units > 0) __syncthreads();  // those of the last unit have been read
      if (warp > 0) store_state<D>(exchange + (warp - 1) * S::kStateFloats, all, lane);
      __syncthreads();
      if (warp > 0) continue;
      merge_stored<D, S::kWarps - 1>(all, exchange, lane);
      if (lane == num_units) {
        own_item = item;
        own_part = index % args.num_parts;
      }
    }

    // ---- The unit's result
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) {
        all.weight[h] += __shfl_xor_sync(0xffffffffu, all.weight[h], offset);
      }
    }
    constexpr float kFactor = S::kHasCodes ? 1.0f / kValueBoost : 1.0f;
    if (item.num_chunks == 1) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (2 * t + h >= num_heads) continue;
        T* out = static_cast<T*>(args.out) + item.token * args.out_token_stride +
                 (first_head + 2 * t + h) * args.out_head_stride;
        const float factor = all.weight[h] == 0 ? 0.0f : kFactor / all.weight[h];
#pragma unroll
        for (int j = 0; j < D / 16; ++j) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int d = d_of<C>(g, j, half);
            if (IsExact || d < args.head_dim) out[d] = from_float<T>(all.sums[j][h + 2 * half] * factor);
          }
        }
      }
      continue;
    }

    // ---- Of several chunks: they are added below, or by merge_kernel: a fence here would wait for the copies on their
    // way too
    const int num_all_chunks = (item.length + item.chunk_size - 1) / item.chunk_size;
    const int chunk_slot = item.chunk - (num_all_chunks - item.num_chunks);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (2 * t + h >= num_heads) continue;
      const int64_t slot =
          (int64_t{item.sequence} * kMaxDecodeChunks + chunk_slot) * args.num_heads + first_head + 2 * t + h;
      float* target = args.partial_sums + slot * args.head_dim;
#pragma unroll
      for (int j = 0; j < D / 16; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int d = d_of<C>(g, j, half);
          if (IsExact || d < args.head_dim) target[d] = all.sums[j][h + 2 * half];
        }
      }
      if (g == 0) reinterpret_cast<float2*>(args.partial_stats)[slot] = {all.largest[h], all.weight[h]};
    }
  }
  if (!args.is_shared) return;

  // ---- The block that ends a sequence's last chunk adds them all, in ascending order
  __syncwarp();
  if (static_cast<int>(threadIdx.x) < num_units) {
    bool ends = false;
    if (own_item.num_chunks > 1) {
      int32_t* const counter = args.counters + int64_t{own_item.sequence} * args.num_parts + own_part;
      int32_t num_done;
      // Releases what the warp has stored before the barrier, and acquires what others released.
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
  const int num_all_chunks = item.num_chunks > 1 ? (item.length + item.chunk_size - 1) / item.chunk_size : 0;
  if (item.num_chunks < 2 || item.chunk != num_all_chunks - item.num_chunks || head >= args.num_heads) return;
  merge_chunks<T, D>(args, item, head, static_cast<int>(threadIdx.x) % 32, has_codes);
}

template <typename T, typename C, int D, bool IsExact>
void launch(const AttentionCall& call, Args args) {
  using S = Shape<C, D, IsExact>;
  args.num_units = call.plan.num_decode_items * args.num_parts;
  if (args.num_units == 0) return;
  const int num_blocks = num_multiprocessors();
  args.is_shared = args.num_units <= num_blocks * kMostSharedUnits;
  const auto kernel = decode_kernel<T, C, D, IsExact>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes));
  launch_dependent_with_memory(call.stream, kernel, dim3(static_cast<unsigned>(std::min(num_blocks, args.num_units))),
                               dim3(S::kThreads), args.is_shared ? S::kSharedBytes : S::kExchangeOffset, args);
  if (args.is_shared || !call.plan.has_several_chunks) return;
  launch_dependent(call.stream, merge_kernel<T, D>,
                   dim3(static_cast<unsigned>(call.plan.num_decode_items),
                        static_cast<unsigned>(ceil_div(args.num_heads, kMergeWarps))),
                   dim3(32 * kMergeWarps), args, S::kHasCodes);
}

template <typename T, typename C>
void launch_for_dimension(const AttentionCall& call, const Args& args) {
  if (args.head_dim == 128) return launch<T, C, 128, true>(call, args);
  if (args.head_dim == 256) return launch<T, C, 256, true>(call, args);
  if constexpr (!kIsCode<C>) {
    if (args.head_dim == 64) return launch<T, C, 64, true>(call, args);
  }
  launch<T, C, 128, false>(call, args);
}

template <typename T>
void launch_any(const AttentionCall& call, const Args& args) {
  if (call.kv.dtype == DType::kF8E4M3) return launch_for_dimension<T, F8>(call, args);
  if (call.kv.dtype == DType::kI8) return launch_for_dimension<T, I8>(call, args);
  launch_for_dimension<T, T>(call, args);
}

}  // namespace

}  // namespace decode

bool accepts_decode_split_kv(const AttentionCall& call) {
  const PagedKv& kv = call.kv;
  const int64_t element_bytes = dtype_bytes(kv.dtype);
  const auto is_wide = [&](int64_t stride) { return stride * element_bytes % 16 == 0; };
  if (call.part != StepPart::kDecode || (call.q.dtype() != DType::kBF16 && call.q.dtype() != DType::kF16)) return false;
  if (kv.head_dim > 128 && kv.head_dim != 256) return false;
  if (has_kv_scales(kv.dtype)) {
    if (kv.head_dim % 16 != 0 || !is_aligned(kv.k_scales, 16) || !is_aligned(kv.v_scales, 16) ||
        kv.scale_page_stride % 8 != 0) {
      return false;
    }
  } else if (kv.dtype != call.q.dtype() || kv.head_dim % 8 != 0) {
    return false;
  }
  return kv.page_size >= decode::kKeys && std::has_single_bit(static_cast<unsigned>(kv.page_size)) &&
         kv.token_stride == kv.head_dim && is_aligned(kv.k, 16) && is_aligned(kv.v, 16) && is_wide(kv.page_stride) &&
         is_wide(kv.head_stride) && is_aligned(call.q.raw_data(), 16) && call.q.stride(0) % 8 == 0 &&
         call.q.stride(1) % 8 == 0;
}

void attention_decode_split_kv(const AttentionCall& call) {
  const CudaAttentionPlan& plan = call.plan;
  const AttentionGeometry& geometry = plan.geometry;
  const int64_t num_slots = int64_t{std::max(1, geometry.max_num_sequences)} * kMaxDecodeChunks * geometry.num_heads;
  float* partials = static_cast<float*>(plan.partials.data());
  decode::Args args(call);
  args.k = static_cast<const char*>(call.kv.k);
  args.v = static_cast<const char*>(call.kv.v);
  args.page_bytes = call.kv.page_stride * dtype_bytes(call.kv.dtype);
  args.head_bytes = call.kv.head_stride * dtype_bytes(call.kv.dtype);
  args.page_shift = std::countr_zero(static_cast<unsigned>(call.kv.page_size));
  args.row_bytes = static_cast<int>(call.kv.head_dim * dtype_bytes(call.kv.dtype));
  args.head_dim = call.kv.head_dim;
  args.group_size = args.num_heads / call.kv.num_kv_heads;
  args.parts_of_group = ceil_div(args.group_size, decode::kHeads);
  args.num_parts = args.parts_of_group * call.kv.num_kv_heads;
  args.items = static_cast<const DecodeItem*>(plan.decode_items.data());
  args.num_units = 0;
  args.is_shared = false;
  args.partial_sums = partials;
  args.partial_stats = partials + num_slots * geometry.head_dim;
  args.counters = static_cast<int32_t*>(plan.counters.data());
  if (call.q.dtype() == DType::kBF16) return decode::launch_any<bf16>(call, args);
  return decode::launch_any<f16>(call, args);
}

}  // namespace quire::cuda

// Decode attention: one query a sequence, KV split into chunks (FlashDecoding), straight from the pages.
//
// A unit of work is a chunk of a sequence and a KV head. As many blocks as multiprocessors run; each of their warps
// works by itself through units a fixed number apart. A warp takes 16 keys a step, 32 of an e4m3 cache. Asynchronous
// copies bring pages into the warp's own ring in shared memory, several steps ahead and over the ends of units, so that
// memory never waits for arithmetic. All query heads of a KV head (up to 8) are the 8 columns of one tensor core
// product, so K and V are read once:
//   scores: Sᵀ (16 keys × 8 heads) = K (16 keys × d) · Qᵀ;  sums: Oᵀ (d × 8 heads) += Vᵀ (d × 16 keys) · Pᵀ
// Where there are few units, the eight warps of a block share one, an eighth of the chunk each.
//
// The limit is the reading of KV: 2 · head_dim elements a key and KV head. Softmax in float, base 2; P is rounded to
// the dtype of the products: the cache's, or f16 where the cache is e4m3, whose numbers f16 holds exactly; their scales
// multiply scores and weights. Eighths of a chunk are summed apart and merged in ascending order, and so are chunks,
// by a kernel of its own or, where warps share units, by those that end last: a query's bits do not depend on the
// batch, on page size or on who computes what. Equals the loop of reference_attention.cc.
#include <algorithm>
#include <bit>

#include "ops/cuda/attention_decode_state.cuh"
#include "ops/cuda/cuda_support.h"

namespace quire::cuda {

namespace decode {

namespace {

// T is the dtype of q and out; products are of T, or of f16 where C is F8, else C is T.
template <typename T, typename C, int D>
__global__ void __launch_bounds__(kThreads, 1) decode_kernel(Args args) {
  using S = Shape<C, D>;
  extern __shared__ __align__(128) char rings[];
  __shared__ int num_done_of_team[kWarps / kTeam];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  char* const ring = rings + warp * kRingBytes;
  char* const scales = rings + kWarps * kRingBytes + warp * S::kStages * S::kScaleBytes;
  let_next_start();

  // Neighbouring units, heads of one chunk, run at the same time on different multiprocessors.
  const int num_blocks = static_cast<int>(gridDim.x);
  const int block = static_cast<int>(blockIdx.x);
  const int first_unit = block + num_blocks * (args.is_shared ? warp / kTeam : warp);
  const int unit_stride = num_blocks * (args.is_shared ? kWarps / kTeam : kWarps);
  const int share = warp % kTeam;
  const auto wait_for_team = [&] {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + warp / kTeam), "n"(32 * kTeam) : "memory");
  };
  const int copied_row = lane / (32 / S::kRowsAtOnce);
  const int copied_part = lane % (32 / S::kRowsAtOnce);
  Loader<C, D> loader{
      .args = args,
      .ring = shared_address(ring) + static_cast<uint32_t>(copied_part / 8 * kBoxBytes + copied_row * 128),
      .column = static_cast<uint32_t>((copied_part % 8 ^ copied_row) * 16),
      .scales = shared_address(scales),
      .lane = lane,
      .share = share,
      .index = first_unit,
      .index_stride = unit_stride};
  loader.start();
  for (int s = 0; s < S::kStages; ++s) loader.issue();
  if (!loader.has_waited) {
    wait_for_previous();
    loader.has_waited = true;
  }

  // Where lanes find the rows of their matrices: of K, keys lane % 16, 8 elements (16 of e4m3) from lane / 16 on; of V,
  // keys lane % 8 + lane / 16 * 8, from lane / 8 % 2 on.
  const uint32_t ring_address = shared_address(ring);
  const uint32_t k_row = static_cast<uint32_t>(lane % 16 * 128);
  const uint32_t k_column = static_cast<uint32_t>(((lane / 16) ^ (lane % 8)) * 16);
  const uint32_t v_row = static_cast<uint32_t>((lane % 8 + lane / 16 * 8) * 128);
  const uint32_t v_column = static_cast<uint32_t>(((lane / 8 % 2) ^ (lane % 8)) * 16);

  int stage = 0;
  for (int index = first_unit; index < args.num_units; index += unit_stride) {
    const DecodeItem item = args.items[index / args.num_kv_heads];
    if (item.num_chunks == 0) break;  // so are all that follow
    const Unit unit = make_unit<S::kStepKeys>(args, item, index % args.num_kv_heads, share);
    const int first_head = unit.head * args.group_size;

    // ---- Queries; columns beyond the group's heads are zeros
    uint32_t query[D / 8];
    float score_scale[2] = {args.scale, args.scale};
    const T* q = static_cast<const T*>(args.q) + item.token * args.q_token_stride +
                 (first_head + min(g, args.group_size - 1)) * args.q_head_stride;
    if constexpr (S::kIsF8) {
      // f16, brought to between 1 and 2 at most by a power of two.
      float values[D / 16][4];
      float largest = 0;
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
        const uint2 loaded = g < args.group_size ? *reinterpret_cast<const uint2*>(q + 16 * i + 4 * t) : uint2{0, 0};
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
        const bool is_head = g < args.group_size;
        query[2 * i] = is_head ? *reinterpret_cast<const uint32_t*>(q + 16 * i + 2 * t) : 0u;
        query[2 * i + 1] = is_head ? *reinterpret_cast<const uint32_t*>(q + 16 * i + 2 * t + 8) : 0u;
      }
    }

    // ---- Keys
    State<D> all;
    State<D> some;  // of the warp's share of the chunk, or of one after another
    all.clear();
    some.clear();
    const int steps_of_share = item.chunk_size / (kTeam * S::kStepKeys);
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
      take_step<T, C, D>(some, place, query, score_scale, args.soft_cap, g);
      __syncwarp();  // everybody has read the stage
      loader.issue();

      if (--steps_left == 0 || step + 1 == unit.num_steps) {
        merge<D>(all, some);
        some.clear();
        steps_left = steps_of_share;
      }
    }

    // ---- Warps that share a unit: the first adds the others' sums
    if (args.is_shared) {
      float* const shared = reinterpret_cast<float*>(ring);
      if (share > 0) {
#pragma unroll
        for (int j = 0; j < D / 16; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) shared[(4 * j + i) * 32 + lane] = all.sums[j][i];
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          shared[(D / 4 + h) * 32 + lane] = all.largest[h];
          shared[(D / 4 + 2 + h) * 32 + lane] = all.weight[h];
        }
      }
      wait_for_team();
      for (int other = 1; other < kTeam && share == 0; ++other) {
        const float* theirs = reinterpret_cast<const float*>(ring + other * kRingBytes);
#pragma unroll
        for (int j = 0; j < D / 16; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) some.sums[j][i] = theirs[(4 * j + i) * 32 + lane];
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          some.largest[h] = theirs[(D / 4 + h) * 32 + lane];
          some.weight[h] = theirs[(D / 4 + 2 + h) * 32 + lane];
        }
        merge<D>(all, some);
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
    constexpr float kFactor = S::kIsF8 ? 1.0f / kValueBoost : 1.0f;
    if (item.num_chunks == 1) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (2 * t + h >= args.group_size || (args.is_shared && share > 0)) continue;
        T* out = static_cast<T*>(args.out) + item.token * args.out_token_stride +
                 (first_head + 2 * t + h) * args.out_head_stride;
        const float factor = all.weight[h] == 0 ? 0.0f : kFactor / all.weight[h];
#pragma unroll
        for (int j = 0; j < D / 16; ++j) {
          out[d_of<C>(g, j, 0)] = from_float<T>(all.sums[j][h] * factor);
          out[d_of<C>(g, j, 1)] = from_float<T>(all.sums[j][h + 2] * factor);
        }
      }
      continue;
    }

    // ---- Of several chunks: all are added in ascending order, where few units run by the team that ends last
    const int64_t first_slot = int64_t{item.sequence} * kMaxDecodeChunks;
    if (!args.is_shared || share == 0) {
      const int num_all_chunks = (item.length + item.chunk_size - 1) / item.chunk_size;
      const int chunk_slot = item.chunk - (num_all_chunks - item.num_chunks);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (2 * t + h >= args.group_size) continue;
        const int64_t slot = (first_slot + chunk_slot) * args.num_heads + first_head + 2 * t + h;
        float* target = args.partial_sums + slot * D;
#pragma unroll
        for (int j = 0; j < D / 16; ++j) {
          target[d_of<C>(g, j, 0)] = all.sums[j][h];
          target[d_of<C>(g, j, 1)] = all.sums[j][h + 2];
        }
        if (g == 0) reinterpret_cast<float2*>(args.partial_stats)[slot] = {all.largest[h], all.weight[h]};
      }
    }
    if (!args.is_shared) continue;  // merge_kernel follows: a fence here would wait for the copies on their way too
    __syncwarp();
    int32_t num_done = 0;
    int32_t* const counter = args.counters + int64_t{item.sequence} * args.num_kv_heads + unit.head;
    if (lane == 0 && share == 0) {
      // Releases what the warp has stored before the barrier, and acquires what others released.
      asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(num_done) : "l"(counter) : "memory");
      if (num_done == item.num_chunks - 1) *counter = 0;
      num_done_of_team[warp / kTeam] = num_done;
    }
    wait_for_team();
    if (num_done_of_team[warp / kTeam] != item.num_chunks - 1) continue;
    for (int head = share; head < args.group_size; head += kTeam) {
      merge_chunks<T, D>(args, item, first_head + head, lane, S::kIsF8);
    }
  }
}

// The same for all sequences of several chunks. Grid: x items, y heads by eight.
template <typename T, int D>
__global__ void __launch_bounds__(kThreads) merge_kernel(Args args, bool is_f8) {
  let_next_start();
  const DecodeItem item = args.items[blockIdx.x];
  wait_for_previous();
  const int head = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int num_all_chunks = item.num_chunks > 1 ? (item.length + item.chunk_size - 1) / item.chunk_size : 0;
  if (item.num_chunks < 2 || item.chunk != num_all_chunks - item.num_chunks || head >= args.num_heads) return;
  merge_chunks<T, D>(args, item, head, static_cast<int>(threadIdx.x) % 32, is_f8);
}

template <typename T, typename C, int D>
void launch(const AttentionCall& call, Args args) {
  args.num_units = call.plan.num_decode_items * call.kv.num_kv_heads;
  if (args.num_units == 0) return;
  const int num_blocks = num_multiprocessors();
  args.is_shared = args.num_units <= num_blocks * (kWarps / kTeam);
  const auto kernel = decode_kernel<T, C, D>;
  constexpr int kSharedBytes = Shape<C, D>::kSharedBytes;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  launch_dependent_with_memory(call.stream, kernel, dim3(static_cast<unsigned>(std::min(num_blocks, args.num_units))),
                               dim3(kThreads), kSharedBytes, args);
  if (args.is_shared || !call.plan.has_several_chunks) return;
  launch_dependent(
      call.stream, merge_kernel<T, D>,
      dim3(static_cast<unsigned>(call.plan.num_decode_items), static_cast<unsigned>(ceil_div(args.num_heads, kWarps))),
      dim3(kThreads), args, std::is_same_v<C, F8>);
}

template <typename T>
void launch_any(const AttentionCall& call, const Args& args) {
  if (call.kv.dtype == DType::kF8E4M3) return launch<T, F8, 128>(call, args);
  if (call.kv.head_dim == 128) return launch<T, T, 128>(call, args);
  return launch<T, T, 64>(call, args);
}

}  // namespace

}  // namespace decode

bool accepts_decode_split_kv(const AttentionCall& call) {
  const PagedKv& kv = call.kv;
  const int64_t element_bytes = dtype_bytes(kv.dtype);
  const auto is_wide = [&](int64_t stride) { return stride * element_bytes % 16 == 0; };
  if (call.part != StepPart::kDecode || (call.q.dtype() != DType::kBF16 && call.q.dtype() != DType::kF16)) return false;
  if (kv.dtype == DType::kF8E4M3) {
    if (kv.head_dim != 128 || !is_aligned(kv.k_scales, 16) || !is_aligned(kv.v_scales, 16) ||
        kv.scale_page_stride % 8 != 0) {
      return false;
    }
  } else if (kv.dtype != call.q.dtype() || (kv.head_dim != 128 && kv.head_dim != 64)) {
    return false;
  }
  return call.q.size(1) / kv.num_kv_heads <= decode::kHeads && kv.page_size >= decode::kKeys &&
         std::has_single_bit(static_cast<unsigned>(kv.page_size)) && kv.token_stride == kv.head_dim &&
         is_aligned(kv.k, 16) && is_aligned(kv.v, 16) && is_wide(kv.page_stride) && is_wide(kv.head_stride) &&
         is_aligned(call.q.raw_data(), 16) && call.q.stride(0) % 8 == 0 && call.q.stride(1) % 8 == 0;
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
  args.group_size = args.num_heads / call.kv.num_kv_heads;
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

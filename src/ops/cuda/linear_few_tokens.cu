// The linear layer for up to 64 tokens of e4m3 weights with e4m3 activations, bound by the reading of weights.
//
// Grid: x tiles of 128 outputs (of the gated form: 64 gates and the 64 that belong to them), y parts of k, which add
// each other's sums at the end (linear_few_tokens.cuh). A block has two warpgroups of 64 outputs each and a warp that
// asks the copy engine for weights (128 outputs × 128 or 256 bytes a stage) and activations (N tokens by as many).
// Products on the tensor cores from shared memory (wgmma, the tokens as columns), in float; their sums, which the unit
// keeps with few bits, are added to others every 128 k, times the scale that a token has there. Weights are read once,
// activations by every tile, from the L2 cache; the limit is memory bandwidth. Weights are asked for before the kernel
// ahead has ended. The order of a token's sum depends on the weight's shape alone: `decode`.
#include "ops/cuda/linear_few_tokens.h"

#include <algorithm>

#include "ops/cuda/elementwise.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/linear_cublaslt.h"
#include "ops/cuda/linear_few_tokens.cuh"
#include "ops/cuda/stage_ring.cuh"
#include "ops/cuda/tensor_map.h"
#include "ops/cuda/wgmma_tokens.cuh"

namespace quire::cuda {

namespace {

using namespace few;

constexpr int kBoxRows = kHalfRows;
constexpr int kRowBytes = 128;  // of k, a stage
constexpr int kWeightBytes = kRows * kRowBytes;
// A stage is so many boxes wide: two where they are small, for fewer waits.
template <int N>
constexpr int kWidth = N <= 16 ? 2 : 1;
template <int N>
constexpr int kStageBytes = kWidth<N>*(kWeightBytes + N * kRowBytes);
constexpr int kMaxStages = 6;
// Two blocks a multiprocessor: one waits for the kernel before, its weights on their way, while another works.
constexpr int kRingBytes = 108 * 1024;
template <int N>
constexpr int kStages = std::min(kMaxStages, kRingBytes / kStageBytes<N>);
template <int N>
constexpr int kSharedBytes = kStages<N>* kStageBytes<N> + 1024;

struct Args {
  Output output;
  const float* x_scales;  // [2 num_pairs, N]
  int num_pairs;          // of boxes, in all parts
};

template <int N>
__global__ void __launch_bounds__(kThreads, 2)
    few_tokens_kernel(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map, Args args) {
  constexpr int S = kStages<N>;
  constexpr int kScales = kWidth<N> * N;  // of a stage
  constexpr uint32_t kExpectedBytes = kStageBytes<N> + kScales * 4;
  extern __shared__ char dynamic_shared[];
  __shared__ uint64_t full[S];
  __shared__ uint64_t empty[S];
  __shared__ alignas(16) float x_scales[S][kScales];
  // The swizzle repeats every 1024 bytes.
  char* const ring = dynamic_shared + (1024 - shared_address(dynamic_shared) % 1024) % 1024;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int part = static_cast<int>(blockIdx.y);
  const int num_parts = static_cast<int>(gridDim.y);
  // Parts begin at pairs of boxes, whatever a stage is: the order of sums is the same for every tile.
  const int begin = args.num_pairs * part / num_parts * (2 / kWidth<N>);
  const int count = args.num_pairs * (part + 1) / num_parts * (2 / kWidth<N>)-begin;
  const bool is_gated = args.output.is_gated();
  const int first_output = static_cast<int>(blockIdx.x) * args.output.outputs_of_tile();
  init_ring(full, empty, kConsumers / 32);
  let_next_start();
  __syncthreads();

  if (warp == kConsumers / 32) {
    if (lane == 0) {
      const uint64_t once = evict_first_policy();
      const uint64_t often = evict_last_policy();
      // Of a stage: weights box by box in k, then tokens.
      const auto load_weights = [&](int i, int s) {
        char* const stage = ring + s * kStageBytes<N>;
        barrier_arrive_expecting(&full[s], kExpectedBytes);
#pragma unroll
        for (int box = 0; box < kWidth<N>; ++box) {
          const int k = ((begin + i) * kWidth<N> + box) * kRowBytes;
          copy_box(stage + box * kWeightBytes, &w_map, Coordinates2{k, first_output}, &full[s], once);
          copy_box(stage + box * kWeightBytes + kBoxRows * kRowBytes, &w_map,
                   Coordinates2{k, first_output + (is_gated ? args.output.num_outputs : kBoxRows)}, &full[s], once);
        }
      };
      const auto load_tokens = [&](int i, int s) {
        char* const stage = ring + s * kStageBytes<N> + kWidth<N> * kWeightBytes;
#pragma unroll
        for (int box = 0; box < kWidth<N>; ++box) {
          const int k = ((begin + i) * kWidth<N> + box) * kRowBytes;
          copy_box(stage + box * N * kRowBytes, &x_map, Coordinates2{k, 0}, &full[s], often);
        }
        copy_bytes(x_scales[s], args.x_scales + (begin + i) * kScales, kScales * 4, &full[s]);
      };
      fill_ring(empty, count, load_weights, load_tokens);
    } else {
      prefetch_finish<true>(args.output, lane - 1);
    }
  } else {
    wait_for_previous();
    const int group = warp / 4;
    float sums[N / 2] = {};
    const auto release = [&](int stage) {
      __syncwarp();
      if (lane == 0) barrier_arrive(&empty[stage]);
    };
    int s = 0;
    uint32_t parity = 0;
    const auto advance = [&] {
      if (++s == S) {
        s = 0;
        parity ^= 1u;
      }
    };
    const auto multiply = [&](float(&target)[N / 2], int stage_index, int step, bool adds) {
      const uint32_t stage = shared_address(ring + stage_index * kStageBytes<N>);
      const uint32_t w = stage + static_cast<uint32_t>(group * kBoxRows * kRowBytes);
      const uint32_t x = stage + kWidth<N> * kWeightBytes;
      const uint32_t w_at = w + static_cast<uint32_t>(step / 4 * kWeightBytes + step % 4 * 32);
      const uint32_t x_at = x + static_cast<uint32_t>(step / 4 * N * kRowBytes + step % 4 * 32);
      wgmma_tokens<F8, N>(target, matrix_descriptor(w_at, 16, 1024), matrix_descriptor(x_at, 16, 1024), adds);
    };
    const auto start_box = [&](float(&some)[N / 2], int stage, int box) {
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) multiply(some, stage, 4 * box + step, step > 0);
      wgmma_commit();
    };
    const auto load_scales = [&](float2(&scales)[N / 8], int stage, int box) {
#pragma unroll
      for (int j = 0; j < N / 8; ++j) {
        scales[j] = *reinterpret_cast<const float2*>(&x_scales[stage][box * N + 8 * j + 2 * (lane % 4)]);
      }
    };
    const auto add_box = [&](const float(&some)[N / 2], const float2(&scales)[N / 8]) {
#pragma unroll
      for (int j = 0; j < N / 2; ++j) {
        sums[j] = fmaf(some[j], j % 2 == 0 ? scales[j / 4].x : scales[j / 4].y, sums[j]);
      }
    };
    for (int i = 0; i < count; ++i) {
      barrier_wait(&full[s], parity);
      if constexpr (kWidth<N> == 1) {
        float some[N / 2];
        float2 scales[N / 8];
        start_box(some, s, 0);
        load_scales(scales, s, 0);
        wgmma_wait<0>();
        hold(some);
        release(s);
        add_box(some, scales);
      } else {
        // While the sums of one box are added, the other's products run.
        float first[N / 2];
        float second[N / 2];
        float2 scales[N / 8];
        start_box(first, s, 0);
        start_box(second, s, 1);
        load_scales(scales, s, 0);
        wgmma_wait<1>();
        hold(first);
        add_box(first, scales);
        load_scales(scales, s, 1);
        wgmma_wait<0>();
        hold(second);
        release(s);
        add_box(second, scales);
      }
      advance();
    }
    // The ring is free: everything that was asked for has come and been used.
    consumer_barrier();
    store_sums<N>(ring, sums);
    consumer_barrier();
    finish_tile<N, true>(args.output, ring);
  }
}

// ---- Launches -------------------------------------------------------------------------------------------------------

// How the blocks lie.
struct Division {
  int num_tiles;
  int num_parts;
};
Division divide(const LinearCall& call) {
  Division division;
  division.num_tiles = num_tiles_of(output_of(call));
  division.num_parts = parts_of_pairs(division.num_tiles, num_pairs_of(call.weight));
  return division;
}

struct Maps {
  CUtensorMap w;
  CUtensorMap x;
};

template <int N>
void launch(const LinearCall& call, const Division& division, const Maps& maps, const Args& args) {
  const auto kernel = few_tokens_kernel<N>;
  const int num_blocks = division.num_tiles * division.num_parts;
  const int shared_bytes = std::max(kSharedBytes<N>, least_shared_bytes(num_blocks));
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  CHECK(division.num_parts == 1 || has_room_for_sums(num_blocks, N));
  launch_dependent_with_memory(
      call.stream, kernel, dim3(static_cast<unsigned>(division.num_tiles), static_cast<unsigned>(division.num_parts)),
      dim3(kThreads), static_cast<size_t>(shared_bytes), maps.w, maps.x, args);
}

void launch_any(const LinearCall& call, const Division& division, const Maps& maps, const Args& args) {
  switch (tile_of(static_cast<int>(call.x.size(0)))) {
    case 8:
      return launch<8>(call, division, maps, args);
    case 16:
      return launch<16>(call, division, maps, args);
    case 32:
      return launch<32>(call, division, maps, args);
    default:
      return launch<64>(call, division, maps, args);
  }
}

// Rows of x as e4m3, with a scale for 128 columns, in the buffer of slices.
struct F8Groups {
  uint8_t* codes;
  float* scales;
};
int64_t group_code_bytes(const LinearCall& call) {
  return ceil_div<int64_t>(call.x.size(0) * call.weight.k, 256) * 256;
}
bool has_room_for_groups(const LinearCall& call) {
  const int64_t num_groups = 2 * ceil_div<int64_t>(call.weight.k, 256);
  return group_code_bytes(call) + num_groups * kMaxFewTokens * 4 <= call.library->slice_bytes();
}

}  // namespace

bool fits_few_tokens(const LinearCall& call) {
  const Weight& weight = call.weight;
  if (call.x.dtype() == DType::kF32 || call.offsets.is_given() || weight.num_experts != 1) return false;
  if (weight.layout != Layout::kCudaF8 || weight.k % 16 != 0) return false;
  if (call.norm.weight.is_given() && !accepts_quantize_normed(call.x, call.norm.weight)) return false;
  return weight.n % 8 == 0 && weight.n < (1 << 30) && weight.k < (1 << 30) && is_call_aligned(call);
}

bool accepts_few_tokens(const LinearCall& call) {
  return call.x.size(0) >= 1 && call.x.size(0) <= kMaxFewTokens && fits_few_tokens(call) && has_room_for_groups(call);
}

bool accepts_gated_few_tokens(const LinearCall& call) {
  return accepts_few_tokens(call) && call.weight.n % 16 == 0 && call.y.dtype() == call.x.dtype();
}

void linear_few_tokens(const LinearCall& call) {
  const Weight& weight = call.weight;
  const int num_tokens = static_cast<int>(call.x.size(0));
  const int tile = tile_of(num_tokens);
  uint8_t* const codes = static_cast<uint8_t*>(call.library->slice_data());
  const F8Groups groups = {codes, reinterpret_cast<float*>(codes + group_code_bytes(call))};
  quantize_groups_to_f8(call.stream, {.codes = groups.codes,
                                      .scales = groups.scales,
                                      .scale_stride = tile,
                                      .x = call.x,
                                      .norm_weight = call.norm.weight,
                                      .epsilon = call.norm.epsilon});
  const int64_t w_sizes[] = {weight.k, weight.n};
  const int64_t x_sizes[] = {weight.k, num_tokens};
  const int64_t strides[] = {weight.k};
  const int32_t w_box[] = {kRowBytes, kBoxRows};
  const int32_t x_box[] = {kRowBytes, tile};
  const Maps maps = {
      .w = make_tensor_map({.dtype = DType::kF8E4M3,
                            .data = const_cast<std::byte*>(weight.parts[0].data()),
                            .sizes = w_sizes,
                            .strides = strides,
                            .box = w_box}),
      .x = make_tensor_map(
          {.dtype = DType::kF8E4M3, .data = groups.codes, .sizes = x_sizes, .strides = strides, .box = x_box})};
  Args args{.output = output_of(call), .x_scales = groups.scales, .num_pairs = num_pairs_of(weight)};
  args.output.w_scales = reinterpret_cast<const float*>(weight.parts[1].data());
  launch_any(call, divide(call), maps, args);
}

}  // namespace quire::cuda

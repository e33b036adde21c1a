// The linear layer for up to 64 tokens, bound by the reading of weights: e4m3 weights with e4m3 activations, or 16-bit
// ones with activations of their dtype.
//
// Grid: x tiles of 128 outputs (of the gated form: 64 gates and the 64 that belong to them), y parts of k, which are
// the blocks of one cluster. A block has two warpgroups of 64 outputs each and a warp that asks the copy engine for
// weights (128 outputs × 128 or 256 bytes a stage) and activations (N tokens by as many). Products on the tensor cores
// from shared memory (wgmma, the tokens as columns), in float; sums of e4m3 products, which the unit keeps with few
// bits, are added to others every 256 k. The parts of k are added in ascending order through the cluster's
// shared memory. Weights are read once, activations by every tile, from the L2 cache; the limit is memory bandwidth.
// Weights are asked for before the kernel ahead has ended. The order of a token's sum depends on the weight's shape
// alone: `decode`.
#include "ops/cuda/linear_few_tokens.h"

#include <algorithm>
#include <type_traits>

#include "ops/cuda/elementwise.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/linear_cublaslt.h"
#include "ops/cuda/linear_few_tokens.cuh"
#include "ops/cuda/tensor_map.h"
#include "ops/cuda/wgmma_tokens.cuh"

namespace quire::cuda {

namespace {

using namespace few;

constexpr int kBoxRows = kHalfRows;
constexpr int kRowBytes = 128;  // of k, a stage
constexpr int kWeightBytes = kRows * kRowBytes;
// Where cuBLASLt is not faster (H200; 8B shapes). It multiplies e4m3 in tiles of 128 tokens at least, and 16-bit
// weights of many outputs or inputs at full speed.
constexpr int kMaxTokensOfF8 = 64;
constexpr int kMaxTokensOf16Bits = 16;
constexpr int64_t kMaxSideOf16Bits = 8192;
constexpr int kMaxTokensOfWideGates = 8;  // the activation is fused

// A stage is so many boxes wide: two where they are small, for fewer waits.
template <int N>
constexpr int kWidth = N <= 32 ? 2 : 1;
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
  int elements_per_box;  // of k
  int num_pairs;         // of boxes, in all parts
};

template <typename W, int N>
__global__ void __launch_bounds__(kThreads, 2)
    few_tokens_kernel(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map, Args args) {
  constexpr bool kIsF8 = std::is_same_v<W, F8>;
  constexpr int S = kStages<N>;
  extern __shared__ char dynamic_shared[];
  __shared__ uint64_t full[S];
  __shared__ uint64_t empty[S];
  // The swizzle repeats every 1024 bytes.
  char* const ring = dynamic_shared + (1024 - shared_address(dynamic_shared) % 1024) % 1024;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int part = static_cast<int>(blockIdx.y);
  const int num_parts = static_cast<int>(gridDim.y);
  // Parts begin at pairs of boxes, whatever a stage is: the order of sums is the same for every tile.
  const int begin = args.num_pairs * part / num_parts * (2 / kWidth<N>);
  const int count = args.num_pairs * (part + 1) / num_parts * (2 / kWidth<N>)-begin;
  const bool is_gated = args.output.is_gated();
  const int first_output = static_cast<int>(blockIdx.x) * args.output.outputs_of_tile();
  if (threadIdx.x == 0) {
    for (int s = 0; s < S; ++s) {
      barrier_init(&full[s], 1);
      barrier_init(&empty[s], kConsumers / 32);
    }
    fence_async_proxy();
  }
  let_next_start();
  __syncthreads();

  if (warp == kConsumers / 32) {
    if (threadIdx.x % 32 == 0) {
      const uint64_t once = evict_first_policy();
      const uint64_t often = evict_last_policy();
      // Of a stage: weights box by box in k, then tokens.
      const auto load_weights = [&](int i, int s) {
        char* const stage = ring + s * kStageBytes<N>;
        barrier_arrive_expecting(&full[s], kStageBytes<N>);
#pragma unroll
        for (int box = 0; box < kWidth<N>; ++box) {
          const int k = ((begin + i) * kWidth<N> + box) * args.elements_per_box;
          copy_box(stage + box * kWeightBytes, &w_map, Coordinates2{k, first_output}, &full[s], once);
          copy_box(stage + box * kWeightBytes + kBoxRows * kRowBytes, &w_map,
                   Coordinates2{k, first_output + (is_gated ? args.output.num_outputs : kBoxRows)}, &full[s], once);
        }
      };
      const auto load_tokens = [&](int i, int s) {
        char* const stage = ring + s * kStageBytes<N> + kWidth<N> * kWeightBytes;
#pragma unroll
        for (int box = 0; box < kWidth<N>; ++box) {
          const int k = ((begin + i) * kWidth<N> + box) * args.elements_per_box;
          copy_box(stage + box * N * kRowBytes, &x_map, Coordinates2{k, 0}, &full[s], often);
        }
      };
      const int num_first = min(S, count);
      for (int i = 0; i < num_first; ++i) load_weights(i, i);
      wait_for_previous();
      for (int i = 0; i < num_first; ++i) load_tokens(i, i);
      int s = 0;
      uint32_t parity = 0;
      for (int i = num_first; i < count; ++i) {
        barrier_wait(&empty[s], parity);
        load_weights(i, s);
        load_tokens(i, s);
        if (++s == S) {
          s = 0;
          parity ^= 1u;
        }
      }
    }
    __syncwarp();
  } else {
    wait_for_previous();
    const int group = warp / 4;
    float sums[N / 2];
    float some[N / 2];  // of e4m3: since they were last added to `sums`
#pragma unroll
    for (int i = 0; i < N / 2; ++i) sums[i] = some[i] = 0;
    const auto release = [&](int stage) {
      __syncwarp();
      if (threadIdx.x % 32 == 0) barrier_arrive(&empty[stage]);
    };
    int s = 0;
    [[maybe_unused]] int before = 0;  // a stage whose products may still run
    uint32_t parity = 0;
    for (int i = 0; i < count; ++i) {
      const uint32_t stage = shared_address(ring + s * kStageBytes<N>);
      const uint32_t w = stage + static_cast<uint32_t>(group * kBoxRows * kRowBytes);
      const uint32_t x = stage + kWidth<N> * kWeightBytes;
      float(&target)[N / 2] = kIsF8 ? some : sums;
      const bool is_first = kWidth<N> == 2 || i % 2 == 0;  // of a pair
      barrier_wait(&full[s], parity);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4 * kWidth<N>; ++step) {
        const uint32_t w_at = w + static_cast<uint32_t>(step / 4 * kWeightBytes + step % 4 * 32);
        const uint32_t x_at = x + static_cast<uint32_t>(step / 4 * N * kRowBytes + step % 4 * 32);
        wgmma_tokens<W, N>(target, matrix_descriptor(w_at, 16, 1024), matrix_descriptor(x_at, 16, 1024),
                           step > 0 || !kIsF8 || !is_first);
      }
      wgmma_commit();
      if constexpr (kIsF8) {
        wgmma_wait<0>();
        hold(target);
        release(s);
        if (kWidth<N> == 2 || !is_first) {
#pragma unroll
          for (int j = 0; j < N / 2; ++j) sums[j] += some[j];
        }
      } else {
        wgmma_wait<1>();
        if (i > 0) release(before);
        before = s;
      }
      if (++s == S) {
        s = 0;
        parity ^= 1u;
      }
    }
    wgmma_wait<0>();
    hold(sums);
    // The ring is free: everything that was asked for has come and been used.
    asm volatile("bar.sync 1, 256;" ::: "memory");
    store_sums<N>(ring, sums);
  }

  finish_tile<kIsF8>(args.output, ring);
}

template <typename W, int N>
void launch(cudaStream_t stream, dim3 grid, const CUtensorMap& w_map, const CUtensorMap& x_map, const Args& args) {
  const auto kernel = few_tokens_kernel<W, N>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<N>));
  launch_cluster(stream, kernel, grid, dim3(kThreads), dim3(1, grid.y), kSharedBytes<N>, w_map, x_map, args);
}

template <typename W>
void launch_any(cudaStream_t stream, dim3 grid, const CUtensorMap& w_map, const CUtensorMap& x_map, const Args& args) {
  const int n = args.output.num_tokens;
  if (n <= 8) return launch<W, 8>(stream, grid, w_map, x_map, args);
  if (n <= 16) return launch<W, 16>(stream, grid, w_map, x_map, args);
  if constexpr (std::is_same_v<W, F8>) {
    if (n <= 32) return launch<W, 32>(stream, grid, w_map, x_map, args);
    return launch<W, 64>(stream, grid, w_map, x_map, args);
  }
}

}  // namespace

bool accepts_few_tokens(const LinearCall& call) {
  const Weight& weight = call.weight;
  const DType dtype = call.x.dtype();
  const bool is_f8 = weight.layout == Layout::kCudaF8;
  const int64_t num_tokens = call.x.size(0);
  if (dtype == DType::kF32 || num_tokens < 1 || num_tokens > (is_f8 ? kMaxTokensOfF8 : kMaxTokensOf16Bits) ||
      call.offsets.is_given() || weight.num_experts != 1) {
    return false;
  }
  if (is_f8) {
    const int64_t codes = call.x.size(0) * (weight.k + 4) + 256;
    if (weight.k % 16 != 0 || codes > call.library->slice_bytes()) return false;
  } else {
    if (weight.layout != Layout::kCudaPlanes || call.norm.weight.is_given()) return false;
    if (weight.format != (dtype == DType::kBF16 ? FormatId::kBF16 : FormatId::kF16)) return false;
    const bool is_wide = std::max(weight.n, weight.k) > kMaxSideOf16Bits;
    if (is_wide && (call.gate == Gate::kNone || num_tokens > kMaxTokensOfWideGates)) return false;
  }
  return weight.k % 8 == 0 && weight.n % 8 == 0 && weight.n < (1 << 30) && weight.k < (1 << 30) &&
         is_call_aligned(call);
}

bool accepts_gated_few_tokens(const LinearCall& call) {
  return accepts_few_tokens(call) && call.weight.n % 16 == 0 && call.y.dtype() == call.x.dtype();
}

void linear_few_tokens(const LinearCall& call) {
  const Weight& weight = call.weight;
  const int num_tokens = static_cast<int>(call.x.size(0));
  const bool is_f8 = weight.layout == Layout::kCudaF8;
  const DType dtype = is_f8 ? DType::kF8E4M3 : call.x.dtype();
  const void* x = call.x.raw_data();
  int64_t x_stride = call.x.stride(0);
  const float* x_scales = nullptr;
  if (is_f8) {
    const F8Tokens tokens = f8_tokens(*call.library, num_tokens, weight.k);
    quantize_tokens_to_f8(call.stream, {.codes = tokens.codes,
                                        .scales = tokens.scales,
                                        .x = call.x,
                                        .norm_weight = call.norm.weight,
                                        .epsilon = call.norm.epsilon});
    x = tokens.codes;
    x_stride = weight.k;
    x_scales = tokens.scales;
  }
  const int per_box = kRowBytes / static_cast<int>(dtype_bytes(dtype));
  const int64_t w_sizes[] = {weight.k, weight.n};
  const int64_t w_strides[] = {weight.k};
  const int32_t w_box[] = {per_box, kBoxRows};
  const int64_t x_sizes[] = {weight.k, num_tokens};
  const int64_t x_strides[] = {x_stride};
  const int32_t x_box[] = {per_box, tile_of(num_tokens)};
  const CUtensorMap w_map = make_tensor_map({.dtype = dtype,
                                             .data = const_cast<std::byte*>(weight.parts[0].data()),
                                             .sizes = w_sizes,
                                             .strides = w_strides,
                                             .box = w_box});
  const CUtensorMap x_map = make_tensor_map(
      {.dtype = dtype, .data = const_cast<void*>(x), .sizes = x_sizes, .strides = x_strides, .box = x_box});
  Args args{.output = output_of(call),
            .elements_per_box = per_box,
            .num_pairs = static_cast<int>(ceil_div<int64_t>(weight.k, 2 * per_box))};
  if (is_f8) {
    args.output.w_scales = reinterpret_cast<const float*>(weight.parts[1].data());
    args.output.x_scales = x_scales;
  }
  const int num_tiles = num_tiles_of(args.output);
  constexpr int kLeastPairs = 4;
  const dim3 grid(static_cast<unsigned>(num_tiles),
                  static_cast<unsigned>(choose_parts(num_tiles, args.num_pairs, kLeastPairs)));
  const auto function = is_f8 ? launch_any<F8> : dtype == DType::kBF16 ? launch_any<bf16> : launch_any<f16>;
  function(call.stream, grid, w_map, x_map, args);
}

}  // namespace quire::cuda

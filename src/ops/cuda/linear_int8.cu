// The linear layer with int8 weights for any number of tokens: activations become int8 with a scale a token
// (quantize_tokens_int8.cu), sums are integers of 32 bits and become y as sum * (scale of the output * scale of the
// token) + bias + residual, or what the gated activation makes of them. Sums are exact, so a token has the same bits
// whatever the number of tokens and however the work is cut.
//
// A block is a tile of 128 outputs (of the gated form: 64 gates and the 64 that belong to them), N tokens and a part of
// k. Two warpgroups of 64 outputs each multiply on the tensor cores from shared memory (wgmma, the tokens as columns);
// a warp asks the copy engine for weights (128 outputs × 128 or 256 bytes a stage) and tokens. With few tokens the
// parts of k are the blocks of one cluster, which add their sums through its shared memory, and weights are asked for
// before the kernel ahead has ended; the limit is the reading of weights. With many tokens tiles of 256 tokens are
// taken in groups, so that tokens and weights of a wave of blocks stay in the L2 cache; the limit is arithmetic.
#include "ops/cuda/linear_int8.h"

#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/linear_cublaslt.h"
#include "ops/cuda/linear_few_tokens.cuh"
#include "ops/cuda/stage_ring.cuh"
#include "ops/cuda/tensor_map.h"
#include "ops/cuda/wgmma_int8.cuh"

namespace quire::cuda {

namespace {

using few::kConsumers;
using few::kHalfRows;
using few::kRows;
using few::kSumStride;
using few::kThreads;
using few::Output;

constexpr int kBoxBytes = 128;  // of k, which are as many elements
constexpr int kWeightBytes = kRows * kBoxBytes;
constexpr int kTokenTilesAtOnce = 8;  // whose blocks are neighbours

// What one N takes. Up to 128 tokens two blocks share a multiprocessor: one waits while another works.
template <int N>
struct Shape {
  static constexpr int kBlocks = N <= 128 ? 2 : 1;
  static constexpr int kBoxes = N <= 32 ? 2 : 1;  // of a stage, for fewer waits where they are small
  static constexpr int kStageBytes = kBoxes * (kWeightBytes + N * kBoxBytes);
  static constexpr int kRingBytes = (kBlocks == 2 ? 108 : 208) * 1024;
  static constexpr int kStages = std::min(6, kRingBytes / kStageBytes);
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;
  static_assert(N * kSumStride * 4 <= kStages * kStageBytes);
  static constexpr int kOutputsAtOnce = N <= 128 ? 2 : 8;  // that a thread stores; 8 spill where there are parts
};

struct Args {
  Output output;
  int num_stages;  // in all parts of k
  int num_tiles;   // of outputs
  int num_token_tiles;
};

// The sums of a consumer thread, as wgmma leaves them, to shared memory: [token][output].
template <int N>
__device__ __forceinline__ void store_sums(char* ring, const int32_t (&sums)[N / 2]) {
  int32_t* const shared_sums = reinterpret_cast<int32_t*>(ring);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    const int token = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
    shared_sums[token * kSumStride + row + i % 4 / 2 * 8] = sums[i];
  }
}

// V neighbours of a row of T, V a multiple of 2.
template <int V>
__device__ __forceinline__ void load_some(float (&values)[V], const void* data, DType dtype, int64_t index) {
#pragma unroll
  for (int v = 0; v < V; v += 2) {
    const float2 pair = few::load_pair(data, dtype, index + v);
    values[v] = pair.x;
    values[v + 1] = pair.y;
  }
}
template <int V>
__device__ __forceinline__ void store_some(void* data, DType dtype, int64_t index, const float (&values)[V]) {
  if (dtype == DType::kF32) {
    float* const target = static_cast<float*>(data) + index;
    if constexpr (V % 4 == 0) {
#pragma unroll
      for (int v = 0; v < V; v += 4) {
        *reinterpret_cast<float4*>(target + v) = {values[v], values[v + 1], values[v + 2], values[v + 3]};
      }
    } else {
      *reinterpret_cast<float2*>(target) = {values[0], values[1]};
    }
    return;
  }
  Vector<uint32_t, V / 2> words;
#pragma unroll
  for (int i = 0; i < V / 2; ++i) {
    words.v[i] = dtype == DType::kBF16 ? pack_pair<bf16>(values[2 * i], values[2 * i + 1])
                                       : pack_pair<f16>(values[2 * i], values[2 * i + 1]);
  }
  *reinterpret_cast<Vector<uint32_t, V / 2>*>(static_cast<uint16_t*>(data) + index) = words;
}

// All threads of all blocks of a cluster, once the sums of each block lie at the start of its ring: every block adds
// and stores its share of the tile's outputs.
template <int V>
__device__ __forceinline__ void finish_tile(const Output& args, char* ring, int first_output) {
  const int part = static_cast<int>(blockIdx.y);
  const int num_parts = static_cast<int>(gridDim.y);
  const bool is_gated = args.is_gated();
  if (num_parts > 1) {
    cluster_barrier();
  } else {
    __syncthreads();
  }
  if (threadIdx.x < kConsumers) {
    const uint32_t shared_sums = shared_address(ring);
    const int share = args.outputs_of_tile() / num_parts;
    const int num_columns = share / V;  // threads a token
    const int row = part * share + static_cast<int>(threadIdx.x) % num_columns * V;
    const int output = first_output + row;
    const int stride = kConsumers / num_columns;
    const int num_tokens = output < args.num_outputs ? args.num_tokens : 0;
    float w_scale[2][V];  // of the output, and of what it gates
    float bias[2][V] = {};
    if (num_tokens > 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (i == 1 && !is_gated) break;
        load_some<V>(w_scale[i], args.w_scales, DType::kF32, output + i * args.num_outputs);
        if (args.bias != nullptr) load_some<V>(bias[i], args.bias, DType::kF32, output + i * args.num_outputs);
      }
    }
    for (int token = static_cast<int>(threadIdx.x) / num_columns; token < num_tokens; token += stride) {
      const float x_scale = args.x_scales[token];
      float residual[V] = {};
      if (args.residual != nullptr) {
        load_some<V>(residual, args.residual, args.y_dtype, token * args.residual_stride + output);
      }
      const auto load_sums = [&](float(&values)[V], int weight_row, int which) {
        const uint32_t at =
            shared_sums + static_cast<uint32_t>(token * kSumStride + weight_row) * uint32_t{sizeof(int32_t)};
        int32_t sums[V];
        if (num_parts == 1) {
          const int32_t* const own = reinterpret_cast<const int32_t*>(ring) + token * kSumStride + weight_row;
#pragma unroll
          for (int v = 0; v < V; ++v) sums[v] = own[v];
        } else {
#pragma unroll
          for (int v = 0; v < V; v += 2) {
            float2 parts[few::kMaxParts];  // all are asked for before the first is used
#pragma unroll
            for (int p = 0; p < few::kMaxParts; ++p) {
              if (p < num_parts) parts[p] = load_of_block(at + static_cast<uint32_t>(4 * v), p);
            }
            sums[v] = sums[v + 1] = 0;
#pragma unroll
            for (int p = 0; p < few::kMaxParts; ++p) {
              if (p < num_parts) {
                sums[v] += __float_as_int(parts[p].x);
                sums[v + 1] += __float_as_int(parts[p].y);
              }
            }
          }
        }
#pragma unroll
        for (int v = 0; v < V; ++v) {
          values[v] = fmaf(static_cast<float>(sums[v]), w_scale[which][v] * x_scale, bias[which][v]);
        }
      };
      float values[V];
      load_sums(values, row, 0);
      if (is_gated) {
        float up[V];
        load_sums(up, row + kHalfRows, 1);
#pragma unroll
        for (int v = 0; v < V; ++v) values[v] = gated(args.gate, args.y_dtype, values[v], up[v]);
      }
#pragma unroll
      for (int v = 0; v < V; ++v) values[v] += residual[v];
      store_some<V>(args.y, args.y_dtype, token * args.y_stride + output, values);
    }
  }
  // A block's shared memory stays until the others have read it.
  if (num_parts > 1) cluster_barrier();
}

// Grid: x tiles of outputs times tiles of tokens, y parts of k.
template <int N>
__global__ void __launch_bounds__(kThreads, Shape<N>::kBlocks)
    int8_kernel(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map, Args args) {
  using S = Shape<N>;
  extern __shared__ char dynamic_shared[];
  __shared__ uint64_t full[S::kStages];
  __shared__ uint64_t empty[S::kStages];
  // The swizzle repeats every 1024 bytes.
  char* const ring = dynamic_shared + (1024 - shared_address(dynamic_shared) % 1024) % 1024;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int part = static_cast<int>(blockIdx.y);
  const int num_parts = static_cast<int>(gridDim.y);
  const int begin = args.num_stages * part / num_parts;
  const int count = args.num_stages * (part + 1) / num_parts - begin;
  const bool is_gated = args.output.is_gated();

  // Neighbours share a tile of outputs, of a few tiles of tokens.
  const int group = static_cast<int>(blockIdx.x) / (args.num_tiles * kTokenTilesAtOnce);
  const int in_group = static_cast<int>(blockIdx.x) % (args.num_tiles * kTokenTilesAtOnce);
  const int group_size = min(kTokenTilesAtOnce, args.num_token_tiles - group * kTokenTilesAtOnce);
  const int first_output = in_group / group_size * args.output.outputs_of_tile();
  const int first_token = (group * kTokenTilesAtOnce + in_group % group_size) * N;

  init_ring(full, empty, kConsumers / 32);
  let_next_start();
  __syncthreads();

  if (warp == kConsumers / 32) {
    if (threadIdx.x % 32 == 0) {
      const uint64_t often = evict_last_policy();
      // Weights that several tiles of tokens want shall stay in the cache.
      const uint64_t of_weights = args.num_token_tiles > 1 ? often : evict_first_policy();
      // Of a stage: weights box by box in k, then tokens.
      const auto load_weights = [&](int i, int s) {
        char* const stage = ring + s * S::kStageBytes;
        barrier_arrive_expecting(&full[s], S::kStageBytes);
#pragma unroll
        for (int box = 0; box < S::kBoxes; ++box) {
          const int k = ((begin + i) * S::kBoxes + box) * kBoxBytes;
          copy_box(stage + box * kWeightBytes, &w_map, Coordinates2{k, first_output}, &full[s], of_weights);
          copy_box(stage + box * kWeightBytes + kHalfRows * kBoxBytes, &w_map,
                   Coordinates2{k, first_output + (is_gated ? args.output.num_outputs : kHalfRows)}, &full[s],
                   of_weights);
        }
      };
      const auto load_tokens = [&](int i, int s) {
        char* const stage = ring + s * S::kStageBytes + S::kBoxes * kWeightBytes;
#pragma unroll
        for (int box = 0; box < S::kBoxes; ++box) {
          const int k = ((begin + i) * S::kBoxes + box) * kBoxBytes;
          copy_box(stage + box * N * kBoxBytes, &x_map, Coordinates2{k, first_token}, &full[s], often);
        }
      };
      fill_ring(empty, count, load_weights, load_tokens);
    }
    __syncwarp();
  } else {
    wait_for_previous();
    const int warpgroup = warp / 4;
    int32_t sums[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; ++i) sums[i] = 0;
    int s = 0;
    int before = 0;  // a stage whose products may still run
    uint32_t parity = 0;
    for (int i = 0; i < count; ++i) {
      const uint32_t stage = shared_address(ring + s * S::kStageBytes);
      const uint32_t w = stage + static_cast<uint32_t>(warpgroup * kHalfRows * kBoxBytes);
      const uint32_t x = stage + S::kBoxes * kWeightBytes;
      barrier_wait(&full[s], parity);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4 * S::kBoxes; ++step) {
        const uint32_t w_at = w + static_cast<uint32_t>(step / 4 * kWeightBytes + step % 4 * 32);
        const uint32_t x_at = x + static_cast<uint32_t>(step / 4 * N * kBoxBytes + step % 4 * 32);
        wgmma_int8<N>(sums, matrix_descriptor(w_at, 16, 1024), matrix_descriptor(x_at, 16, 1024));
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (i > 0) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(&empty[before]);
      }
      before = s;
      if (++s == S::kStages) {
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

  Output output = args.output;
  const int64_t at = first_token;
  output.num_tokens = min(N, output.num_tokens - first_token);
  output.x_scales += at;
  output.y = static_cast<char*>(output.y) + at * output.y_stride * (output.y_dtype == DType::kF32 ? 4 : 2);
  if (output.residual != nullptr) {
    output.residual = static_cast<const char*>(output.residual) +
                      at * output.residual_stride * (output.y_dtype == DType::kF32 ? 4 : 2);
  }
  finish_tile<S::kOutputsAtOnce>(output, ring, first_output);
}

template <int N>
void launch(const LinearCall& call, Args args, const int8_t* codes) {
  using S = Shape<N>;
  const Weight& weight = call.weight;
  const int num_tokens = args.output.num_tokens;
  args.num_stages = ceil_div(static_cast<int>(weight.k), kBoxBytes * S::kBoxes);
  args.num_tiles = few::num_tiles_of(args.output);
  args.num_token_tiles = ceil_div(num_tokens, N);
  const int64_t w_sizes[] = {weight.k, weight.n};
  const int64_t strides[] = {weight.k};
  const int32_t w_box[] = {kBoxBytes, kHalfRows};
  const int64_t x_sizes[] = {weight.k, num_tokens};
  const int32_t x_box[] = {kBoxBytes, N};
  const CUtensorMap w_map = make_tensor_map({.dtype = DType::kI8,
                                             .data = const_cast<std::byte*>(weight.parts[0].data()),
                                             .sizes = w_sizes,
                                             .strides = strides,
                                             .box = w_box});
  const CUtensorMap x_map = make_tensor_map(
      {.dtype = DType::kI8, .data = const_cast<int8_t*>(codes), .sizes = x_sizes, .strides = strides, .box = x_box});
  constexpr int kLeastStages = 8 / S::kBoxes;
  const int num_blocks = args.num_tiles * args.num_token_tiles;
  const int parts = N <= 128 ? few::choose_parts(num_blocks, args.num_stages, kLeastStages) : 1;
  const dim3 grid(static_cast<unsigned>(num_blocks), static_cast<unsigned>(parts));
  const auto kernel = int8_kernel<N>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes));
  launch_cluster(call.stream, kernel, grid, dim3(kThreads), dim3(1, grid.y), S::kSharedBytes, w_map, x_map, args);
}

}  // namespace

bool accepts_int8(const LinearCall& call) {
  const Weight& weight = call.weight;
  return weight.layout == Layout::kCudaI8 && weight.num_experts == 1 && !call.offsets.is_given() &&
         weight.k % 16 == 0 && weight.n % 8 == 0 && weight.n < (1 << 30) && weight.k <= kMostInt8Columns &&
         call.x.size(0) * (weight.k + 4) + 256 <= call.library->slice_bytes() &&
         accepts_int8_tokens(call.x, call.norm.weight) && few::is_call_aligned(call);
}

bool accepts_gated_int8(const LinearCall& call) {
  return accepts_int8(call) && call.weight.n % 16 == 0 && call.y.dtype() == call.x.dtype();
}

void linear_int8(const LinearCall& call) {
  const Weight& weight = call.weight;
  const int num_tokens = static_cast<int>(call.x.size(0));
  // Both lie in the buffer of slices, which each product has for itself.
  int8_t* const codes = static_cast<int8_t*>(call.library->slice_data());
  float* const scales = reinterpret_cast<float*>(codes + ceil_div<int64_t>(num_tokens * weight.k, 256) * 256);
  quantize_tokens_to_int8(
      call.stream,
      {.codes = codes, .scales = scales, .x = call.x, .norm_weight = call.norm.weight, .epsilon = call.norm.epsilon});
  Args args{.output = few::output_of(call), .num_stages = 0, .num_tiles = 0, .num_token_tiles = 0};
  args.output.w_scales = reinterpret_cast<const float*>(weight.parts[1].data());
  args.output.x_scales = scales;
  if (num_tokens <= 8) return launch<8>(call, args, codes);
  if (num_tokens <= 16) return launch<16>(call, args, codes);
  if (num_tokens <= 32) return launch<32>(call, args, codes);
  if (num_tokens <= 64) return launch<64>(call, args, codes);
  // Large tiles read less, if there is one for nearly every multiprocessor.
  const bool fills_gpu = few::num_tiles_of(args.output) * ceil_div(num_tokens, 256) >= num_multiprocessors() * 7 / 8;
  if (num_tokens <= 128 || !fills_gpu) return launch<128>(call, args, codes);
  launch<256>(call, args, codes);
}

}  // namespace quire::cuda

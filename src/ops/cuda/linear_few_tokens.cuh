// What the kernels for few tokens share (linear_few_tokens.cu, linear_few_tokens_integer.cu): a block is a tile of 128
// outputs and a part of k; the parts of a tile are the blocks of one cluster and are added through its shared memory.
#pragma once

#include <algorithm>

#include "ops/cuda/cuda_support.h"
#include "ops/cuda/device_dtype.cuh"
#include "ops/cuda/gate.cuh"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/linear.h"
#include "ops/cuda/mma.cuh"

namespace quire::cuda::few {

constexpr int kRows = 128;     // weight rows of a tile
constexpr int kHalfRows = 64;  // of one warpgroup; of the gated form the gates, then what they gate
constexpr int kConsumers = 256;
constexpr int kThreads = kConsumers + 32;
constexpr int kSumStride = kRows + 4;  // floats between tokens: no two lanes of a warp on one bank
constexpr int kMaxParts = 8;

struct Output {
  void* y;
  int64_t y_stride;
  DType y_dtype;
  const float* w_scales;  // of e4m3: an output each, and a token each
  const float* x_scales;
  const float* bias;     // or null
  const void* residual;  // or null; y's dtype
  int64_t residual_stride;
  int num_tokens;
  int num_outputs;  // of y
  Gate gate;

  __device__ __forceinline__ bool is_gated() const { return gate != Gate::kNone; }
  __device__ __forceinline__ int outputs_of_tile() const { return is_gated() ? kHalfRows : kRows; }
};

inline Output output_of(const LinearCall& call) {
  const ConstTensorView& residual = call.epilogue.residual;
  const bool is_gated = call.gate != Gate::kNone;
  return {.y = call.y.raw_data(),
          .y_stride = call.y.stride(0),
          .y_dtype = call.y.dtype(),
          .w_scales = nullptr,
          .x_scales = nullptr,
          .bias = call.epilogue.bias.is_given() ? call.epilogue.bias.data<float>() : nullptr,
          .residual = residual.raw_data(),
          .residual_stride = residual.is_given() ? residual.stride(0) : 0,
          .num_tokens = static_cast<int>(call.x.size(0)),
          .num_outputs = static_cast<int>(is_gated ? call.weight.n / 2 : call.weight.n),
          .gate = call.gate};
}

inline int num_tiles_of(const Output& output) {
  return ceil_div(output.num_outputs, output.gate != Gate::kNone ? kHalfRows : kRows);
}

inline bool is_matrix_aligned(const ConstTensorView& x) {
  return is_aligned(x.raw_data(), 16) && x.stride(0) * dtype_bytes(x.dtype()) % 16 == 0;
}
inline bool is_call_aligned(const LinearCall& call) {
  const ConstTensorView& residual = call.epilogue.residual;
  return is_aligned(call.weight.parts[0].data(), 16) && is_matrix_aligned(call.x) && is_matrix_aligned(call.y) &&
         (!residual.is_given() || is_matrix_aligned(residual));
}

// Tokens as the instructions take them.
inline int tile_of(int num_tokens) {
  int tile = 8;
  while (tile < num_tokens) tile *= 2;
  return tile;
}

// Parts of k, which is num_units long: blocks for most of the GPU, each with least_units to do. More parts of less cost
// more at their end: with 8 instead of 4 a product of 4096 × 4096 in e4m3 took 11.6 instead of 8.4 us (H200).
inline int choose_parts(int num_tiles, int num_units, int least_units) {
  constexpr int kWantedBlocks = 100;
  int parts = 1;
  while (parts < kMaxParts && num_tiles * parts < kWantedBlocks && num_units >= 2 * parts * least_units) parts *= 2;
  return parts;
}

// Elements `index` and the one behind it; index is even.
__device__ __forceinline__ float2 load_pair(const void* data, DType dtype, int64_t index) {
  if (dtype == DType::kF32) return *reinterpret_cast<const float2*>(static_cast<const float*>(data) + index);
  const uint32_t pair = *reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(data) + index);
  if (dtype == DType::kBF16) return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

// Sums of a consumer thread, as wgmma leaves them, to shared memory.
template <int N>
__device__ __forceinline__ void store_sums(char* ring, const float (&sums)[N / 2]) {
  float* const shared_sums = reinterpret_cast<float*>(ring);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    const int token = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
    shared_sums[token * kSumStride + row + i % 4 / 2 * 8] = sums[i];
  }
}

// All threads of all blocks of a cluster, once the sums of each block lie at the start of its ring: every block adds
// and stores its share of the tile's outputs.
template <bool IsF8>
__device__ __forceinline__ void finish_tile(const Output& args, char* ring) {
  const int part = static_cast<int>(blockIdx.y);
  const int num_parts = static_cast<int>(gridDim.y);
  const bool is_gated = args.is_gated();
  const int outputs_of_tile = args.outputs_of_tile();
  const int first_output = static_cast<int>(blockIdx.x) * outputs_of_tile;
  cluster_barrier();
  if (threadIdx.x < kConsumers) {
    const uint32_t shared_sums = shared_address(ring);
    const int share = outputs_of_tile / num_parts;
    const int num_pairs = share / 2;
    // A thread has one pair of outputs, of every so many-th token.
    const int row = part * share + static_cast<int>(threadIdx.x) % num_pairs * 2;
    const int output = first_output + row;
    const int stride = kConsumers / num_pairs;
    const int num_tokens = output < args.num_outputs ? args.num_tokens : 0;
    float2 w_scale[2] = {{1, 1}, {1, 1}};  // of the output, and of what it gates
    float2 bias[2] = {{0, 0}, {0, 0}};
    if (num_tokens > 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (i == 1 && !is_gated) break;
        const int at = output + i * args.num_outputs;
        if (IsF8) w_scale[i] = {args.w_scales[at], args.w_scales[at + 1]};
        if (args.bias != nullptr) bias[i] = {args.bias[at], args.bias[at + 1]};
      }
    }
    constexpr int kAtOnce = 4;  // tokens: what is read of them is asked for together
    for (int first = static_cast<int>(threadIdx.x) / num_pairs; first < num_tokens; first += kAtOnce * stride) {
      float x_scale[kAtOnce];
      float2 residual[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int token = min(first + i * stride, num_tokens - 1);
        x_scale[i] = IsF8 ? args.x_scales[token] : 1.0f;
        residual[i] = {0, 0};
        if (args.residual != nullptr)
          residual[i] = load_pair(args.residual, args.y_dtype, token * args.residual_stride + output);
      }
      const auto sum_of = [&](int token, int weight_row, int which, float scale) {
        const uint32_t at =
            shared_sums + static_cast<uint32_t>(token * kSumStride + weight_row) * uint32_t{sizeof(float)};
        float2 parts[kMaxParts];  // all are asked for before the first is used
#pragma unroll
        for (int p = 0; p < kMaxParts; ++p) {
          if (p < num_parts) parts[p] = load_of_block(at, p);
        }
        float2 sum = parts[0];
#pragma unroll
        for (int p = 1; p < kMaxParts; ++p) {
          if (p < num_parts) sum = {sum.x + parts[p].x, sum.y + parts[p].y};
        }
        return float2{sum.x * (w_scale[which].x * scale) + bias[which].x,
                      sum.y * (w_scale[which].y * scale) + bias[which].y};
      };
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int token = first + i * stride;
        if (token >= num_tokens) break;
        float2 sum = sum_of(token, row, 0, x_scale[i]);
        if (is_gated) {
          const float2 up = sum_of(token, row + kHalfRows, 1, x_scale[i]);
          sum = {gated(args.gate, args.y_dtype, sum.x, up.x), gated(args.gate, args.y_dtype, sum.y, up.y)};
        }
        sum = {sum.x + residual[i].x, sum.y + residual[i].y};
        const int64_t at = token * args.y_stride + output;
        if (args.y_dtype == DType::kF32) {
          *reinterpret_cast<float2*>(static_cast<float*>(args.y) + at) = sum;
        } else {
          *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(args.y) + at) =
              args.y_dtype == DType::kBF16 ? pack_pair<bf16>(sum.x, sum.y) : pack_pair<f16>(sum.x, sum.y);
        }
      }
    }
  }
  // A block's shared memory stays until the others have read it.
  if (num_parts > 1) cluster_barrier();
}

}  // namespace quire::cuda::few

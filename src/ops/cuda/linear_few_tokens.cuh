// What the kernels for few tokens share (linear_few_tokens.cu, linear_few_tokens_integer.cu): a block is a tile of 128
// outputs and a part of k. Each part has a share of the tile's outputs, to which the others give their sums in memory;
// it adds them in ascending order. Sums are messages (messages.cuh). All blocks of a launch must run at once: see
// can_run_at_once().
//
// Not through the shared memory of clusters: where blocks have a multiprocessor each, 32 clusters of four do not all
// find room on an H200 (two waves), and where two may share one, clusters lie so unevenly that a product's first block
// was done after 15 us and its last after 24.
#pragma once

#include <algorithm>

#include "ops/cuda/cuda_support.h"
#include "ops/cuda/device_dtype.cuh"
#include "ops/cuda/gate.cuh"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/linear.h"
#include "ops/cuda/linear_cublaslt.h"
#include "ops/cuda/messages.cuh"
#include "ops/cuda/packed_pairs.cuh"

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
  const float* w_scales;  // of codes: an output each
  const float* x_scales;  // of int8 codes: a token each
  const float* bias;      // or null
  const void* residual;   // or null; y's dtype
  int64_t residual_stride;
  int num_tokens;
  int num_outputs;  // of y
  int num_gates;    // outputs of the weight from a gate to what it gates
  Gate gate;
  float* partial_sums;  // [blocks, tokens of a tile, kRows], kNothing before and behind every launch

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
          .num_gates = static_cast<int>(call.weight.n / 2),
          .gate = call.gate,
          .partial_sums = call.library->partial_sums()};
}

inline int num_tiles_of(const Output& output) {
  return ceil_div(output.num_outputs, output.gate != Gate::kNone ? kHalfRows : kRows);
}

inline bool is_matrix_aligned(const ConstTensorView& x) {
  return is_aligned(x.raw_data(), 16) && x.stride(0) * dtype_bytes(x.dtype()) % 16 == 0;
}
inline bool is_call_aligned(const LinearCall& call) {
  const ConstTensorView& residual = call.epilogue.residual;
  const ConstTensorView& bias = call.epilogue.bias;
  return is_aligned(call.weight.parts[0].data(), 16) && is_matrix_aligned(call.x) && is_matrix_aligned(call.y) &&
         (!bias.is_given() || is_aligned(bias.raw_data(), 16)) && (!residual.is_given() || is_matrix_aligned(residual));
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

// Of e4m3 weights: k in pairs of boxes.
constexpr int kPairBytes = 256;
inline int num_pairs_of(const Weight& weight) {
  return static_cast<int>(ceil_div<int64_t>(weight.k, kPairBytes));
}
inline int parts_of_pairs(int num_tiles, int num_pairs) {
  constexpr int kLeastPairs = 4;
  int parts = choose_parts(num_tiles, num_pairs, kLeastPairs);
  while (parts > 1 && num_tiles * parts > 2 * num_multiprocessors()) parts /= 2;  // two blocks each
  return parts;
}

// Of integer weights: k in chunks of 256. Where the order of sums shall be one for all numbers of tokens the blocks of
// the largest tiles must all run at once too, one a multiprocessor.
constexpr int kLeastChunks = 2;
inline int strict_parts_of_chunks(int num_tiles, int num_chunks) {
  int parts = choose_parts(num_tiles, num_chunks, kLeastChunks);
  while (parts > 1 && num_tiles * parts > num_multiprocessors()) parts /= 2;
  return parts;
}

// Where all blocks find a multiprocessor of their own they shall have one: of two that share one each is slower, and
// the slowest counts. So they ask for more shared memory than a half, yet leave enough for a block of the kernel
// behind.
inline int least_shared_bytes(int num_blocks) {
  constexpr int kMoreThanHalf = 113 * 1024;
  return num_blocks <= num_multiprocessors() ? kMoreThanHalf : 0;
}
inline bool has_room_for_sums(int num_blocks, int tile) {
  return int64_t{num_blocks} * tile * kRows <= LinearLibrary::kMaxPartialSums;
}
// Blocks that wait for one another must all run, so there may be no more. A launch's blocks find room in the end: those
// of earlier kernels wait for no later one, and those of the next start when all of this one have.
inline int can_run_at_once(int blocks_a_multiprocessor) {
  return num_multiprocessors() * blocks_a_multiprocessor;
}

// Elements `index` and the one behind it; index is even.
__device__ __forceinline__ float2 load_pair(const void* data, DType dtype, int64_t index) {
  if (dtype == DType::kF32) return *reinterpret_cast<const float2*>(static_cast<const float*>(data) + index);
  const uint32_t pair = *reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(data) + index);
  return dtype == DType::kBF16 ? unpack_pair<bf16>(pair) : unpack_pair<f16>(pair);
}

struct alignas(8) Quad16 {
  uint32_t pairs[2];
};
// Four elements from `index` on, a multiple of 4.
__device__ __forceinline__ float4 load_quad(const void* data, DType dtype, int64_t index) {
  if (dtype == DType::kF32) return *reinterpret_cast<const float4*>(static_cast<const float*>(data) + index);
  const Quad16 quad = *reinterpret_cast<const Quad16*>(static_cast<const uint16_t*>(data) + index);
  float2 pairs[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    pairs[i] = dtype == DType::kBF16 ? unpack_pair<bf16>(quad.pairs[i]) : unpack_pair<f16>(quad.pairs[i]);
  }
  return {pairs[0].x, pairs[0].y, pairs[1].x, pairs[1].y};
}
__device__ __forceinline__ Quad16 pack_quad(DType dtype, const float4& x) {
  if (dtype == DType::kBF16) return {{pack_pair<bf16>(x.x, x.y), pack_pair<bf16>(x.z, x.w)}};
  return {{pack_pair<f16>(x.x, x.y), pack_pair<f16>(x.z, x.w)}};
}

// Sums of a consumer thread, as wgmma leaves them, to its places in shared memory, or behind what is there.
template <int N, bool Adds = false>
__device__ __forceinline__ void store_sums(char* ring, const float (&sums)[N / 2]) {
  float* const shared_sums = reinterpret_cast<float*>(ring);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    const int token = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
    float& place = shared_sums[token * kSumStride + row + i % 4 / 2 * 8];
    place = Adds ? place + sums[i] : sums[i];
  }
}

__device__ __forceinline__ void consumer_barrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory");
}

// Asks for what finish_tile will read of the weight beside its codes: it is in no cache yet. Any thread.
__device__ __forceinline__ void prefetch_line(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}
template <bool IsF8>
__device__ __forceinline__ void prefetch_finish(const Output& args, int thread) {
  const int outputs_of_tile = args.outputs_of_tile();
  const int output = static_cast<int>(blockIdx.x) * outputs_of_tile + thread * 32;  // a line of floats
  if (thread * 32 >= outputs_of_tile || output >= args.num_outputs) return;
  for (int i = 0; i < (args.is_gated() ? 2 : 1); ++i) {
    if (IsF8) prefetch_line(args.w_scales + output + i * args.num_outputs);
    if (args.bias != nullptr) prefetch_line(args.bias + output + i * args.num_outputs);
  }
}

// Whose sums they are: a tile of outputs, and, among all blocks of one part, the place of those that belong together.
struct TilePlace {
  int tile;
  int place;
};

// The consumer threads of a block, once its sums lie at the start of its ring (and a barrier is behind that): gives the
// other parts what they add, adds its own share of the tile's outputs and stores them, four of a token and thread.
template <int N, bool IsF8>
__device__ __forceinline__ void finish_tile(const Output& args, char* ring, const TilePlace& at_tile) {
  const int thread = static_cast<int>(threadIdx.x);
  const int part = static_cast<int>(blockIdx.y);
  const int num_parts = static_cast<int>(gridDim.y);
  const float* const own_sums = reinterpret_cast<const float*>(ring);
  constexpr int64_t kPartSize = N * kRows;
  float* const partial_sums = args.partial_sums + static_cast<int64_t>(at_tile.place) * num_parts * kPartSize;
  const bool is_gated = args.is_gated();
  const int outputs_of_tile = args.outputs_of_tile();
  const int share = outputs_of_tile / num_parts;
  if (num_parts > 1) {
    float* const target = partial_sums + part * kPartSize;
    for (int i = thread; i < args.num_tokens * kRows / 4; i += kConsumers) {
      const int token = i / (kRows / 4);
      const int row = i % (kRows / 4) * 4;
      if (row % outputs_of_tile / share == part) continue;
      send_quad(target + token * kRows + row,
                message_of(*reinterpret_cast<const float4*>(own_sums + token * kSumStride + row)));
    }
  }
  const int num_quads = share / 4;
  const int row = part * share + thread % num_quads * 4;
  const int output = at_tile.tile * outputs_of_tile + row;
  const int stride = kConsumers / num_quads;
  // Of outputs past the last there is nothing to store, but what has been given must be taken.
  const bool is_there = output < args.num_outputs;
  float4 w_scale[2] = {{1, 1, 1, 1}, {1, 1, 1, 1}};  // of the outputs, and of what they gate
  float4 bias[2] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
  if (is_there) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i == 1 && !is_gated) break;
      const int at = output + i * args.num_gates;
      if (IsF8) w_scale[i] = load_quad(args.w_scales, DType::kF32, at);
      if (args.bias != nullptr) bias[i] = load_quad(args.bias, DType::kF32, at);
    }
  }
  // Tokens of which everything is asked for before the first is looked at: so many of few parts, or half of them.
  constexpr int kAtOnce = N > 64 ? 4 : 2;
  constexpr int kFewParts = kMaxParts / 2;
  constexpr int kPlaces = kAtOnce * kFewParts;
  const bool has_few = num_parts <= kFewParts;
  const int at_once = has_few ? kAtOnce : kAtOnce / 2;
  const auto take_sums = [&](float4(&sums)[kAtOnce], int first, int weight_row, int which) {
    uint4 given[kPlaces];
    float* const place = partial_sums + weight_row;
    const auto place_of = [&](int i) -> float* {  // null where there is nothing to wait for
      const int p = has_few ? i % kFewParts : i % kMaxParts;
      const int token = first + (has_few ? i / kFewParts : i / kMaxParts) * stride;
      return p < num_parts && p != part && token < args.num_tokens ? place + token * kRows + p * kPartSize : nullptr;
    };
    bool is_complete = num_parts == 1;
    while (!is_complete) {
      is_complete = true;
#pragma unroll
      for (int i = 0; i < kPlaces; ++i) {
        if (const float* source = place_of(i); source != nullptr) given[i] = look_at_quad(source);
      }
#pragma unroll
      for (int i = 0; i < kPlaces; ++i) {
        if (place_of(i) != nullptr) is_complete &= has_come(given[i]);
      }
    }
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) {
      const int token = first + t * stride;
      if (t >= at_once || token >= args.num_tokens) break;
      const float4 own = *reinterpret_cast<const float4*>(own_sums + token * kSumStride + weight_row);
      float4 sum = own;
#pragma unroll
      for (int p = 0; p < (t < kAtOnce / 2 ? kMaxParts : kFewParts); ++p) {
        if (p >= num_parts) break;
        float4 next = own;
        if (p != part) {
          const uint4 x = has_few ? given[t * kFewParts + p % kFewParts] : given[t % (kAtOnce / 2) * kMaxParts + p];
          next = {__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z), __uint_as_float(x.w)};
          forget_quad(place + token * kRows + p * kPartSize);
        }
        sum = p == 0 ? next : float4{sum.x + next.x, sum.y + next.y, sum.z + next.z, sum.w + next.w};
      }
      const float4& w = w_scale[which];
      const float4& b = bias[which];
      sums[t] = {sum.x * w.x + b.x, sum.y * w.y + b.y, sum.z * w.z + b.z, sum.w * w.w + b.w};
    }
  };
  for (int first = thread / num_quads; first < args.num_tokens; first += at_once * stride) {
    float4 residual[kAtOnce] = {};
    if (args.residual != nullptr && is_there) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int token = min(first + i * stride, args.num_tokens - 1);
        residual[i] = load_quad(args.residual, args.y_dtype, token * args.residual_stride + output);
      }
    }
    float4 sums[kAtOnce] = {};
    float4 ups[kAtOnce] = {};
    take_sums(sums, first, row, 0);
    if (is_gated) take_sums(ups, first, row + kHalfRows, 1);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int token = first + i * stride;
      if (i >= at_once || token >= args.num_tokens) break;
      float4 sum = sums[i];
      if (is_gated) {
        const float4& up = ups[i];
        sum = {gated(args.gate, args.y_dtype, sum.x, up.x), gated(args.gate, args.y_dtype, sum.y, up.y),
               gated(args.gate, args.y_dtype, sum.z, up.z), gated(args.gate, args.y_dtype, sum.w, up.w)};
      }
      if (!is_there) continue;
      sum = {sum.x + residual[i].x, sum.y + residual[i].y, sum.z + residual[i].z, sum.w + residual[i].w};
      const int64_t at = token * args.y_stride + output;
      if (args.y_dtype == DType::kF32) {
        *reinterpret_cast<float4*>(static_cast<float*>(args.y) + at) = sum;
      } else {
        *reinterpret_cast<Quad16*>(static_cast<uint16_t*>(args.y) + at) = pack_quad(args.y_dtype, sum);
      }
    }
  }
}
template <int N, bool IsF8>
__device__ __forceinline__ void finish_tile(const Output& args, char* ring) {
  finish_tile<N, IsF8>(args, ring, {static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.x)});
}

}  // namespace quire::cuda::few

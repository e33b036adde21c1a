// The linear layer for up to 16 tokens, bound by the reading of weights: the tensor cores multiply 16 outputs by 8
// tokens, weights come straight from memory into the registers of the instruction, 16 bytes a thread.
//
// Grid: x panels of 16 outputs, y groups of 8 tokens. A block's 8 warps share the panel's k, tile by tile in turn, and
// add their sums in the order of warps at the end. Each weight is read once for each group of 8 tokens, so the limit is
// memory bandwidth. Codes of integer formats become 16-bit floats exactly, are multiplied, and only a group's sum is
// scaled, in float; a minimum multiplies the sum of the group's activations, which is a product with ones.
// Columns of tokens that do not exist repeat the last one and are not stored. The order of a token's sum depends on the
// weight's shape alone: reduction order `decode`.
#pragma once

#include <type_traits>

#include "ops/cuda/cuda_support.h"
#include "ops/cuda/device_weight.cuh"
#include "ops/cuda/linear.h"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/packed_pairs.cuh"

namespace quire::cuda {

constexpr int kSkinnyWarps = 8;
constexpr int kSkinnyThreads = 32 * kSkinnyWarps;
constexpr int kSkinnyTokens = 8;

struct SkinnyArgs {
  const void* x;
  int64_t x_stride;
  void* y;
  int64_t y_stride;
  DType y_dtype;
  const float* bias;
  const void* residual;
  int64_t residual_stride;
  int num_tokens;
};

// What a thread has of its warp's sums: outputs g and g + 8 of the panel for tokens 2t and 2t + 1.
struct SkinnySums {
  float v[4] = {};
};

// Adds the warps' sums and stores the block's outputs.
__device__ __forceinline__ void finish_skinny(const SkinnySums& sums, const SkinnyArgs& args, int64_t n) {
  __shared__ float shared[kSkinnyWarps][kSkinnyTokens][16];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  const int t = static_cast<int>(threadIdx.x) % 4;
  shared[warp][2 * t][g] = sums.v[0];
  shared[warp][2 * t + 1][g] = sums.v[1];
  shared[warp][2 * t][g + 8] = sums.v[2];
  shared[warp][2 * t + 1][g + 8] = sums.v[3];
  __syncthreads();
  if (threadIdx.x >= 16 * kSkinnyTokens) return;
  const int token_in_group = static_cast<int>(threadIdx.x) / 16;
  const int row = static_cast<int>(threadIdx.x) % 16;
  const int64_t token = int64_t{blockIdx.y} * kSkinnyTokens + token_in_group;
  const int64_t output = int64_t{blockIdx.x} * 16 + row;
  if (token >= args.num_tokens || output >= n) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kSkinnyWarps; ++w) sum += shared[w][token_in_group][row];
  if (args.bias != nullptr) sum += args.bias[output];
  if (args.residual != nullptr) {
    sum += load_as_float(args.residual, args.y_dtype, token * args.residual_stride + output);
  }
  store_float_as(args.y, args.y_dtype, token * args.y_stride + output, sum);
}

// ---- Float weights, rows as the file has them -----------------------------------------------------------------------

// A tile is 32 k: thread (g, t) holds k 8t .. 8t + 7 of rows g and g + 8, and of token g.
template <typename T>
__global__ void __launch_bounds__(kSkinnyThreads, 2)
    skinny_float_kernel(const T* w, int64_t n, int64_t k, SkinnyArgs args) {
  constexpr int kUnroll = 4;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  const int t = static_cast<int>(threadIdx.x) % 4;
  const int64_t token = int64_t{blockIdx.y} * kSkinnyTokens + g;
  const int64_t first_row = int64_t{blockIdx.x} * 16 + g;
  const T* row_a = w + min(first_row, n - 1) * k + 8 * t;
  const T* row_b = w + min(first_row + 8, n - 1) * k + 8 * t;
  const T* x = static_cast<const T*>(args.x) + min(token, int64_t{args.num_tokens} - 1) * args.x_stride + 8 * t;
  const int num_tiles = static_cast<int>(k / 32);
  SkinnySums sums;
  for (int tile = warp; tile < num_tiles; tile += kSkinnyWarps * kUnroll) {
    uint4 a[kUnroll];
    uint4 b[kUnroll];
    uint4 c[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = int64_t{tile + u * kSkinnyWarps} * 32;
      if (at >= k) break;
      a[u] = load_once(row_a + at);
      b[u] = load_once(row_b + at);
      c[u] = *reinterpret_cast<const uint4*>(x + at);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (tile + u * kSkinnyWarps >= num_tiles) break;
      mma<T>(sums.v, {a[u].x, b[u].x, a[u].y, b[u].y}, c[u].x, c[u].y);
      mma<T>(sums.v, {a[u].z, b[u].z, a[u].w, b[u].w}, c[u].z, c[u].w);
    }
  }
  finish_skinny(sums, args, n);
}

// ---- Integer formats: tiles of weights.h ----------------------------------------------------------------------------

// Scale and minimum of one output and group, as stored.
struct RawScale {
  f16 d;
  f16 m;
  uint8_t scale;
  uint8_t min;
};

template <ScaleKind Kind>
__device__ __forceinline__ RawScale load_raw_scale(const uint8_t* block, int row, int group) {
  RawScale raw = {};
  const f16* halves = reinterpret_cast<const f16*>(block);
  raw.d = halves[row];
  if constexpr (Kind == ScaleKind::kHalfAndMin || Kind == ScaleKind::kSuperBytes || Kind == ScaleKind::kSuperNibbles) {
    raw.m = halves[16 + row];
  }
  if constexpr (Kind == ScaleKind::kSuperBytes) {
    raw.scale = block[64 + 16 * group + row];
    raw.min = block[64 + 16 * (8 + group) + row];  // 8 groups of 32
  }
  if constexpr (Kind == ScaleKind::kHalfAndZero) raw.min = block[32 + row];
  if constexpr (Kind == ScaleKind::kSuperNibbles) raw.scale = block[64 + 16 * group + row];
  if constexpr (Kind == ScaleKind::kSuperSigned) raw.scale = block[32 + 16 * group + row];
  return raw;
}

template <ScaleKind Kind>
__device__ __forceinline__ ScaleAndMin decode_scale(const RawScale& raw) {
  const float d = to_float(raw.d);
  const float m = to_float(raw.m);
  if constexpr (Kind == ScaleKind::kHalfAndMin) return {d, m};
  if constexpr (Kind == ScaleKind::kHalfAndZero) return {d, -d * static_cast<float>(raw.min)};
  if constexpr (Kind == ScaleKind::kSuperBytes)
    return {d * static_cast<float>(raw.scale), -m * static_cast<float>(raw.min)};
  if constexpr (Kind == ScaleKind::kSuperNibbles) {
    return {d * static_cast<float>(raw.scale & 15), -m * static_cast<float>(raw.scale >> 4)};
  }
  if constexpr (Kind == ScaleKind::kSuperSigned) return {d * static_cast<float>(static_cast<int8_t>(raw.scale)), 0};
  return {d, 0};
}

// Codes of 4 bits, less an offset, as pairs of T: nibbles p and p + 4 of the word are the pair of register p.
template <typename T>
__device__ __forceinline__ void unpack_4bit(uint32_t (&a)[4], uint32_t word, uint32_t offset_pair);
template <>
__device__ __forceinline__ void unpack_4bit<bf16>(uint32_t (&a)[4], uint32_t word, uint32_t offset_pair) {
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    // 0x4300 | code is 128 + code.
    const uint32_t biased = (word >> (4 * p) & 0x000f000fu) | 0x43004300u;
    const __nv_bfloat162 pair = __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&biased),
                                        *reinterpret_cast<const __nv_bfloat162*>(&offset_pair));
    a[p] = *reinterpret_cast<const uint32_t*>(&pair);
  }
}
template <>
__device__ __forceinline__ void unpack_4bit<f16>(uint32_t (&a)[4], uint32_t word, uint32_t offset_pair) {
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    // 0x6400 | code is 1024 + code.
    const uint32_t biased = (word >> (4 * p) & 0x000f000fu) | 0x64006400u;
    const __half2 pair =
        __hsub2(*reinterpret_cast<const __half2*>(&biased), *reinterpret_cast<const __half2*>(&offset_pair));
    a[p] = *reinterpret_cast<const uint32_t*>(&pair);
  }
}

// Codes of 8 bits, less an offset: bytes 2 p and 2 p + 1 of the two words are the pair of register p.
template <typename T>
__device__ __forceinline__ void unpack_8bit(uint32_t (&a)[4], uint32_t low, uint32_t high, int offset);
template <>
__device__ __forceinline__ void unpack_8bit<bf16>(uint32_t (&a)[4], uint32_t low, uint32_t high, int offset) {
  const float bias = 8388608.0f + static_cast<float>(offset);  // 0x4b000000 | code is 2^23 + code
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    const uint32_t word = p < 2 ? low : high;
    const float first = __uint_as_float(__byte_perm(word, 0x4b000000u, p % 2 == 0 ? 0x7440 : 0x7442)) - bias;
    const float second = __uint_as_float(__byte_perm(word, 0x4b000000u, p % 2 == 0 ? 0x7441 : 0x7443)) - bias;
    a[p] = pack_pair<bf16>(first, second);
  }
}
template <>
__device__ __forceinline__ void unpack_8bit<f16>(uint32_t (&a)[4], uint32_t low, uint32_t high, int offset) {
  const __half2 bias = __half2half2(__int2half_rn(1024 + offset));
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    const uint32_t biased = __byte_perm(p < 2 ? low : high, 0x64646464u, p % 2 == 0 ? 0x4140 : 0x4342);
    const __half2 pair = __hsub2(*reinterpret_cast<const __half2*>(&biased), bias);
    a[p] = *reinterpret_cast<const uint32_t*>(&pair);
  }
}

// 4-bit codes with scales of super-blocks: four tiles at a time do not fit the registers of two blocks.
constexpr bool wants_few_registers(int bits, ScaleKind kind) {
  return bits == 4 && kind != ScaleKind::kHalf && kind != ScaleKind::kHalfAndMin;
}

template <typename T, int Bits, ScaleKind Kind, int GroupSize>
__global__ void __launch_bounds__(kSkinnyThreads, wants_few_registers(Bits, Kind) ? 3 : 2)
    skinny_integer_kernel(DeviceWeight w, SkinnyArgs args) {
  constexpr int kTile = Bits == 4 ? 64 : 32;  // k of a tile
  constexpr int kSteps = kTile / 16;
  constexpr int kGroups = kTile / GroupSize;
  constexpr int kStepsPerGroup = GroupSize / 16;
  constexpr int kUnroll = wants_few_registers(Bits, Kind) ? 2 : 4;
  constexpr bool kHasMin = Kind == ScaleKind::kHalfAndMin || Kind == ScaleKind::kSuperBytes ||
                           Kind == ScaleKind::kSuperNibbles || Kind == ScaleKind::kHalfAndZero;
  constexpr int kScaleBlock = Kind == ScaleKind::kHalf || Kind == ScaleKind::kHalfAndMin ? 32
                              : Kind == ScaleKind::kHalfAndZero                          ? 128
                                                                                         : 256;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int64_t token = int64_t{blockIdx.y} * kSkinnyTokens + g;
  const uint8_t* codes = w.codes + int64_t{blockIdx.x} * w.panel_code_bytes + 16 * lane;
  const uint8_t* scales = w.scales + int64_t{blockIdx.x} * w.panel_scale_bytes;
  const T* x = static_cast<const T*>(args.x) + min(token, int64_t{args.num_tokens} - 1) * args.x_stride + 2 * t;
  const int k = static_cast<int>(w.k);
  const int num_tiles = (k + kTile - 1) / kTile;
  const int offset = w.panel.offset;
  // What a 4-bit code is more than its value once the exponent bits stand before it.
  const float bias = static_cast<float>((std::is_same_v<T, bf16> ? 128 : 1024) + offset);
  const uint32_t offset_pair = pack_pair<T>(bias, bias);
  const uint32_t ones = pack_pair<T>(1.0f, 1.0f);
  SkinnySums sums;
  for (int first = warp; first < num_tiles; first += kSkinnyWarps * kUnroll) {
    uint4 code[kUnroll];
    uint2 activation[kUnroll][kSteps];
    RawScale raw[kUnroll][kGroups][2];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int tile = first + u * kSkinnyWarps;
      if (tile >= num_tiles) break;
      code[u] = load_once(codes + int64_t{tile} * kWeightTileBytes);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int at = tile * kTile + step * 16;
        activation[u][step] =
            at < k ? uint2{*reinterpret_cast<const uint32_t*>(x + at), *reinterpret_cast<const uint32_t*>(x + at + 8)}
                   : uint2{0, 0};
      }
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const int at = min(tile * kTile + group * GroupSize, k - GroupSize);
        const uint8_t* block = scales + at / kScaleBlock * w.panel.scale_block_bytes;
        const int group_in_block = at % kScaleBlock / GroupSize;
        raw[u][group][0] = load_raw_scale<Kind>(block, g, group_in_block);
        raw[u][group][1] = load_raw_scale<Kind>(block, g + 8, group_in_block);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + u * kSkinnyWarps >= num_tiles) break;
      const uint32_t words[4] = {code[u].x, code[u].y, code[u].z, code[u].w};
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        float product[4] = {};
        float total[4] = {};
#pragma unroll
        for (int i = 0; i < kStepsPerGroup; ++i) {
          const int step = group * kStepsPerGroup + i;
          uint32_t a[4];
          if constexpr (Bits == 4) {
            unpack_4bit<T>(a, words[step], offset_pair);
          } else {
            unpack_8bit<T>(a, words[2 * step], words[2 * step + 1], offset);
          }
          mma<T>(product, a, activation[u][step].x, activation[u][step].y);
          if constexpr (kHasMin) {
            mma<T>(total, {ones, ones, ones, ones}, activation[u][step].x, activation[u][step].y);
          }
        }
        const ScaleAndMin low = decode_scale<Kind>(raw[u][group][0]);
        const ScaleAndMin high = decode_scale<Kind>(raw[u][group][1]);
        sums.v[0] += low.scale * product[0];
        sums.v[1] += low.scale * product[1];
        sums.v[2] += high.scale * product[2];
        sums.v[3] += high.scale * product[3];
        if constexpr (kHasMin) {
          sums.v[0] += low.min * total[0];
          sums.v[1] += low.min * total[1];
          sums.v[2] += high.min * total[2];
          sums.v[3] += high.min * total[3];
        }
      }
    }
  }
  finish_skinny(sums, args, w.n);
}

SkinnyArgs skinny_args(const LinearCall& call);
void launch_skinny_4bit(const LinearCall& call);
void launch_skinny_8bit(const LinearCall& call);

template <typename T, int Bits, ScaleKind Kind, int GroupSize>
void launch_skinny_integer(const LinearCall& call) {
  const DeviceWeight w = device_weight(call.weight);
  const SkinnyArgs args = skinny_args(call);
  const dim3 grid(static_cast<unsigned>(w.panels_per_expert),
                  static_cast<unsigned>(ceil_div(args.num_tokens, kSkinnyTokens)));
  skinny_integer_kernel<T, Bits, Kind, GroupSize><<<grid, kSkinnyThreads, 0, call.stream>>>(w, args);
  CUDA_CHECK_LAUNCH();
}

}  // namespace quire::cuda

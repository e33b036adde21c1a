// What the drivers (linear_int8.cc, linear_f32.cc, linear_bf16.cc) ask of the kernels of one instruction set, and what
// those compute. Kernels are templates over vector types (linear_int8_impl.h, linear_f32_impl.h), instantiated by one
// file for each instruction set. Three reduction orders exist, and every instruction set follows them to the bit:
//
// "int8_groups": activations become int8 in blocks of 32 along k: q = round(x * (127 / max|x|)), to nearest even, and d
// the scale that comes closest to x, sum(x * q) / sum(q * q), where the upper sum starts with fma(x[16 + i], q[16 + i],
// x[i] * q[i]) for i < 16 and adds those 8, 4, 2, 1 apart. Per output, with the weight's groups (16 or 32 k) ascending
// and acc starting at 0:
//     dot = sum over the group of (code - offset) * q                    exact in int32
//     acc = fma(float(dot), scale * d, acc)                              scale * d rounded
//     acc = fma(min, d * float(sum of q over the group), acc)            formats with minima only
//
// "f32_ascending": acc = fma(x[k], w[k], acc) for k ascending, w[k] the float that dequantize_row gives.
//
// "bf16_pairs", of bf16 weights: x is rounded to bf16 (nearest even), and for pairs of k ascending, the last filled up
// with a zero:
//     acc = fma(x[2 i + 1], w[2 i + 1], acc), then acc = fma(x[2 i], w[2 i], acc)
// where subnormal operands and results count as zeros. This is what AVX512_BF16's dot product of pairs does in one
// instruction; other instruction sets do it in float.
//
// After any: y = (acc + bias) + residual, each where given; of a gated product y = activation(gate) * up, where gate
// and up are acc + bias.
#pragma once

#include <cstdint>

#include "ops/ops.h"

namespace quire::cpu {

// The most tokens that a kernel takes at once, of unpacked and of packed weights.
constexpr int kMaxTileTokens = 16;
constexpr int kMaxFewTokens = 24;
// The most panels that a kernel of unpacked weights takes at once.
constexpr int kMaxTilePanels = 2;

// Panels one after another, as packing.h lays them.
struct PackedPanels {
  const uint8_t* codes;
  const uint8_t* scales;
  int64_t codes_stride;  // bytes from panel to panel
  int64_t scales_stride;
  int64_t k;
  // Memory that will be read soon, and how much of it a kernel of packed int8 weights calls into the cache with every
  // 32 k, in whole lines. The hardware does this well by itself only while nothing but reading goes on. Kernels of
  // float weights leave it unused.
  const uint8_t* ahead = nullptr;
  int64_t ahead_step = 0;
};

// Sums of some tokens and neighbouring outputs, and what is to become of them.
struct OutputBlock {
  const float* sums;     // [num_tokens][sums_stride]; of a gated product the gate's
  const float* up_sums;  // of a gated product, else null
  int64_t sums_stride;
  float* y;
  int64_t y_stride;
  const float* bias;  // each may be null
  const float* up_bias;
  const float* residual;
  int64_t residual_stride;
  int64_t num_tokens;
  int64_t num_outputs;
  Activation activation;
};

// ---- int8 ----------------------------------------------------------------------------------------------------------

// Quantized activations of `T` tokens side by side, so that the numbers used together lie together.
struct Int8Tile {
  int8_t* codes;    // [k / 4][T][4]; kernels of rows with their own order say so
  float* scales;    // [k / 32][T]: d
  int32_t* biases;  // [k / group_size][T]: -offset * sum of q over the group
  float* sums;      // [k / group_size][T]: d * sum of q
};

// Panels one after another with their codes as bytes and their scales as floats.
struct UnpackedPanels {
  const uint8_t* codes;   // [panel][k / 4][16 lanes][4]; for AMX less the offset, as int8
  int64_t codes_stride;   // bytes from panel to panel
  const float* scales;    // [panel][k / group_size][16 lanes]
  const float* mins;      // of the same shape; null for formats without minima
  int64_t scales_stride;  // floats from panel to panel
};

struct Int8Kernels {
  void (*finish)(const OutputBlock& block);

  // Quantizes tokens x[0], x[x_stride], .. (num_tokens of them) into a tile of that many.
  void (*quantize)(const float* x, int64_t x_stride, int num_tokens, int64_t k, int group_size, int offset,
                   const Int8Tile& tile);

  // Tables are indexed by the number of tokens; null where there is no such kernel. One token has one, unless a table
  // is empty. A format has kernels of packed weights, or of unpacked ones, or both.
  struct Format {
    // Where there are kernels of both kinds: from so many tokens and so large a k on panels are unpacked.
    int64_t min_unpacked_tokens;
    int64_t min_unpacked_k;
    // Straight from packed weights, of one panel: out[t * out_stride + lane].
    void (*multiply_few[kMaxFewTokens + 1])(const PackedPanels& panel, const Int8Tile& x, float* out,
                                            int64_t out_stride);
    // One panel's codes and scales as UnpackedPanels has them. Null `codes` where the packed ones are read.
    void (*unpack)(const PackedPanels& panel, uint8_t* codes, float* scales, float* mins);
    // Packed codes are bytes already, and multiply_tile reads those.
    bool reads_packed_codes;
    // Of unpacked panels, by their number less 1: those of a panel and the next store the next one's sums from lane 16
    // on; there is a kernel of one panel for every number of tokens that has one of two.
    void (*multiply_tile[kMaxTilePanels][kMaxTileTokens + 1])(const UnpackedPanels& panels, int64_t k,
                                                              const Int8Tile& x, float* out, int64_t out_stride);
  };
  Format formats[16];  // by FormatId; all null for float formats
};

extern const Int8Kernels kScalarInt8Kernels;
extern const Int8Kernels kAvx2Int8Kernels;
extern const Int8Kernels kAvx512Int8Kernels;
extern const Int8Kernels kAvx512VnniInt8Kernels;
extern const Int8Kernels kAmxInt8Kernels;
extern const Int8Kernels kNeonInt8Kernels;
extern const Int8Kernels kNeonDotprodInt8Kernels;

// ---- f32 -----------------------------------------------------------------------------------------------------------

struct F32Kernels {
  void (*finish)(const OutputBlock& block);

  // Tables as those of Int8Kernels.
  struct Format {
    // Straight from packed weights, of one panel: out[t * out_stride + lane].   x: [k][T]   Float formats only: others
    // become floats in the cache first, which compiles to far less code and costs little more.
    void (*multiply_few[kMaxFewTokens + 1])(const PackedPanels& panel, const float* x, float* out, int64_t out_stride);
    // Weights of k in [k_begin, k_end), multiples of 256 or the end, as floats [k][16 lanes].
    void (*dequantize)(const PackedPanels& panels, int64_t panel_index, int64_t k_begin, int64_t k_end, float* out);
  };
  Format formats[16];  // by FormatId
  // Of bf16 weights in the order "bf16_pairs": a pair's second k comes before its first, in x as well.
  Format bf16_pairs;
  // out[i] = x[i] rounded to bf16, subnormals becoming zeros.
  void (*round_to_bf16)(const float* x, int64_t count, float* out);

  // out[t * out_stride + 16 * p + lane] = fma chain that starts at what stands there.
  //   weights: [panel][panel_stride floats] of [num_k][16 lanes]   x: [num_k][T]
  void (*multiply_tile[kMaxTilePanels][kMaxTileTokens + 1])(const float* weights, int64_t panel_stride, int64_t num_k,
                                                            const float* x, float* out, int64_t out_stride);
};

extern const F32Kernels kScalarF32Kernels;
extern const F32Kernels kAvx2F32Kernels;
extern const F32Kernels kAvx512F32Kernels;
extern const F32Kernels kNeonF32Kernels;

// ---- bf16, by instructions that multiply pairs
// ------------------------------------------------------------------------

// Pairs of k that a token has side by side.
constexpr int kPairsPerBlock = 16;

struct BF16Kernels {
  void (*finish)(const OutputBlock& block);
  // One row of x as pairs, blocks `block_stride` pairs apart; the last block is filled up with zeros.
  void (*round_row)(const float* x, int64_t k, uint32_t* out, int64_t block_stride);
  // Sums of one panel, and of a panel and the next: out[t * out_stride + lane], the next panel's from 16 on. Tables as
  // those of Int8Kernels; where there is a kernel of two panels there is one of one.
  //   x: [(k + 31) / 32][T][kPairsPerBlock]
  using Multiply = void (*)(const PackedPanels& panel, const uint32_t* x, float* out, int64_t out_stride);
  Multiply multiply[kMaxFewTokens + 1];
  Multiply multiply_two[kMaxTileTokens + 1];
};

extern const BF16Kernels kAvx512BF16Kernels;

}  // namespace quire::cpu

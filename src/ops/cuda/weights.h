// Layout::kCudaPlanes: how weights lie in the GPU's memory, and the code that lays them so, at load.
//
// Float formats: parts[0] is the file's rows, [n][k].
//
// Integer formats: a panel is 16 outputs, as in quant/packing.h; n is filled up to whole panels with zeros. Codes are
// stored with 4 bits (formats of at most 4 bits) or 8 (the others, and those that look values up: their codes are value
// + 128). A tile is what one warp loads at once, 16 bytes a thread, in the order in which mma.m16n8k16 takes its first
// operand, so that a load feeds the tensor cores without a shuffle:
//   parts[0]: [panel][k tile] of 512 bytes; a tile covers 64 k of 4-bit codes or 32 k of 8-bit ones, in steps of 16 k.
//     Thread `lane` holds rows lane / 4 and lane / 4 + 8, and of a step the k 2 (lane % 4) + {0, 1, 8, 9}. Register p
//     of a step: row + 8 (p % 2), k + 8 (p / 2), two neighbours in k. 4 bits: 4 bytes a step, nibble p the first of
//     register p, nibble p + 4 the second. 8 bits: 8 bytes a step, bytes 2 p and 2 p + 1 of register p.
//   parts[1]: the scales of quant/packing.h's panels.
//
// Layout::kCudaF8: parts[0] is [n][k] of e4m3, parts[1] a float an output. Layout::kCudaI8: the same of int8.
#pragma once

#include <cuda_runtime.h>

#include "base/status.h"
#include "base/thread_pool.h"
#include "quant/packing.h"
#include "quant/weight.h"
#include "tensor/tensor.h"

namespace quire::cuda {

constexpr int kWeightTileBytes = 512;

// A packed weight as kernels take it.
struct DeviceWeight {
  const uint8_t* codes = nullptr;  // or the rows of a float format
  const uint8_t* scales = nullptr;
  FormatId format = FormatId::kF32;
  PanelFormat panel = {};
  int stored_bits = 0;  // 4 or 8; 0: float
  bool is_f8 = false;   // e4m3 rows, and float scales
  bool is_i8 = false;   // int8 rows, and float scales
  int64_t n = 0;
  int64_t k = 0;
  int64_t panels_per_expert = 0;
  int64_t panel_code_bytes = 0;
  int64_t panel_scale_bytes = 0;
};

// Host memory in, device memory out; waits for the copies.
Result<Weight> pack_weight(ThreadPool& pool, const Weight& file_weight);

// Random values of about 0.02 (quant/random_rows.h). Floats are drawn on the device; of integer formats a few panels
// are packed and repeated.
Result<Weight> make_random_weight(ThreadPool& pool, const Weight& shape, uint64_t seed);

// A packed float weight as Layout::kCudaF8: each output's largest becomes 448.
Result<Weight> quantize_to_f8(const Weight& packed);
// As Layout::kCudaI8, with the values of quant/int8_rows.h.
Result<Weight> quantize_to_i8(const Weight& packed);

DeviceWeight device_weight(const Weight& packed);

// y[t] = scale * table[ids[t]]
void embedding(cudaStream_t stream, const TensorView& y, const Weight& table, const ConstTensorView& ids, float scale);

// Rows [first_row, first_row + num_rows) of expert 0 as out: [num_rows, k] of dtype.
struct DequantizeArgs {
  void* out;
  DType dtype;
  int64_t first_row;
  int64_t num_rows;
};
void dequantize(cudaStream_t stream, const Weight& packed, const DequantizeArgs& args);

}  // namespace quire::cuda

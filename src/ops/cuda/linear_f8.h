// What e4m3 products of many tokens have around cuBLASLt: sums of parts of k (linear_f8_parts.cu, called by
// LinearLibrary), and gated activations that are rounded to e4m3 at once (quantize_tokens.cu, called by CudaOps).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/linear.h"
#include "tensor/dtype.h"
#include "tensor/tensor.h"

namespace quire::cuda {

// y = (the sum of the parts, in ascending order) * w_scales * x_scales + residual, once rounded. All pointers and rows
// are aligned to 16 bytes, n is a multiple of 8.
struct AddPartsArgs {
  void* y;
  const void* residual;  // or null; may be y
  const float* sums;     // [num_parts, num_tokens, n]
  const float* w_scales;
  const float* x_scales;
  DType dtype;  // of y and residual: f16 or bf16
  int num_parts;
  int64_t num_tokens;
  int64_t n;
  int64_t y_stride;
  int64_t residual_stride;
};
void add_parts(cudaStream_t stream, const AddPartsArgs& args);

// y = activation(first half of the columns of both) * second half, and its rows as quantize_tokens_to_f8 rounds them.
// y and both are f16 or bf16; y has at most kMaxNormedF8 columns; rows are vectors of 16 bytes.
struct GateTokensArgs {
  TensorView y;
  ConstTensorView both;
  Gate gate;
  uint8_t* codes;
  float* scales;
};
bool accepts_gate_tokens(const TensorView& y);
void gate_tokens_to_f8(cudaStream_t stream, const GateTokensArgs& args);

}  // namespace quire::cuda

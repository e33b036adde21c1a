// What e4m3 products of many tokens have around cuBLASLt: sums of parts of k (linear_f8_parts.cu, called by
// LinearLibrary).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "tensor/dtype.h"

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

}  // namespace quire::cuda

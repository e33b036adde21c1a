// Descriptions of tensors for Hopper's copy engine, made on the host and passed to kernels by value.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace quire::cuda {

struct TensorMapShape {
  DType dtype;                       // f16, bf16, or one byte an element
  void* data;                        // aligned to 16 bytes
  std::span<const int64_t> sizes;    // elements, innermost first
  std::span<const int64_t> strides;  // elements, of all dimensions but the innermost: multiples of 16 bytes
  std::span<const int32_t> box;      // elements of one copy; the innermost are 128 bytes, swizzled
};

// Parts of a box outside of the tensor are filled with zeros.
CUtensorMap make_tensor_map(const TensorMapShape& shape);

}  // namespace quire::cuda

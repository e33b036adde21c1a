// What the kernels that work row by row share. Included by their .cu files only.
#pragma once

#include <algorithm>

#include "ops/cuda/cuda_support.h"
#include "ops/cuda/device_dtype.cuh"
#include "ops/cuda/elementwise.h"
#include "ops/cuda/launch.cuh"

namespace quire::cuda {

constexpr int kThreads = 256;
constexpr int64_t kMaxGridRows = 65535;
// Wide rows of at most 16,384 elements: a block a row, whose elements stay in registers.
constexpr int kRowThreads = 512;
constexpr int kRowVectors = 4;

// A norm's weights for the elements of a thread. No kernel writes them, so they may be asked for before the kernel
// ahead has ended.
struct NormWeights {
  float4 of[kRowVectors][2];

  __device__ __forceinline__ NormWeights(const float* weight, int size) {
    if (weight == nullptr) return;
#pragma unroll
    for (int v = 0; v < kRowVectors; ++v) {
      const int i = (v * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * 8;
      if (i >= size) break;
      of[v][0] = *reinterpret_cast<const float4*>(weight + i);
      of[v][1] = *reinterpret_cast<const float4*>(weight + i + 4);
    }
  }
};

// A [tokens, heads, size] tensor; a matrix has one head.
template <typename Pointer>
struct Rows {
  Pointer data;
  int64_t token_stride;
  int64_t head_stride;
};

template <typename T>
Rows<T*> rows_of(const TensorView& x) {
  return {static_cast<T*>(x.raw_data()), x.stride(0), x.rank() == 3 ? x.stride(1) : 0};
}
template <typename T>
Rows<const T*> rows_of(const ConstTensorView& x) {
  return {static_cast<const T*>(x.raw_data()), x.stride(0), x.rank() == 3 ? x.stride(1) : 0};
}

// Whether every row can be read in vectors of so many elements.
inline bool has_vectors(const ConstTensorView& x, int64_t per_vector) {
  for (int d = 0; d + 1 < x.rank(); ++d) {
    if (x.stride(d) % per_vector != 0) return false;
  }
  return is_aligned(x.raw_data(), per_vector * dtype_bytes(x.dtype())) && x.size(x.rank() - 1) % per_vector == 0;
}
// In vectors of 16 bytes.
inline bool is_vectorizable(const ConstTensorView& x) {
  return has_vectors(x, 16 / dtype_bytes(x.dtype()));
}

inline dim3 row_grid(int64_t num_rows, int64_t num_items) {
  return dim3(static_cast<unsigned>(ceil_div<int64_t>(num_items, kThreads)),
              static_cast<unsigned>(std::min(num_rows, kMaxGridRows)));
}
inline unsigned flat_grid(int64_t num_items) {
  return static_cast<unsigned>(ceil_div<int64_t>(num_items, kThreads));
}

}  // namespace quire::cuda

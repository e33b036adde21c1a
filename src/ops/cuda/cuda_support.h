// What all files of the CUDA backend share on the host's side: checked calls of the runtime, and the small arithmetic
// of launches. A device that fails is not a fault that a caller could mend: the process ends with the place and the
// error.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "tensor/dtype.h"

namespace quire::cuda {

[[noreturn]] void fail_device(cudaError_t error, const char* what, const char* file, int line);

#define CUDA_CHECK(expression)                                                                 \
  do {                                                                                         \
    if (const cudaError_t quire_error = (expression); quire_error != cudaSuccess) [[unlikely]] \
      ::quire::cuda::fail_device(quire_error, #expression, __FILE__, __LINE__);                \
  } while (false)

// After a launch: the arguments were wrong, or an earlier kernel has failed.
#define CUDA_CHECK_LAUNCH() CUDA_CHECK(cudaGetLastError())

template <typename T>
constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

// Of the current device.
inline int num_multiprocessors() {
  int device = 0;
  int count = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

inline bool is_aligned(const void* data, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0;
}

inline bool is_activation_dtype(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

}  // namespace quire::cuda

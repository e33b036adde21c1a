// Activation types inside kernels: conversions to and from float, 16-byte vectors, and the dispatch from DType to a
// template argument. Included by .cu files only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <type_traits>

#include "base/check.h"
#include "tensor/dtype.h"

namespace quire::cuda {

using bf16 = __nv_bfloat16;
using f16 = __half;

template <typename T>
constexpr DType kDTypeOf = std::is_same_v<T, bf16>  ? DType::kBF16
                           : std::is_same_v<T, f16> ? DType::kF16
                                                    : DType::kF32;

__device__ __forceinline__ float to_float(float x) {
  return x;
}
__device__ __forceinline__ float to_float(f16 x) {
  return __half2float(x);
}
__device__ __forceinline__ float to_float(bf16 x) {
  return __bfloat162float(x);
}

template <typename T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ f16 from_float<f16>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x) {
  return __float2bfloat16_rn(x);
}

// Element `index` of memory whose dtype is known at run time only.
__device__ __forceinline__ float load_as_float(const void* data, DType dtype, int64_t index) {
  if (dtype == DType::kF32) return static_cast<const float*>(data)[index];
  if (dtype == DType::kF16) return to_float(static_cast<const f16*>(data)[index]);
  if (dtype == DType::kF8E4M3) {
    return to_float(f16(__nv_cvt_fp8_to_halfraw(static_cast<const __nv_fp8_storage_t*>(data)[index], __NV_E4M3)));
  }
  if (dtype == DType::kI8) return static_cast<float>(static_cast<const int8_t*>(data)[index]);
  return to_float(static_cast<const bf16*>(data)[index]);
}
__device__ __forceinline__ void store_float_as(void* data, DType dtype, int64_t index, float value) {
  if (dtype == DType::kF32) {
    static_cast<float*>(data)[index] = value;
  } else if (dtype == DType::kF16) {
    static_cast<f16*>(data)[index] = from_float<f16>(value);
  } else {
    static_cast<bf16*>(data)[index] = from_float<bf16>(value);
  }
}

// To f16 or bf16 and back.
__device__ __forceinline__ float round_as(DType dtype, float x) {
  return dtype == DType::kBF16 ? to_float(from_float<bf16>(x)) : to_float(from_float<f16>(x));
}

// V elements that move as one.
template <typename T, int V>
struct alignas(sizeof(T) * V) Vector {
  T v[V];
};

// Eight floats, from an address that is a multiple of 16 bytes.
__device__ __forceinline__ void load_eight(float (&values)[8], const float* data) {
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(data + i);
    values[i] = four.x, values[i + 1] = four.y, values[i + 2] = four.z, values[i + 3] = four.w;
  }
}

// How many elements 16 bytes hold.
template <typename T>
constexpr int kVectorSize = 16 / static_cast<int>(sizeof(T));

// Calls function(T()) with the type that dtype names.
template <typename Function>
void dispatch_activation(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::kF32:
      return function(float());
    case DType::kF16:
      return function(f16());
    case DType::kBF16:
      return function(bf16());
    default:
      CHECK(!"activations are f32, f16 or bf16");
  }
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}

}  // namespace quire::cuda

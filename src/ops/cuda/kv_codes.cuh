// How a row of K or V becomes the codes of an e4m3 or int8 cache. Used by what writes pages: rope.cu and
// attention_decode_new_row.cuh.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "ops/cuda/device_dtype.cuh"

namespace quire::cuda {

// What a cache with scales holds: e4m3 numbers or int8. Codes of a row are of x times 1 / scale: the largest becomes
// 448 or 127, but for the rounding of the scale to bf16.
struct F8Codes {
  static constexpr float kLargest = 448.0f;
  __device__ __forceinline__ static uint8_t of(float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); }
  __device__ __forceinline__ static uint32_t pair(float low, float high) {
    return __nv_cvt_float2_to_fp8x2({low, high}, __NV_SATFINITE, __NV_E4M3);
  }
};
struct I8Codes {
  static constexpr float kLargest = 127.0f;
  __device__ __forceinline__ static uint8_t of(float x) {
    return static_cast<uint8_t>(max(-127, min(127, __float2int_rn(x))));
  }
  __device__ __forceinline__ static uint32_t pair(float low, float high) { return of(low) | uint32_t{of(high)} << 8; }
};

// The larger in size; of int8 a NaN is the largest, since no code tells of it.
template <typename C>
__device__ __forceinline__ float larger(float largest, float x) {
  if constexpr (std::is_same_v<C, I8Codes>) {
    return __uint_as_float(max(__float_as_uint(largest), __float_as_uint(x) & 0x7fffffffu));
  } else {
    return fmaxf(largest, fabsf(x));
  }
}

template <typename C>
__device__ __forceinline__ float scale_of(float largest) {
  const float scale = to_float(from_float<bf16>(largest / C::kLargest));
  return scale == 0 ? 1.0f : scale;
}

}  // namespace quire::cuda

// Two f16 or bf16 in one register, the first in the low half, to floats and back.
#pragma once

#include <type_traits>

#include "ops/cuda/device_dtype.cuh"

namespace quire::cuda {

template <typename T>
__device__ __forceinline__ float low_float(uint32_t pair) {
  if constexpr (std::is_same_v<T, bf16>) {
    return __uint_as_float(pair << 16);
  } else {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(pair)));
  }
}
template <typename T>
__device__ __forceinline__ float high_float(uint32_t pair) {
  if constexpr (std::is_same_v<T, bf16>) {
    return __uint_as_float(pair & 0xffff0000u);
  } else {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> 16)));
  }
}
// Both; of bf16 in an instruction more.
template <typename T>
__device__ __forceinline__ float2 unpack_pair(uint32_t pair) {
  if constexpr (std::is_same_v<T, bf16>) {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
  } else {
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
  }
}

template <typename T>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  if constexpr (std::is_same_v<T, bf16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
}

}  // namespace quire::cuda

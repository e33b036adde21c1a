// Tensor core instructions that kernels share.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace quire::cuda {

// d += a · b for a 16 × 16 and b 16 × 8, both of T, in float. Thread `lane`, with g = lane / 4 and t = lane % 4, holds
//   a: rows g and g + 8 of columns 2t, 2t + 1 (a[0], a[1]) and 2t + 8, 2t + 9 (a[2], a[3])
//   b: rows 2t, 2t + 1 (b[0]) and 2t + 8, 2t + 9 (b[1]) of column g
//   d: columns 2t, 2t + 1 of rows g (d[0], d[1]) and g + 8 (d[2], d[3])
template <typename T>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
__device__ __forceinline__ void mma<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma<__half>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Transposes an 8 × 8 matrix of 16-bit elements held as: thread (g, t) row g, columns 2t and 2t + 1.
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// Four 8 × 8 matrices of 16-bit elements from shared memory: lane 8 m + r gives the address of row r of matrix m, and
// thread (g, t) gets elements 2t and 2t + 1 of row g of each; of the transposed ones where Transposed.
template <bool Transposed>
__device__ __forceinline__ void load_matrices(uint32_t (&x)[4], uint32_t address) {
  if constexpr (Transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared::cta.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
  }
}

// Two e4m3 numbers as f16, exactly.
__device__ __forceinline__ uint32_t unpack_f8_pair(uint32_t pair) {
#if __CUDA_ARCH__ >= 890
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<unsigned short>(pair)));
  return halves;
#else
  const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
  return halves.x | static_cast<uint32_t>(halves.y) << 16;
#endif
}

// Bytes A and B of four int8 as f16, exactly: each plus 128 is the low bits of 1024 at first.
template <int A, int B>
__device__ __forceinline__ uint32_t unpack_i8(uint32_t word) {
  const uint32_t halves = __byte_perm(word ^ 0x80808080u, 0x64646464u, A | 4 << 4 | B << 8 | 4 << 12);
  const __half2 codes = __hsub2(*reinterpret_cast<const __half2*>(&halves), __float2half2_rn(1152.0f));
  return *reinterpret_cast<const uint32_t*>(&codes);
}
__device__ __forceinline__ uint32_t unpack_i8_pair(uint32_t pair) {
  return unpack_i8<0, 1>(pair);
}

// 16 bytes that a multiprocessor reads once: they shall not push other data out of its cache.
__device__ __forceinline__ uint4 load_once(const void* data) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(data));
  return x;
}

}  // namespace quire::cuda

// Warpgroup products for few tokens with weights in registers: 64 outputs × N tokens += 64 × 16 · 16 × N, sums in
// float, which are overwritten where `adds` is false. Each warp has 16 of the outputs, laid in its registers as mma.cuh
// describes; the tokens are in shared memory with the 128-byte swizzle, k contiguous. Threads have the sums that
// wgmma_tokens.cuh describes.
#pragma once

#include "ops/cuda/hopper.cuh"
#include "ops/cuda/wgmma_sums.cuh"

namespace quire::cuda {

template <typename T, int N>
__device__ __forceinline__ void wgmma_register_weights(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool adds);

// clang-format off
// The four weights and the tokens follow the sums.
#define QUIRE_WGMMA(T, TYPE, TOKENS, COUNT, INPUTS, ADDS)                                                              \
  template <>                                                                                                          \
  __device__ __forceinline__ void wgmma_register_weights<T, TOKENS>(float(&d)[COUNT], const uint32_t(&a)[4],           \
                                                                    uint64_t b, bool adds) {                           \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADDS ", 0;\n"                                                     \
                 "wgmma.mma_async.sync.aligned.m64n" #TOKENS "k16.f32." TYPE "." TYPE " {" QUIRE_NAMES_##COUNT "}, "    \
                 INPUTS ", p, 1, 1, 0;\n}\n"                                                                           \
                 : QUIRE_SUMS_##COUNT(0)                                                                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(adds)));                   \
  }
#define QUIRE_WGMMA_ALL(T, TYPE)                                        \
  QUIRE_WGMMA(T, TYPE, 8, 4, "{%4, %5, %6, %7}, %8", "%9")              \
  QUIRE_WGMMA(T, TYPE, 16, 8, "{%8, %9, %10, %11}, %12", "%13")         \
  QUIRE_WGMMA(T, TYPE, 32, 16, "{%16, %17, %18, %19}, %20", "%21")      \
  QUIRE_WGMMA(T, TYPE, 64, 32, "{%32, %33, %34, %35}, %36", "%37")      \
  QUIRE_WGMMA(T, TYPE, 128, 64, "{%64, %65, %66, %67}, %68", "%69")     \
  QUIRE_WGMMA(T, TYPE, 256, 128, "{%128, %129, %130, %131}, %132", "%133")
QUIRE_WGMMA_ALL(__nv_bfloat16, "bf16")
QUIRE_WGMMA_ALL(__half, "f16")
#undef QUIRE_WGMMA
#undef QUIRE_WGMMA_ALL
// clang-format on

}  // namespace quire::cuda

// Warpgroup products for few tokens with weights in registers: 64 outputs × N tokens += 64 × 16 · 16 × N, sums in
// float. Each warp has 16 of the outputs, laid in its registers as mma.cuh describes; the tokens are in shared memory
// with the 128-byte swizzle, k contiguous. Threads have the sums that wgmma_tokens.cuh describes.
#pragma once

#include "ops/cuda/hopper.cuh"

namespace quire::cuda {

template <int N>
__device__ __forceinline__ void wgmma_register_weights(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b);

// clang-format off
#define QUIRE_SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define QUIRE_SUMS_8(i) QUIRE_SUMS_4(i), QUIRE_SUMS_4(i + 4)
#define QUIRE_SUMS_16(i) QUIRE_SUMS_8(i), QUIRE_SUMS_8(i + 8)
#define QUIRE_SUMS_32(i) QUIRE_SUMS_16(i), QUIRE_SUMS_16(i + 16)
#define QUIRE_SUMS_64(i) QUIRE_SUMS_32(i), QUIRE_SUMS_32(i + 32)
#define QUIRE_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define QUIRE_NAMES_16 QUIRE_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define QUIRE_NAMES_32 QUIRE_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define QUIRE_NAMES_64 QUIRE_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
// The four weights and the tokens follow the sums.
#define QUIRE_WGMMA(TOKENS, COUNT, INPUTS)                                                                             \
  template <>                                                                                                          \
  __device__ __forceinline__ void wgmma_register_weights<TOKENS>(float(&d)[COUNT], const uint32_t(&a)[4], uint64_t b) { \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #TOKENS "k16.f32.bf16.bf16 {" QUIRE_NAMES_##COUNT "}, " INPUTS     \
                 ", 1, 1, 1, 0;\n"                                                                                     \
                 : QUIRE_SUMS_##COUNT(0)                                                                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                \
  }
QUIRE_WGMMA(16, 8, "{%8, %9, %10, %11}, %12")
QUIRE_WGMMA(32, 16, "{%16, %17, %18, %19}, %20")
QUIRE_WGMMA(64, 32, "{%32, %33, %34, %35}, %36")
QUIRE_WGMMA(128, 64, "{%64, %65, %66, %67}, %68")
#undef QUIRE_WGMMA
// clang-format on

}  // namespace quire::cuda

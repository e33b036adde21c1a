// Warpgroup products: 64 outputs × N tokens += 64 × 32 bytes of k · 32 bytes of k × N, both operands in
// shared memory with the 128-byte swizzle, k contiguous in both, sums in float. W names the operands' type.
#pragma once

#include "ops/cuda/hopper.cuh"

namespace quire::cuda {

struct F8 {};  // e4m3

// d is overwritten where `adds` is false. Thread (g, t) of warp w of the four has rows 16 w + g and 8 more (i % 4 / 2),
// of tokens 8 (i / 4) + 2 t + i % 2.
template <typename W, int N>
__device__ __forceinline__ void wgmma_tokens(float (&d)[N / 2], uint64_t a, uint64_t b, bool adds);

// clang-format off
#define QUIRE_SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define QUIRE_SUMS_8(i) QUIRE_SUMS_4(i), QUIRE_SUMS_4(i + 4)
#define QUIRE_SUMS_16(i) QUIRE_SUMS_8(i), QUIRE_SUMS_8(i + 8)
#define QUIRE_SUMS_32(i) QUIRE_SUMS_16(i), QUIRE_SUMS_16(i + 16)
#define QUIRE_SUMS_64(i) QUIRE_SUMS_32(i), QUIRE_SUMS_32(i + 32)
#define QUIRE_SUMS_128(i) QUIRE_SUMS_64(i), QUIRE_SUMS_64(i + 64)
#define QUIRE_NAMES_4 "%0, %1, %2, %3"
#define QUIRE_NAMES_8 QUIRE_NAMES_4 ", %4, %5, %6, %7"
#define QUIRE_NAMES_16 QUIRE_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define QUIRE_NAMES_32 QUIRE_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define QUIRE_NAMES_64 QUIRE_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define QUIRE_NAMES_128 QUIRE_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101" \
  ", %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119" \
  ", %120, %121, %122, %123, %124, %125, %126, %127"
// The two operands follow the sums. FLAGS: signs of both, and that both have k contiguous where the instruction asks.
#define QUIRE_WGMMA(W, TYPE, K, TOKENS, COUNT, INPUTS, ADDS, FLAGS)                                                    \
  template <>                                                                                                          \
  __device__ __forceinline__ void wgmma_tokens<W, TOKENS>(float(&d)[COUNT], uint64_t a, uint64_t b, bool adds) {       \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADDS ", 0;\n"                                                     \
                 "wgmma.mma_async.sync.aligned.m64n" #TOKENS "k" K ".f32." TYPE "." TYPE " {" QUIRE_NAMES_##COUNT      \
                 "}, " INPUTS ", p, " FLAGS ";\n}\n"                                                                   \
                 : QUIRE_SUMS_##COUNT(0)                                                                               \
                 : "l"(a), "l"(b), "r"(static_cast<int>(adds)));                                                       \
  }
#define QUIRE_WGMMA_ALL(W, TYPE, K, FLAGS)                          \
  QUIRE_WGMMA(W, TYPE, K, 8, 4, "%4, %5", "%6", FLAGS)              \
  QUIRE_WGMMA(W, TYPE, K, 16, 8, "%8, %9", "%10", FLAGS)            \
  QUIRE_WGMMA(W, TYPE, K, 32, 16, "%16, %17", "%18", FLAGS)         \
  QUIRE_WGMMA(W, TYPE, K, 64, 32, "%32, %33", "%34", FLAGS)         \
  QUIRE_WGMMA(W, TYPE, K, 128, 64, "%64, %65", "%66", FLAGS)        \
  QUIRE_WGMMA(W, TYPE, K, 256, 128, "%128, %129", "%130", FLAGS)
QUIRE_WGMMA_ALL(__nv_bfloat16, "bf16", "16", "1, 1, 0, 0")
QUIRE_WGMMA_ALL(__half, "f16", "16", "1, 1, 0, 0")
QUIRE_WGMMA_ALL(F8, "e4m3", "32", "1, 1")
#undef QUIRE_SUMS_4
#undef QUIRE_SUMS_8
#undef QUIRE_SUMS_16
#undef QUIRE_SUMS_32
#undef QUIRE_SUMS_64
#undef QUIRE_SUMS_128
#undef QUIRE_NAMES_4
#undef QUIRE_NAMES_8
#undef QUIRE_NAMES_16
#undef QUIRE_NAMES_32
#undef QUIRE_NAMES_64
#undef QUIRE_NAMES_128
#undef QUIRE_WGMMA
#undef QUIRE_WGMMA_ALL
// clang-format on

}  // namespace quire::cuda

// Warpgroup products: 64 outputs × N tokens += 64 × 32 bytes of k · 32 bytes of k × N, both operands in
// shared memory with the 128-byte swizzle, k contiguous in both, sums in float. W names the operands' type.
#pragma once

#include "ops/cuda/hopper.cuh"
#include "ops/cuda/wgmma_sums.cuh"

namespace quire::cuda {

struct F8 {};  // e4m3

// d is overwritten where `adds` is false. Thread (g, t) of warp w of the four has rows 16 w + g and 8 more (i % 4 / 2),
// of tokens 8 (i / 4) + 2 t + i % 2.
template <typename W, int N>
__device__ __forceinline__ void wgmma_tokens(float (&d)[N / 2], uint64_t a, uint64_t b, bool adds);

// clang-format off
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
// Where weights are the columns.
#define QUIRE_WGMMA_MORE(W, TYPE, K, FLAGS)                  \
  QUIRE_WGMMA(W, TYPE, K, 48, 24, "%24, %25", "%26", FLAGS) \
  QUIRE_WGMMA(W, TYPE, K, 80, 40, "%40, %41", "%42", FLAGS) \
  QUIRE_WGMMA(W, TYPE, K, 96, 48, "%48, %49", "%50", FLAGS) \
  QUIRE_WGMMA(W, TYPE, K, 112, 56, "%56, %57", "%58", FLAGS)
#define QUIRE_WGMMA_ALL(W, TYPE, K, FLAGS)                          \
  QUIRE_WGMMA(W, TYPE, K, 8, 4, "%4, %5", "%6", FLAGS)              \
  QUIRE_WGMMA(W, TYPE, K, 16, 8, "%8, %9", "%10", FLAGS)            \
  QUIRE_WGMMA(W, TYPE, K, 32, 16, "%16, %17", "%18", FLAGS)         \
  QUIRE_WGMMA(W, TYPE, K, 64, 32, "%32, %33", "%34", FLAGS)         \
  QUIRE_WGMMA(W, TYPE, K, 128, 64, "%64, %65", "%66", FLAGS)        \
  QUIRE_WGMMA(W, TYPE, K, 256, 128, "%128, %129", "%130", FLAGS)
QUIRE_WGMMA_ALL(__nv_bfloat16, "bf16", "16", "1, 1, 0, 0")
QUIRE_WGMMA_ALL(__half, "f16", "16", "1, 1, 0, 0")
QUIRE_WGMMA_MORE(__nv_bfloat16, "bf16", "16", "1, 1, 0, 0")
QUIRE_WGMMA_MORE(__half, "f16", "16", "1, 1, 0, 0")
QUIRE_WGMMA_ALL(F8, "e4m3", "32", "1, 1")
#undef QUIRE_WGMMA
#undef QUIRE_WGMMA_ALL
#undef QUIRE_WGMMA_MORE
// clang-format on

}  // namespace quire::cuda

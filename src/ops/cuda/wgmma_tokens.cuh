// Warpgroup products for few tokens: 64 outputs × N tokens += 64 × 32 bytes of k · 32 bytes of k × N, both operands in
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
template <>
__device__ __forceinline__ void wgmma_tokens<__nv_bfloat16, 8>(float (&d)[4], uint64_t a, uint64_t b, bool adds) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {"
               "%0, %1, %2, %3"
               "}, %4, %5, p, 1, 1, 0, 0;\n}\n"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "l"(a), "l"(b), "r"(static_cast<int>(adds)));
}
template <>
__device__ __forceinline__ void wgmma_tokens<__nv_bfloat16, 16>(float (&d)[8], uint64_t a, uint64_t b, bool adds) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
               "%0, %1, %2, %3, %4, %5, %6, %7"
               "}, %8, %9, p, 1, 1, 0, 0;\n}\n"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                 "+f"(d[6]), "+f"(d[7])
               : "l"(a), "l"(b), "r"(static_cast<int>(adds)));
}
template <>
__device__ __forceinline__ void wgmma_tokens<__half, 8>(float (&d)[4], uint64_t a, uint64_t b, bool adds) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {"
               "%0, %1, %2, %3"
               "}, %4, %5, p, 1, 1, 0, 0;\n}\n"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "l"(a), "l"(b), "r"(static_cast<int>(adds)));
}
template <>
__device__ __forceinline__ void wgmma_tokens<__half, 16>(float (&d)[8], uint64_t a, uint64_t b, bool adds) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {"
               "%0, %1, %2, %3, %4, %5, %6, %7"
               "}, %8, %9, p, 1, 1, 0, 0;\n}\n"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                 "+f"(d[6]), "+f"(d[7])
               : "l"(a), "l"(b), "r"(static_cast<int>(adds)));
}
template <>
__device__ __forceinline__ void wgmma_tokens<F8, 8>(float (&d)[4], uint64_t a, uint64_t b, bool adds) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {"
               "%0, %1, %2, %3"
               "}, %4, %5, p, 1, 1;\n}\n"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "l"(a), "l"(b), "r"(static_cast<int>(adds)));
}
template <>
__device__ __forceinline__ void wgmma_tokens<F8, 16>(float (&d)[8], uint64_t a, uint64_t b, bool adds) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {"
               "%0, %1, %2, %3, %4, %5, %6, %7"
               "}, %8, %9, p, 1, 1;\n}\n"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                 "+f"(d[6]), "+f"(d[7])
               : "l"(a), "l"(b), "r"(static_cast<int>(adds)));
}
template <>
__device__ __forceinline__ void wgmma_tokens<F8, 32>(float (&d)[16], uint64_t a, uint64_t b, bool adds) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {"
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
               "}, %16, %17, p, 1, 1;\n}\n"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                 "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                 "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
               : "l"(a), "l"(b), "r"(static_cast<int>(adds)));
}
template <>
__device__ __forceinline__ void wgmma_tokens<F8, 64>(float (&d)[32], uint64_t a, uint64_t b, bool adds) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {"
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
               "}, %32, %33, p, 1, 1;\n}\n"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                 "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                 "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
                 "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                 "+f"(d[30]), "+f"(d[31])
               : "l"(a), "l"(b), "r"(static_cast<int>(adds)));
}
// clang-format on

}  // namespace quire::cuda

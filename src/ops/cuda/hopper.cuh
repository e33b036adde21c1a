// Hopper's asynchronous instructions: warpgroup matrix products from shared memory, bulk tensor copies, and the memory
// barriers that both complete on.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "ops/cuda/async_copy.cuh"

namespace quire::cuda {

// ---- Barriers in shared memory --------------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(uint64_t* barrier, int num_arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(num_arrivals));
}
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives, and lets the phase wait for so many bytes of bulk copies too.
__device__ __forceinline__ void barrier_arrive_expecting(uint64_t* barrier, uint32_t num_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(num_bytes)
               : "memory");
}
// Waits until the phase of this parity is over. A new barrier's phase has parity 0, and the one before it is over.
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
// What this thread has stored to shared memory becomes visible to the asynchronous units.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- Bulk tensor copies ---------------------------------------------------------------------------------------------

// The map is on its way before the first copy wants it.
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

struct Coordinates4 {
  int x;
  int y;
  int z;
  int w;
};
__device__ __forceinline__ void copy_box(void* target, const CUtensorMap* map, const Coordinates4& at,
                                         uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(shared_address(target)),
      "l"(map), "r"(shared_address(barrier)), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w)
      : "memory");
}

struct Coordinates5 {
  int x;
  int y;
  int z;
  int w;
  int v;
};
__device__ __forceinline__ void copy_box(void* target, const CUtensorMap* map, const Coordinates5& at,
                                         uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, "
      "%7}], [%2];" ::"r"(shared_address(target)),
      "l"(map), "r"(shared_address(barrier)), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w), "r"(at.v)
      : "memory");
}

// Contiguous memory: addresses and size are multiples of 16 bytes.
__device__ __forceinline__ void copy_bytes(void* target, const void* source, uint32_t num_bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(target)),
               "l"(source), "r"(num_bytes), "r"(shared_address(barrier))
               : "memory");
}

struct Coordinates2 {
  int x;
  int y;
};
// `policy`: which data the L2 cache shall give up first.
__device__ __forceinline__ void copy_box(void* target, const CUtensorMap* map, const Coordinates2& at,
                                         uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, "
      "%4}], [%2], %5;" ::"r"(shared_address(target)),
      "l"(map), "r"(shared_address(barrier)), "r"(at.x), "r"(at.y), "l"(policy)
      : "memory");
}
struct Coordinates3 {
  int x;
  int y;
  int z;
};
__device__ __forceinline__ void copy_box(void* target, const CUtensorMap* map, const Coordinates3& at,
                                         uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, "
      "%4, %5}], [%2], %6;" ::"r"(shared_address(target)),
      "l"(map), "r"(shared_address(barrier)), "r"(at.x), "r"(at.y), "r"(at.z), "l"(policy)
      : "memory");
}
__device__ __forceinline__ uint64_t evict_first_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ uint64_t evict_last_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// ---- Clusters of blocks ---------------------------------------------------------------------------------------------

// All threads of all blocks of the cluster; what they stored to shared memory before is visible behind it.
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Two floats at this address of the shared memory of block `rank`.
__device__ __forceinline__ float2 load_of_block(uint32_t address, int rank) {
  float2 x;
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %2, %3;\nld.shared::cluster.v2.f32 {%0, %1}, "
      "[remote];\n}\n"
      : "=f"(x.x), "=f"(x.y)
      : "r"(address), "r"(rank));
  return x;
}

// ---- Warpgroup products: 64 × N += 64 × 16 · 16 × N in float
// -------------------------------------

// A matrix in shared memory with the 128-byte swizzle. Strides in bytes: `leading` between blocks of 64 elements in the
// contiguous dimension (used where that is not k), `outer` between groups of 8 rows.
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t address, uint32_t leading, uint32_t outer) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
         static_cast<uint64_t>(outer >> 4) << 32 | uint64_t{1} << 62;
}
// The same from its low word, for which places further on are so much larger: 1 for 16 bytes.
__device__ __forceinline__ uint32_t matrix_word(uint32_t address, uint32_t leading) {
  return address >> 4 | leading >> 4 << 16;
}
__device__ __forceinline__ uint64_t matrix_at(uint32_t word, uint32_t outer) {
  return static_cast<uint64_t>(outer >> 4 | 1u << 30) << 32 | word;
}
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
// Keeps the compiler from moving uses of accumulators over a wait.
template <int N>
__device__ __forceinline__ void hold(float (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

// wgmma_shared: both operands in shared memory, k contiguous in both. Without `adds`, d is overwritten.
// wgmma_registers: a in registers as mma.cuh describes it for each warp; b in shared memory, its columns contiguous.
// The instructions name each register of d: the macros write out the lists.
template <typename T>
__device__ __forceinline__ void wgmma_shared(float (&d)[32], uint64_t a, uint64_t b, bool adds);
template <typename T>
__device__ __forceinline__ void wgmma_shared(float (&d)[64], uint64_t a, uint64_t b, bool adds);
template <typename T>
__device__ __forceinline__ void wgmma_shared(float (&d)[88], uint64_t a, uint64_t b, bool adds);
template <typename T>
__device__ __forceinline__ void wgmma_registers(float (&d)[32], const uint32_t* a, uint64_t b, bool adds);
template <typename T>
__device__ __forceinline__ void wgmma_registers(float (&d)[64], const uint32_t* a, uint64_t b, bool adds);

// clang-format off
#define QUIRE_LIST_8(d, i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), \
  "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define QUIRE_LIST_32(d, i) QUIRE_LIST_8(d, i), QUIRE_LIST_8(d, (i) + 8), QUIRE_LIST_8(d, (i) + 16), \
  QUIRE_LIST_8(d, (i) + 24)
#define QUIRE_LIST_64(d) QUIRE_LIST_32(d, 0), QUIRE_LIST_32(d, 32)
#define QUIRE_LIST_88(d) QUIRE_LIST_64(d), QUIRE_LIST_8(d, 64), QUIRE_LIST_8(d, 72), QUIRE_LIST_8(d, 80)
#define QUIRE_NAMES_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define QUIRE_NAMES_64 QUIRE_NAMES_32 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define QUIRE_NAMES_88 QUIRE_NAMES_64 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87"
#define QUIRE_WGMMA(N, TYPE, NAMES, OPERANDS, ADDS) \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " ADDS ", 0;\n" \
  "wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE " {" NAMES "}, " OPERANDS ";\n}\n"

#define QUIRE_DEFINE_WGMMA(T, TYPE) \
  template <> \
  __device__ __forceinline__ void wgmma_shared<T>(float (&d)[32], uint64_t a, uint64_t b, bool adds) { \
    asm volatile(QUIRE_WGMMA("64", TYPE, QUIRE_NAMES_32, "%32, %33, p, 1, 1, 0, 0", "%34") \
                 : QUIRE_LIST_32(d, 0) : "l"(a), "l"(b), "r"(static_cast<int>(adds))); \
  } \
  template <> \
  __device__ __forceinline__ void wgmma_shared<T>(float (&d)[64], uint64_t a, uint64_t b, bool adds) { \
    asm volatile(QUIRE_WGMMA("128", TYPE, QUIRE_NAMES_64, "%64, %65, p, 1, 1, 0, 0", "%66") \
                 : QUIRE_LIST_64(d) : "l"(a), "l"(b), "r"(static_cast<int>(adds))); \
  } \
  template <> \
  __device__ __forceinline__ void wgmma_shared<T>(float (&d)[88], uint64_t a, uint64_t b, bool adds) { \
    asm volatile(QUIRE_WGMMA("176", TYPE, QUIRE_NAMES_88, "%88, %89, p, 1, 1, 0, 0", "%90") \
                 : QUIRE_LIST_88(d) : "l"(a), "l"(b), "r"(static_cast<int>(adds))); \
  } \
  template <> \
  __device__ __forceinline__ void wgmma_registers<T>(float (&d)[32], const uint32_t* a, uint64_t b, bool adds) { \
    asm volatile(QUIRE_WGMMA("64", TYPE, QUIRE_NAMES_32, "{%32, %33, %34, %35}, %36, p, 1, 1, 1", "%37") \
                 : QUIRE_LIST_32(d, 0) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(adds))); \
  } \
  template <> \
  __device__ __forceinline__ void wgmma_registers<T>(float (&d)[64], const uint32_t* a, uint64_t b, bool adds) { \
    asm volatile(QUIRE_WGMMA("128", TYPE, QUIRE_NAMES_64, "{%64, %65, %66, %67}, %68, p, 1, 1, 1", "%69") \
                 : QUIRE_LIST_64(d) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(adds))); \
  }
QUIRE_DEFINE_WGMMA(__nv_bfloat16, "bf16")
QUIRE_DEFINE_WGMMA(__half, "f16")
#undef QUIRE_LIST_8
#undef QUIRE_LIST_32
#undef QUIRE_LIST_64
#undef QUIRE_LIST_88
#undef QUIRE_NAMES_32
#undef QUIRE_NAMES_64
#undef QUIRE_NAMES_88
#undef QUIRE_WGMMA
#undef QUIRE_DEFINE_WGMMA
// clang-format on

}  // namespace quire::cuda

// Messages: numbers that blocks of one launch hand one another through memory, and that tell by themselves that they
// have come, so that no fence must stand between a number and the news of it.
//
// A place holds kNothing, a NaN that arithmetic does not make, until a number has come: whoever waits for it looks at
// the place until it holds something else. Once it has been read the place is laid back to kNothing, for the next
// number; before the first launch the memory is filled with it. Stores and loads need no order among others: they are
// relaxed, straight to and from the L2 cache, and each number is whole. Blocks that wait for one another must all run.
#pragma once

#include <cstdint>

namespace quire::cuda {

// Arithmetic makes 0x7fffffff, and of 16 bits 0x7fff.
constexpr uint32_t kNothing = 0xffffffffu;  // a float, or two numbers of 16 bits
constexpr uint32_t kHalfNothing = 0xffffu;

// The bits that are sent for a number that arithmetic need not have made: another NaN for the one that means nothing.
__device__ __forceinline__ uint32_t message_of(float x) {
  return __float_as_uint(x) == kNothing ? 0x7fffffffu : __float_as_uint(x);
}
__device__ __forceinline__ uint4 message_of(const float4& x) {
  return {message_of(x.x), message_of(x.y), message_of(x.z), message_of(x.w)};
}

// ---- Numbers of 32 bits
__device__ __forceinline__ void send_word(void* place, uint32_t x) {
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(place), "r"(x) : "memory");
}
__device__ __forceinline__ void forget_word(void* place) {
  send_word(place, kNothing);
}
__device__ __forceinline__ uint32_t look_at_word(const void* place) {
  uint32_t x;
  asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(x) : "l"(place) : "memory");
  return x;
}

// ---- Four of them, or eight of 16 bits; the place is a multiple of 16 bytes
__device__ __forceinline__ void send_quad(void* place, const uint4& x) {
  asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(place), "r"(x.x), "r"(x.y), "r"(x.z),
               "r"(x.w)
               : "memory");
}
__device__ __forceinline__ void forget_quad(void* place) {
  send_quad(place, {kNothing, kNothing, kNothing, kNothing});
}
__device__ __forceinline__ uint4 look_at_quad(const void* place) {
  uint4 x;
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(place)
               : "memory");
  return x;
}
__device__ __forceinline__ bool has_come(const uint4& x) {
  return x.x != kNothing && x.y != kNothing && x.z != kNothing && x.w != kNothing;
}
__device__ __forceinline__ bool have_halves_come(const uint4& x) {
  return (__vcmpeq2(x.x, kNothing) | __vcmpeq2(x.y, kNothing) | __vcmpeq2(x.z, kNothing) | __vcmpeq2(x.w, kNothing)) ==
         0;
}

// ---- Numbers of 16 bits
template <typename T>
__device__ __forceinline__ void send_half(T* place, T x) {
  asm volatile("st.relaxed.gpu.global.u16 [%0], %1;" ::"l"(place), "h"(*reinterpret_cast<const uint16_t*>(&x))
               : "memory");
}
__device__ __forceinline__ uint32_t look_at_half(const void* place) {
  uint16_t x;
  asm volatile("ld.relaxed.gpu.global.u16 %0, [%1];" : "=h"(x) : "l"(place) : "memory");
  return x;
}

}  // namespace quire::cuda

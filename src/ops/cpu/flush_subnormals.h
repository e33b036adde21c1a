// While one of these lives, this thread's float operations take subnormal operands for zeros and give zeros instead of
// subnormal results, as the processor's own products of bfloat16 do. Rows of an order "bf16" hold one for a whole call,
// those that multiply ordinary floats as well as those that do not: then everything around the products is equal too.
// What computes must be a function that is not inlined beside it, or the compiler may move it out. (Where a result
// would round up to the least normal number, x86 gives that number and ARM zero.)
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quire::cpu {
namespace {

class FlushSubnormals {
 public:
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;
#if defined(__x86_64__)
  FlushSubnormals() : saved_(_mm_getcsr()) {
    constexpr unsigned kFlushResults = 1u << 15;
    constexpr unsigned kOperandsAreZeros = 1u << 6;
    _mm_setcsr(saved_ | kFlushResults | kOperandsAreZeros);
  }
  ~FlushSubnormals() {
    _mm_setcsr(saved_);
  }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  FlushSubnormals() {
    constexpr uint64_t kFlush = uint64_t{1} << 24;
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(saved_ | kFlush) : "memory");
  }
  ~FlushSubnormals() {
    asm volatile("msr fpcr, %0" : : "r"(saved_) : "memory");
  }

 private:
  uint64_t saved_ = 0;
#else
  FlushSubnormals() {}
  ~FlushSubnormals() {}
#endif
};

}  // namespace
}  // namespace quire::cpu

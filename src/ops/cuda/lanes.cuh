// What lanes of a warp give each other.
#pragma once

#include <cstdint>

namespace quire::cuda {

// Lane t of four has word t of each of four columns; then it has the four words of column t.
__device__ __forceinline__ uint4 transpose_in_four(uint32_t (&x)[4], int t) {
  const bool is_odd = t % 2 != 0;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, is_odd ? x[i] : x[i + 1], 1);
    (is_odd ? x[i] : x[i + 1]) = other;
  }
  const bool is_high = t >= 2;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, is_high ? x[i] : x[i + 2], 2);
    (is_high ? x[i] : x[i + 2]) = other;
  }
  return {x[0], x[1], x[2], x[3]};
}

}  // namespace quire::cuda

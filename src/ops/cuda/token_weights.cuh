// Keys and weights of tokens, each operation rounded as ops/sample_rows.h has it, and sums of them. For the kernels
// that draw tokens and tell log-probabilities.
#pragma once

#include <cstdint>

#include "ops/sample_rows.h"

namespace quire::cuda {

struct Scaled {
  float best;
  float scale;
  float lowest;
};
__device__ __forceinline__ float scaled(float logit, const Scaled& s) {
  return __fmul_rn(__fsub_rn(logit, s.best), s.scale);
}
// Greater is better; 0 where the token has no chance.
__device__ __forceinline__ uint32_t key_of(float logit, const Scaled& s) {
  const float x = scaled(logit, s);
  if (!(x >= s.lowest)) return 0;
  return kHighestTokenKey - static_cast<uint32_t>(__fmul_rn(-x, kTokenKeyScale));
}
__device__ __forceinline__ uint64_t weight_of(float logit, const Scaled& s) {
  const float x = scaled(logit, s);
  if (!(x >= s.lowest)) return 0;
  const float n = __fsub_rn(__fadd_rn(__fmul_rn(x, 1.44269504f), 12582912.0f), 12582912.0f);
  const float r = __fadd_rn(__fsub_rn(x, __fmul_rn(n, 0.693359375f)), __fmul_rn(n, 2.12194440e-4f));
  float p = 1.9875691500e-4f;
  p = __fadd_rn(__fmul_rn(p, r), 1.3981999507e-3f);
  p = __fadd_rn(__fmul_rn(p, r), 8.3334519073e-3f);
  p = __fadd_rn(__fmul_rn(p, r), 4.1665795894e-2f);
  p = __fadd_rn(__fmul_rn(p, r), 1.6666665459e-1f);
  p = __fadd_rn(__fmul_rn(p, r), 5.0000001201e-1f);
  p = __fadd_rn(__fadd_rn(__fmul_rn(__fmul_rn(p, r), r), r), 1.0f);
  const float weight = __fmul_rn(p, __int_as_float((static_cast<int>(n) + 127) << 23));
  return static_cast<uint64_t>(__fmul_rn(weight, kTokenWeightScale));
}

__device__ __forceinline__ uint64_t warp_sum_u64(uint64_t x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

// Calls take(logit, id) for those of a row that are this thread's, in ascending order: four neighbours at a time where
// the row is aligned.
template <int Threads, typename Take>
__device__ __forceinline__ void for_own_tokens(const float* logits, int size, Take&& take) {
  int scalar_begin = 0;
  if (reinterpret_cast<uintptr_t>(logits) % 16 == 0) {
#pragma unroll 2
    for (int v = static_cast<int>(threadIdx.x); v < size / 4; v += Threads) {
      const float4 x = reinterpret_cast<const float4*>(logits)[v];
      take(x.x, 4 * v);
      take(x.y, 4 * v + 1);
      take(x.z, 4 * v + 2);
      take(x.w, 4 * v + 3);
    }
    scalar_begin = size / 4 * 4;
  }
  for (int i = scalar_begin + static_cast<int>(threadIdx.x); i < size; i += Threads) take(logits[i], i);
}

}  // namespace quire::cuda

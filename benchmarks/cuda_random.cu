#include "benchmarks/cuda_random.h"

#include <cuda_bf16.h>

#include "ops/cuda/cuda_support.h"

namespace quire {

namespace {

__global__ void fill_random_kernel(__nv_bfloat16* data, int64_t count, float scale, uint32_t seed) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    uint64_t x = (static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15u + seed * 0xbf58476d1ce4e5b9u;
    x ^= x >> 31;
    x *= 0x94d049bb133111ebu;
    x ^= x >> 29;
    data[i] = __float2bfloat16(scale * (static_cast<float>(x >> 40) * 0x1p-23f - 1.0f));
  }
}

}  // namespace

void fill_random(void* data, int64_t count, float scale, uint32_t seed) {
  fill_random_kernel<<<2048, 256>>>(static_cast<__nv_bfloat16*>(data), count, scale, seed);
  CUDA_CHECK_LAUNCH();
}

}  // namespace quire

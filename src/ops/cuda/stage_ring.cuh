// Rings of stages in shared memory, which one warp has filled by the copy engine and warps that multiply empty. A stage
// has weights and tokens; each has a barrier that tells that it is full, and one that tells that it is empty again.
#pragma once

#include "ops/cuda/hopper.cuh"
#include "ops/cuda/launch.cuh"

namespace quire::cuda {

// All threads of the block, of which as many warps empty the ring; a barrier follows.
template <int NumStages>
__device__ __forceinline__ void init_ring(uint64_t (&full)[NumStages], uint64_t (&empty)[NumStages],
                                          int num_emptying_warps) {
  if (threadIdx.x == 0) {
    for (int s = 0; s < NumStages; ++s) {
      barrier_init(&full[s], 1);
      barrier_init(&empty[s], num_emptying_warps);
    }
    fence_async_proxy();
  }
}

// Asks for `count` stages, each when it is empty: load_weights(i, s) asks for the weights of stage i of all in stage s
// of the ring, load_tokens(i, s) for its tokens, which the kernel ahead may still compute.
template <int NumStages, typename LoadWeights, typename LoadTokens>
__device__ __forceinline__ void fill_ring(uint64_t (&empty)[NumStages], int count, const LoadWeights& load_weights,
                                          const LoadTokens& load_tokens) {
  const int num_first = min(NumStages, count);
  for (int i = 0; i < num_first; ++i) load_weights(i, i);
  wait_for_previous();
  for (int i = 0; i < num_first; ++i) load_tokens(i, i);
  int s = 0;
  uint32_t parity = 0;
  for (int i = num_first; i < count; ++i) {
    barrier_wait(&empty[s], parity);
    load_weights(i, s);
    load_tokens(i, s);
    if (++s == NumStages) {
      s = 0;
      parity ^= 1u;
    }
  }
}

}  // namespace quire::cuda

// Dependent launch: a kernel's blocks may start while those of the kernel before it end, so that its first weights and
// indices are on their way before its input is there. The rules, which make a chain of such kernels safe:
//   - a kernel that is launched by launch_dependent calls wait_for_previous() in every block before it reads what
//     another kernel of the stream writes, and before it writes anything;
//   - it may call let_next_start() at any time: the next one waits for its end all the same.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "ops/cuda/cuda_support.h"

namespace quire::cuda {

// Before Hopper kernels start when the one before has ended.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// shared_bytes: dynamic shared memory of a block.
template <typename... Params, typename... Args>
void launch_dependent_with_memory(cudaStream_t stream, void (*kernel)(Params...), dim3 grid, dim3 block,
                                  size_t shared_bytes, const Args&... args) {
  // A multiprocessor must run empty before it divides its memory anew between cache and shared memory: where few blocks
  // run and latency counts, the kernels of a chain ask for what the products take. Large grids want their cache.
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  attributes[1].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  constexpr unsigned kFewBlocks = 132;  // one a multiprocessor
  config.numAttrs = shared_bytes > 0 || grid.x * grid.y <= kFewBlocks ? 2 : 1;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}

// Blocks in clusters.
template <typename... Params, typename... Args>
void launch_cluster(cudaStream_t stream, void (*kernel)(Params...), dim3 grid, dim3 block, dim3 cluster,
                    size_t shared_bytes, const Args&... args) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {cluster.x, cluster.y, cluster.z};
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}

template <typename... Params, typename... Args>
void launch_dependent(cudaStream_t stream, void (*kernel)(Params...), dim3 grid, dim3 block, const Args&... args) {
  launch_dependent_with_memory(stream, kernel, grid, block, 0, args...);
}

}  // namespace quire::cuda

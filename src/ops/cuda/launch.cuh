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

__device__ __forceinline__ void wait_for_previous() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void let_next_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

template <typename... Params, typename... Args>
void launch_dependent(cudaStream_t stream, void (*kernel)(Params...), dim3 grid, dim3 block, const Args&... args) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}

}  // namespace quire::cuda

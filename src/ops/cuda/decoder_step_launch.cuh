// The launch of an instance of the kernel of decoder_step.cuh. Included by the files of its instances.
#pragma once

#include <algorithm>

#include "ops/cuda/cuda_support.h"
#include "ops/cuda/decoder_step.cuh"
#include "ops/cuda/decoder_step_launch.h"

namespace quire::cuda::step {

template <typename T, typename Products, int D>
bool launch_step(const StepLaunch& call) {
  constexpr int kBlockBytes = 227 * 1024;  // of a multiprocessor, for one block
  const int shared_bytes = Products::plan(call.args, kBlockBytes - static_cast<int>(sizeof(Shared)), call.num_blocks);
  if (shared_bytes == 0) return false;
  const auto kernel = decoder_step_kernel<T, Products, D>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;  // all blocks are resident, or the launch fails
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(call.num_blocks));
  config.blockDim = dim3(kThreads + kAskingThreads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = call.stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, call.args));
  return true;
}

}  // namespace quire::cuda::step

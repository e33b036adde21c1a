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
  Args& args = call.args;
  const int most_inputs = std::max({args.hidden, args.num_heads * D, args.intermediate});
  constexpr int kAttentionBytes = kWarps * kHeadsAtOnce * D * 4;
  args.input_bytes = std::max(kAttentionBytes, Products::input_bytes(most_inputs));
  constexpr int kBarrierBytes = 2 * 8;  // of a stage
  constexpr int kRingsBytes = kWarps * (Products::kStageBytes + kBarrierBytes);
  args.num_stages = (kBlockBytes - static_cast<int>(sizeof(Shared)) - args.input_bytes) / kRingsBytes;
  if (args.num_stages < 2) return false;
  const int shared_bytes = args.num_stages * kRingsBytes + args.input_bytes;
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
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, args));
  return true;
}

}  // namespace quire::cuda::step

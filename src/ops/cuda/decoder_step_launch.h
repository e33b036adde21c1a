// The instances of the kernel of decoder_step.cuh, in files of their own by the layout of weights. Used by
// decoder_step.cu alone.
#pragma once

#include "ops/cuda/decoder_step_args.cuh"
#include "quant/packing.h"

namespace quire::cuda {

struct StepLaunch {
  cudaStream_t stream;
  step::Args& args;  // all but what says how shared memory is divided
  int num_blocks;
  DType dtype;
  int head_dim;
};

// False where shared memory is too small, or the device cannot run all blocks at once.
bool launch_step_rows(const StepLaunch& launch);
bool launch_step_f8_rows(const StepLaunch& launch);
bool takes_step_panels(ScaleKind scale_kind, int stored_bits);
bool launch_step_panels(const StepLaunch& launch, ScaleKind scale_kind);

}  // namespace quire::cuda

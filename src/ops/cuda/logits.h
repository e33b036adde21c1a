// Penalties, biases, masks and log-probabilities on the GPU. Called by CudaOps, which has checked the shapes.
#pragma once

#include <cuda_runtime.h>

#include "ops/logits_rows.h"

namespace quire::cuda {

void adjust_logits(cudaStream_t stream, const TensorView& logits, const LogitsAdjustments& adjustments);
void logprobs(cudaStream_t stream, const ConstTensorView& logits, const LogprobsCall& call);

}  // namespace quire::cuda

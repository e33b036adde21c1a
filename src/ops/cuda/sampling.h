// Sampling on the GPU. Called by CudaOps, which has checked the shapes.
#pragma once

#include <cuda_runtime.h>

#include "ops/ops.h"

namespace quire::cuda {

// ids: [num_rows] i32   logits: [num_rows, vocab_size] f32   rows: device memory, a row each
void sample(cudaStream_t stream, const TensorView& ids, const ConstTensorView& logits, const SamplingRow* rows);

}  // namespace quire::cuda

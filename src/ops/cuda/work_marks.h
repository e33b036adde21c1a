// Marks in a CUDA stream.
#pragma once

#include <cuda_runtime.h>

#include <memory>

#include "ops/work_marks.h"

namespace quire::cuda {

// The current device is the stream's, which outlives the marks.
std::unique_ptr<WorkMarks> create_work_marks(cudaStream_t stream, int num_marks);

}  // namespace quire::cuda

// A step of one token through a stack of decoder layers in one kernel: whether it takes a step, its memory, the launch.
// The kernel is in decoder_step.cuh. Called by CudaOps.
#pragma once

#include <cuda_runtime.h>

#include <vector>

#include "ops/ops.h"

namespace quire::cuda {

// What blocks of the kernel tell one another, on the device: one memory for all models, a part of it for each shape.
class DecoderStepMemory {
 public:
  static Result<DecoderStepMemory> create();

  // The part of a shape; null where no room is left. The same shape gets the same part. `is_new`: it is all zeros.
  struct Shape {
    int64_t hidden = 0;
    int64_t intermediate = 0;
    int64_t query_size = 0;
    int64_t kv_size = 0;
    int64_t head_dim = 0;
    bool operator==(const Shape&) const = default;
  };
  char* find(const Shape& shape, int64_t num_bytes, bool& is_new);

 private:
  struct Part {
    Shape shape;
    int64_t offset;
  };
  DeviceBuffer memory_;
  int64_t num_used_ = 0;
  std::vector<Part> parts_;
};

// False where the step is not of the kind that the kernel takes; then nothing was done. Unless it is asked for it takes
// e4m3 weights alone, with which it is faster than the ops one after another (docs/gpu_kernels.md).
bool decoder_step(cudaStream_t stream, DecoderStepMemory& memory, const DecoderStep& step, bool is_asked_for);

}  // namespace quire::cuda

// The gated activation inside kernels of linear layers.
#pragma once

#include "ops/cuda/device_dtype.cuh"
#include "ops/cuda/linear.h"

namespace quire::cuda {

__device__ __forceinline__ float activate(Gate gate, float x) {
  if (gate == Gate::kSilu) return x / (1.0f + expf(-x));
  constexpr float kSqrtTwoOverPi = 0.7978845608028654f;
  return 0.5f * x * (1.0f + tanhf(kSqrtTwoOverPi * (x + 0.044715f * x * x * x)));
}

// activation(gate) * up, both rounded to the dtype in which the plain layers would store them.
__device__ __forceinline__ float gated(Gate activation, DType dtype, float gate, float up) {
  return activate(activation, round_as(dtype, gate)) * round_as(dtype, up);
}

}  // namespace quire::cuda

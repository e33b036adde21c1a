// The gated activation inside kernels of linear layers.
#pragma once

#include "ops/cuda/device_dtype.cuh"
#include "ops/cuda/linear.h"

namespace quire::cuda {

// Beside activations of 16 bits SiLU is approximate in float's last bits, for a quarter of the instructions, which bind
// kernels with a gate behind; all kernels agree in every bit, as `--sameness strict` needs.
__device__ __forceinline__ float activate(Gate gate, DType dtype, float x) {
  if (gate == Gate::kSilu && dtype == DType::kF32) return x / (1.0f + expf(-x));
  if (gate == Gate::kSilu) {
    float exponential;
    float inverse;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(exponential) : "f"(x * -1.4426950408889634f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + exponential));
    return x * inverse;
  }
  constexpr float kSqrtTwoOverPi = 0.7978845608028654f;
  return 0.5f * x * (1.0f + tanhf(kSqrtTwoOverPi * (x + 0.044715f * x * x * x)));
}

// activation(gate) * up, both rounded to the dtype in which the plain layers would store them.
__device__ __forceinline__ float gated(Gate activation, DType dtype, float gate, float up) {
  return activate(activation, dtype, round_as(dtype, gate)) * round_as(dtype, up);
}

}  // namespace quire::cuda

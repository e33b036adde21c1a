// linear_few_tokens_integer.cuh for groups of 128, which come with activations of both 16-bit dtypes.
#include "ops/cuda/linear_few_tokens_integer.cuh"

namespace quire::cuda::few {

void few_tokens_int4(const LinearCall& call) {
  if (call.x.dtype() == DType::kBF16) return launch_integer_tile<bf16, 4, ScaleKind::kHalfAndZero, 128>(call);
  launch_integer_tile<f16, 4, ScaleKind::kHalfAndZero, 128>(call);
}

}  // namespace quire::cuda::few

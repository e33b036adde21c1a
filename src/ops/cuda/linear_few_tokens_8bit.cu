// linear_few_tokens_integer.cuh for formats whose codes take 8 bits.
#include "ops/cuda/linear_few_tokens_integer.cuh"

namespace quire::cuda::few {

void few_tokens_8bit(const LinearCall& call) {
  if (call.weight.format == FormatId::kQ8_0) return launch_integer_tile<bf16, 8, ScaleKind::kHalf, 32>(call);
  launch_integer_tile<bf16, 8, ScaleKind::kSuperSigned, 16>(call);
}

}  // namespace quire::cuda::few

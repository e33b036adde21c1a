// linear_few_tokens_integer.cuh for 4-bit formats of GGUF.
#include "ops/cuda/linear_few_tokens_integer.cuh"

namespace quire::cuda::few {

void few_tokens_4bit(const LinearCall& call) {
  if (call.weight.format == FormatId::kQ4_0) return launch_integer_tile<bf16, 4, ScaleKind::kHalf, 32>(call);
  launch_integer_tile<bf16, 4, ScaleKind::kSuperBytes, 32>(call);
}

}  // namespace quire::cuda::few

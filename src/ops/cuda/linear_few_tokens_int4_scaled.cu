// linear_few_tokens_int4.cu where bits shall be the same for any number of tokens: numbers are scaled, as they must be
// for many.
#include "ops/cuda/linear_few_tokens_integer.cuh"

namespace quire::cuda::few {

namespace {

template <typename T>
void launch_scaled(const LinearCall& call) {
  switch (tile_of(static_cast<int>(call.x.size(0)))) {
    case 8:
      return launch_integer<T, 4, ScaleKind::kHalfAndZero, 128, 8, false>(call);
    case 16:
      return launch_integer<T, 4, ScaleKind::kHalfAndZero, 128, 16, false>(call);
    case 32:
      return launch_integer<T, 4, ScaleKind::kHalfAndZero, 128, 32, false>(call);
    default:
      return few_tokens_int4(call);
  }
}

}  // namespace

void few_tokens_int4_scaled(const LinearCall& call) {
  if (call.x.dtype() == DType::kBF16) return launch_scaled<bf16>(call);
  launch_scaled<f16>(call);
}

}  // namespace quire::cuda::few

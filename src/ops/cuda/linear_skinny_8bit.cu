// linear_skinny.cuh for formats whose codes are stored in 8 bits.
#include "ops/cuda/linear_skinny.cuh"

namespace quire::cuda {

namespace {

template <typename T>
void launch(const LinearCall& call) {
  switch (call.weight.format) {
    case FormatId::kQ5_0:
    case FormatId::kQ8_0:
    case FormatId::kIQ4_NL:
      return launch_skinny_integer<T, 8, ScaleKind::kHalf, 32>(call);
    case FormatId::kQ5_1:
      return launch_skinny_integer<T, 8, ScaleKind::kHalfAndMin, 32>(call);
    case FormatId::kQ5_K:
      return launch_skinny_integer<T, 8, ScaleKind::kSuperBytes, 32>(call);
    case FormatId::kQ6_K:
      return launch_skinny_integer<T, 8, ScaleKind::kSuperSigned, 16>(call);
    case FormatId::kIQ4_XS:
      return launch_skinny_integer<T, 8, ScaleKind::kSuperSigned, 32>(call);
    default:
      CHECK(!"a format of 5 to 8 bits");
  }
}

}  // namespace

void launch_skinny_8bit(const LinearCall& call) {
  if (call.x.dtype() == DType::kBF16) {
    launch<bf16>(call);
  } else {
    launch<f16>(call);
  }
}

}  // namespace quire::cuda

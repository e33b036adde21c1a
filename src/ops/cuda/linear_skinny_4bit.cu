// linear_skinny.cuh for formats of at most 4 bits.
#include "ops/cuda/linear_skinny.cuh"

namespace quire::cuda {

namespace {

template <typename T>
void launch(const LinearCall& call) {
  switch (call.weight.format) {
    case FormatId::kQ4_0:
      return launch_skinny_integer<T, 4, ScaleKind::kHalf, 32>(call);
    case FormatId::kQ4_1:
      return launch_skinny_integer<T, 4, ScaleKind::kHalfAndMin, 32>(call);
    case FormatId::kQ4_K:
      return launch_skinny_integer<T, 4, ScaleKind::kSuperBytes, 32>(call);
    case FormatId::kInt4G128:  // half of a group is a tile
      return launch_skinny_integer<T, 4, ScaleKind::kHalfAndZero, 64>(call);
    case FormatId::kQ2_K:
      return launch_skinny_integer<T, 4, ScaleKind::kSuperNibbles, 16>(call);
    case FormatId::kQ3_K:
      return launch_skinny_integer<T, 4, ScaleKind::kSuperSigned, 16>(call);
    default:
      CHECK(!"a format of at most 4 bits");
  }
}

}  // namespace

void launch_skinny_4bit(const LinearCall& call) {
  if (call.x.dtype() == DType::kBF16) {
    launch<bf16>(call);
  } else {
    launch<f16>(call);
  }
}

}  // namespace quire::cuda

// A step of one token with weights of integer formats of 4 bits.
#include "ops/cuda/decoder_step_launch.cuh"

namespace quire::cuda {

namespace {

template <typename T, ScaleKind Kind>
bool launch(const StepLaunch& call) {
  if (call.head_dim != 128) return false;
  return step::launch_step<T, step::Panels<T, 4, Kind, 128>, 128>(call);
}

template <typename T>
bool launch_any(const StepLaunch& call, ScaleKind scale_kind) {
  if (scale_kind == ScaleKind::kHalf) return launch<T, ScaleKind::kHalf>(call);
  if (scale_kind == ScaleKind::kSuperBytes) return launch<T, ScaleKind::kSuperBytes>(call);
  return launch<T, ScaleKind::kHalfAndZero>(call);
}

}  // namespace

bool takes_step_panels(ScaleKind scale_kind, int stored_bits) {
  return stored_bits == 4 && (scale_kind == ScaleKind::kHalf || scale_kind == ScaleKind::kSuperBytes ||
                              scale_kind == ScaleKind::kHalfAndZero);
}

bool launch_step_panels(const StepLaunch& call, ScaleKind scale_kind) {
  return call.dtype == DType::kBF16 ? launch_any<bf16>(call, scale_kind) : launch_any<f16>(call, scale_kind);
}

}  // namespace quire::cuda

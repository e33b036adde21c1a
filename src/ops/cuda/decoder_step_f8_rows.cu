// A step of one token with e4m3 weights.
#include "ops/cuda/decoder_step_launch.cuh"

namespace quire::cuda {

namespace {

template <typename T>
bool launch(const StepLaunch& call) {
  if (call.head_dim == 64) return step::launch_step<T, step::Rows<T, uint8_t, 64>, 64>(call);
  return step::launch_step<T, step::Rows<T, uint8_t, 128>, 128>(call);
}

}  // namespace

bool launch_step_f8_rows(const StepLaunch& call) {
  return call.dtype == DType::kBF16 ? launch<bf16>(call) : launch<f16>(call);
}

}  // namespace quire::cuda

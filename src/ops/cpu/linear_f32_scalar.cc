// The f32 kernels of linear layers for any processor.
#include "ops/cpu/codes_scalar.h"
#include "ops/cpu/linear_f32_impl.h"

namespace quire::cpu {

const F32Kernels kScalarF32Kernels = F32Impl<ScalarCodes>::make_kernels<1, 4>();

}  // namespace quire::cpu

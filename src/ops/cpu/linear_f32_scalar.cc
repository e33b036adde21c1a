// The f32 kernels of linear layers for any processor.
#include "ops/cpu/codes_scalar.h"
#include "ops/cpu/linear_f32_impl.h"

namespace quire::cpu {

template <int... kSizes>
using Sizes = std::integer_sequence<int, kSizes...>;

const F32Kernels kScalarF32Kernels = F32Impl<ScalarCodes>::make_kernels<Sizes<1>, Sizes<1>, Sizes<>>();

}  // namespace quire::cpu

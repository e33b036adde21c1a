// The f32 kernels of linear layers for 64-bit ARM.
#include "ops/cpu/codes_neon.h"
#include "ops/cpu/linear_f32_impl.h"

namespace quire::cpu {

template <int... kSizes>
using Sizes = std::integer_sequence<int, kSizes...>;

const F32Kernels kNeonF32Kernels = F32Impl<NeonCodes>::make_kernels<Sizes<1, 4>, Sizes<1, 4>, Sizes<>>();

}  // namespace quire::cpu

// The int8 kernels of linear layers for 64-bit ARM with dot products.
#include "ops/cpu/codes_neon.h"
#include "ops/cpu/linear_int8_impl.h"

namespace quire::cpu {

template <int... kSizes>
using Sizes = std::integer_sequence<int, kSizes...>;

const Int8Kernels kNeonDotprodInt8Kernels = Int8Impl<NeonCodes>::make_kernels<Sizes<1, 4>, Sizes<1, 4>>();

}  // namespace quire::cpu

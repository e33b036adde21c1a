// The int8 kernels of linear layers for AVX2.
#include "ops/cpu/codes_avx2.h"
#include "ops/cpu/linear_int8_impl.h"

namespace quire::cpu {

template <int... kSizes>
using Sizes = std::integer_sequence<int, kSizes...>;

const Int8Kernels kAvx2Int8Kernels = Int8Impl<Avx2Codes>::make_kernels<Sizes<1, 4>, Sizes<1, 4>>();

}  // namespace quire::cpu

// The f32 kernels of linear layers for AVX2.
#include "ops/cpu/codes_avx2.h"
#include "ops/cpu/linear_f32_impl.h"

namespace quire::cpu {

template <int... kSizes>
using Sizes = std::integer_sequence<int, kSizes...>;

const F32Kernels kAvx2F32Kernels = F32Impl<Avx2Codes>::make_kernels<Sizes<1, 2, 4>, Sizes<1, 2, 6>, Sizes<>>();

}  // namespace quire::cpu

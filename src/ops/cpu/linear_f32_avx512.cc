// The f32 kernels of linear layers for AVX-512.
#include "ops/cpu/codes_avx512.h"
#include "ops/cpu/linear_f32_impl.h"

namespace quire::cpu {

template <int... kSizes>
using Sizes = std::integer_sequence<int, kSizes...>;

const F32Kernels kAvx512F32Kernels =
    F32Impl<Avx512Codes>::make_kernels<Sizes<1, 2, 4, 8, 16, 24>, Sizes<1, 2, 4, 12>, Sizes<1, 2, 4, 12>>();

}  // namespace quire::cpu

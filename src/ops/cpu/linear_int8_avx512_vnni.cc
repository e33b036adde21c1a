// The int8 kernels of linear layers for AVX-512 with VNNI.
#include "ops/cpu/codes_avx512.h"
#include "ops/cpu/linear_int8_impl.h"

namespace quire::cpu {

template <int... kSizes>
using Sizes = std::integer_sequence<int, kSizes...>;

const Int8Kernels kAvx512VnniInt8Kernels =
    Int8Impl<Avx512Codes>::make_kernels<Sizes<1, 2, 4, 6, 8, 12>, Sizes<1, 2, 4, 6>, Sizes<1, 2, 4, 6>>();

}  // namespace quire::cpu

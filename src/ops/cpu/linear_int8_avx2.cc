// The int8 kernels of linear layers for AVX2.
#include "ops/cpu/codes_avx2.h"
#include "ops/cpu/linear_int8_impl.h"

namespace quire::cpu {

const Int8Kernels kAvx2Int8Kernels = Int8Impl<Avx2Codes>::make_kernels<1, 2, 4>();

}  // namespace quire::cpu

// The f32 kernels of linear layers for AVX2.
#include "ops/cpu/codes_avx2.h"
#include "ops/cpu/linear_f32_impl.h"

namespace quire::cpu {

const F32Kernels kAvx2F32Kernels = F32Impl<Avx2Codes>::make_kernels<1, 2, 4, 6>();

}  // namespace quire::cpu

// The int8 kernels of linear layers for any processor.
#include "ops/cpu/codes_scalar.h"
#include "ops/cpu/linear_int8_impl.h"

namespace quire::cpu {

const Int8Kernels kScalarInt8Kernels = Int8Impl<ScalarCodes>::make_kernels<1, 4>();

}  // namespace quire::cpu

// The kernels of this folder on ScalarLanes. What they compute is in elementwise_kernels.h and attention_kernels.h.
#include "ops/cpu/kernels.h"

#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/elementwise_kernels.h"
#include "ops/cpu/lanes_scalar.h"

namespace quire::cpu {

QUIRE_DEFINE_KERNELS(scalar, ScalarLanes)

}  // namespace quire::cpu

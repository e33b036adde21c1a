// The kernels of this folder on NeonLanes. What they compute is in elementwise_kernels.h and attention_kernels.h.
#include "ops/cpu/kernels.h"

#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/elementwise_kernels.h"
#include "ops/cpu/lanes_neon.h"

namespace quire::cpu {

QUIRE_DEFINE_KERNELS(neon, NeonLanes)

}  // namespace quire::cpu

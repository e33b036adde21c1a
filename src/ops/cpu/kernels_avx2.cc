// The kernels of this folder on Avx2Lanes. What they compute is in elementwise_kernels.h and attention_kernels.h.
#include "ops/cpu/kernels.h"

#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/elementwise_kernels.h"
#include "ops/cpu/lanes_avx2.h"

namespace quire::cpu {

QUIRE_DEFINE_KERNELS(avx2, Avx2Lanes)

}  // namespace quire::cpu

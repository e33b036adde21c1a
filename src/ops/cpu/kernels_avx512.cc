// The kernels of this folder on Avx512Lanes. What they compute is in elementwise_kernels.h and attention_kernels.h.
#include "ops/cpu/kernels.h"

#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/elementwise_kernels.h"
#include "ops/cpu/lanes_avx512.h"

namespace quire::cpu {

QUIRE_DEFINE_KERNELS(avx512, Avx512Lanes)

}  // namespace quire::cpu

// Default bodies of the fused ops: the plain ones, one after another.
#include "ops/ops.h"

#include "ops/host_memory.h"

namespace quire {

Ops::MemorySize Ops::memory() const {
  const int64_t available = available_host_bytes();
  return {available, available};
}

Result<DeviceBuffer> Ops::allocate_for_host(int64_t num_bytes, const char* purpose) {
  return allocate_host(num_bytes, purpose);
}

void Ops::add_rms_norm(OpContext& context, TensorView y, TensorView x, ConstTensorView delta, ConstTensorView weight,
                       float epsilon) {
  add(context, x, x, delta);
  rms_norm(context, y, x, weight, epsilon);
}

}  // namespace quire

// Default bodies of the fused ops: the plain ones, one after another.
#include "ops/ops.h"

namespace quire {

void Ops::add_rms_norm(OpContext& context, TensorView y, TensorView x, ConstTensorView delta, ConstTensorView weight,
                       float epsilon) {
  add(context, x, x, delta);
  rms_norm(context, y, x, weight, epsilon);
}

}  // namespace quire

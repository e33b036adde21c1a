#include "layers/head.h"

namespace quire {

void head_layer(StepContext& context, const HeadLayer& layer, TensorView logits, ConstTensorView x,
                ConstTensorView rows) {
  Ops& ops = context.ops;
  OpContext& op_context = context.op_context;
  const ArenaScope scope(op_context.scratch);
  const TensorView wanted = op_context.scratch.take(x.dtype(), {rows.size(0), x.size(1)});
  ops.gather_rows(op_context, wanted, x, rows);
  ops.rms_norm(op_context, wanted, wanted, layer.norm, layer.norm_epsilon);
  linear(context, layer.output, logits, wanted);
  if (layer.soft_cap > 0.0f) ops.soft_cap(op_context, logits, layer.soft_cap);
}

}  // namespace quire

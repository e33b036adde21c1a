#include "layers/head.h"

namespace quire {

void head_layer(StepContext& context, const HeadLayer& layer, TensorView logits, TensorView x) {
  Ops& ops = context.ops;
  OpContext& op_context = context.op_context;
  norm_linear(context, layer.output, logits, x, layer.norm);
  if (layer.soft_cap > 0.0f) ops.soft_cap(op_context, logits, layer.soft_cap);
}

}  // namespace quire

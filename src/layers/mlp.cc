#include "layers/mlp.h"

namespace quire {

void mlp_layer(StepContext& context, const MlpLayer& layer, TensorView y, ConstTensorView x, const InputNorm& norm,
               ConstTensorView residual) {
  OpContext& op_context = context.op_context;
  const ArenaScope scope(op_context.scratch);
  const DType dtype = norm.output_dtype(x);
  const int64_t num_columns = layer.gate_up.num_outputs();
  if (layer.gate_up.parts.size() == 1) {
    const Linear::Part& part = layer.gate_up.parts[0];
    const TensorView gated = op_context.scratch.take(dtype, {x.size(0), num_columns / 2});
    context.ops.norm_gated_linear(op_context, gated, x, norm, part.weight, part.bias, layer.activation);
    linear(context, layer.down, y, gated, residual);
    return;
  }
  const TensorView gate_up = op_context.scratch.take(dtype, {x.size(0), num_columns});
  norm_linear(context, layer.gate_up, gate_up, x, norm);
  const TensorView gate = gate_up.slice(1, 0, num_columns / 2);
  const TensorView up = gate_up.slice(1, num_columns / 2, num_columns);
  context.ops.gated_activation(op_context, gate, gate, up, layer.activation);
  linear(context, layer.down, y, gate, residual);
}

}  // namespace quire

#include "layers/linear.h"

namespace quire {

int64_t Linear::num_outputs() const {
  int64_t total = 0;
  for (const Part& part : parts) total += part.weight.n;
  return total;
}

void linear(StepContext& context, const Linear& layer, TensorView y, ConstTensorView x, ConstTensorView residual) {
  CHECK(y.size(1) == layer.num_outputs());
  int64_t first_column = 0;
  for (const Linear::Part& part : layer.parts) {
    const int64_t end_column = first_column + part.weight.n;
    Epilogue epilogue;
    epilogue.bias = part.bias;
    if (residual.is_given()) epilogue.residual = residual.slice(1, first_column, end_column);
    context.ops.linear(context.op_context, y.slice(1, first_column, end_column), x, part.weight, epilogue);
    first_column = end_column;
  }
}

void norm_linear(StepContext& context, const Linear& layer, TensorView y, ConstTensorView x, const InputNorm& norm) {
  OpContext& op_context = context.op_context;
  if (layer.parts.size() == 1) {
    const Linear::Part& part = layer.parts[0];
    context.ops.norm_linear(op_context, y, x, norm, part.weight, {.bias = part.bias, .residual = {}});
    return;
  }
  if (!norm.weight.is_given()) {
    linear(context, layer, y, x);
    return;
  }
  const ArenaScope scope(op_context.scratch);
  const TensorView normed = op_context.scratch.take(norm.output_dtype(x), {x.size(0), x.size(1)});
  context.ops.rms_norm(op_context, normed, x, norm.weight, norm.epsilon);
  linear(context, layer, y, normed);
}

}  // namespace quire

// Default bodies of the fused ops: the plain ones, one after another.
#include "ops/ops.h"

#include "ops/host_memory.h"
#include "ops/sample_rows.h"
#include "quant/random_rows.h"

namespace quire {

Ops::MemorySize Ops::memory() const {
  const int64_t available = available_host_bytes();
  return {available, available};
}

Result<DeviceBuffer> Ops::allocate_for_host(int64_t num_bytes, const char* purpose) {
  return allocate_host(num_bytes, purpose);
}

Result<Weight> Ops::make_random_weight(const Weight& shape, uint64_t seed) {
  const int64_t num_bytes = shape.num_experts * shape.n * shape.quant().row_bytes(shape.k);
  ASSIGN_OR_RETURN(DeviceBuffer buffer, allocate_host(num_bytes, "random weights"));
  const std::span<std::byte> rows(static_cast<std::byte*>(buffer.data()), static_cast<size_t>(num_bytes));
  fill_random_rows(shape.format, rows, seed);
  Weight weight = shape;
  weight.layout = Layout::kRowMajor;
  weight.parts = {};
  weight.parts[0] = rows;
  weight.owner = std::make_shared<DeviceBuffer>(std::move(buffer));
  return pack(weight);
}

void Ops::sample(OpContext&, TensorView ids, ConstTensorView logits, const SamplingRow* rows) {
  sample_rows(ids, logits, rows);
}

void Ops::add_rms_norm(OpContext& context, TensorView y, TensorView x, ConstTensorView delta, ConstTensorView weight,
                       float epsilon) {
  add(context, x, x, delta);
  rms_norm(context, y, x, weight, epsilon);
}

}  // namespace quire

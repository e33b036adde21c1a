// In which arithmetic a model's products run on the CPU: what --compute means for the weights that a file has.
#pragma once

#include <string_view>

#include "ops/ops.h"
#include "quant/format.h"
#include "weights/tensor_source.h"

namespace quire::app {

// What most bytes of a model are.
enum class WeightKind : uint8_t { kInteger, kBF16, kF16, kOtherFloat };

WeightKind weight_kind(FormatId format);
WeightKind main_weight_kind(const TensorSource& tensors);

// auto: kAuto where rounding attention's operands loses no more than the linear layers do anyway, which is where
// weights are integers or bf16. f16 and f32 weights say more than bf16 can hold: their models stay in float. A GPU
// looks at the flag alone: it computes in the dtype of its activations.
Compute choose_compute(std::string_view flag, DeviceKind device, WeightKind kind);

enum class Arithmetic : uint8_t { kInt8, kBF16, kF32 };

struct ModelArithmetic {
  Arithmetic linear = Arithmetic::kF32;
  Arithmetic attention = Arithmetic::kF32;
};
ModelArithmetic model_arithmetic(Compute compute, WeightKind kind);

// "int8", "bf16", "float".
const char* arithmetic_name(Arithmetic arithmetic);

}  // namespace quire::app

#include "app/model_arithmetic.h"

namespace quire::app {

WeightKind weight_kind(FormatId format) {
  if (format == FormatId::kBF16) return WeightKind::kBF16;
  if (format == FormatId::kF16) return WeightKind::kF16;
  return quant_format(format).is_float ? WeightKind::kOtherFloat : WeightKind::kInteger;
}

WeightKind main_weight_kind(const TensorSource& tensors) {
  int64_t num_bytes[4] = {};
  for (const SourceTensor& tensor : tensors.tensors()) {
    if (!tensor.format.has_value()) continue;
    num_bytes[static_cast<int>(weight_kind(*tensor.format))] += static_cast<int64_t>(tensor.data.size());
  }
  const auto bytes_of = [&](WeightKind kind) { return num_bytes[static_cast<int>(kind)]; };
  const int64_t num_bf16_bytes = bytes_of(WeightKind::kBF16);
  const int64_t num_f16_bytes = bytes_of(WeightKind::kF16);
  const int64_t num_other_bytes = bytes_of(WeightKind::kOtherFloat);
  if (bytes_of(WeightKind::kInteger) > num_bf16_bytes + num_f16_bytes + num_other_bytes) return WeightKind::kInteger;
  if (num_bf16_bytes > num_f16_bytes + num_other_bytes) return WeightKind::kBF16;
  return num_f16_bytes > num_other_bytes ? WeightKind::kF16 : WeightKind::kOtherFloat;
}

Compute choose_compute(std::string_view flag, DeviceKind device, WeightKind kind) {
  if (flag == "f32") return Compute::kF32;
  if (device == DeviceKind::kCuda) return Compute::kAuto;
  if (flag == "bf16") return Compute::kBF16;
  return kind == WeightKind::kF16 || kind == WeightKind::kOtherFloat ? Compute::kF32 : Compute::kAuto;
}

ModelArithmetic model_arithmetic(Compute compute, WeightKind kind) {
  if (compute == Compute::kF32) return {};
  const Arithmetic of_floats =
      compute == Compute::kBF16 || kind == WeightKind::kBF16 ? Arithmetic::kBF16 : Arithmetic::kF32;
  return {.linear = kind == WeightKind::kInteger ? Arithmetic::kInt8 : of_floats, .attention = Arithmetic::kBF16};
}

const char* arithmetic_name(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kInt8:
      return "int8";
    case Arithmetic::kBF16:
      return "bf16";
    case Arithmetic::kF32:
      return "float";
  }
  return "";
}

}  // namespace quire::app

#include "ops/cpu/linear_drivers.h"

#include <cstring>

#include "base/check.h"
#include "quant/packing.h"

namespace quire::cpu {

PackedPanels panels_of(const Weight& weight) {
  const PanelBytes bytes = panel_bytes(weight.format, weight.k);
  return {reinterpret_cast<const uint8_t*>(weight.parts[0].data()),
          reinterpret_cast<const uint8_t*>(weight.parts[1].data()), bytes.codes, bytes.scales, weight.k};
}

PackedPanels skip_panels(const PackedPanels& panels, int64_t num_panels) {
  PackedPanels rest = panels;
  rest.codes += num_panels * panels.codes_stride;
  if (rest.scales != nullptr) rest.scales += num_panels * panels.scales_stride;
  return rest;
}

void store_outputs(const LinearCall& call, int64_t token, int64_t first_output, int64_t count, const float* sums) {
  float* y = call.y.data<float>() + token * call.y.stride(0) + first_output;
  const ConstTensorView& bias = call.epilogue.bias;
  const ConstTensorView& residual = call.epilogue.residual;
  const float* b = bias.is_given() ? bias.data<float>() + first_output : nullptr;
  const float* r = residual.is_given() ? residual.data<float>() + token * residual.stride(0) + first_output : nullptr;
  if (b != nullptr && r != nullptr) {
    for (int64_t i = 0; i < count; ++i) y[i] = (sums[i] + b[i]) + r[i];
  } else if (b != nullptr) {
    for (int64_t i = 0; i < count; ++i) y[i] = sums[i] + b[i];
  } else if (r != nullptr) {
    for (int64_t i = 0; i < count; ++i) y[i] = sums[i] + r[i];
  } else {
    std::memcpy(y, sums, static_cast<size_t>(count) * sizeof(float));
  }
}

}  // namespace quire::cpu

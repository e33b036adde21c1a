#include "ops/cpu/linear_drivers.h"

#include <algorithm>

#include "base/check.h"
#include "ops/cpu/elementwise.h"

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

int64_t chunk_panels(const LinearCall& call, int64_t panels, int64_t most) {
  return std::clamp<int64_t>(panels / (call.pool.num_threads() * kChunksPerThread), 1, most);
}

Outputs::Outputs(const LinearCall& call, void (*finish_block)(const OutputBlock& block))
    : finish_block_(finish_block),
      is_gated_(call.is_gated),
      activation_(call.activation),
      n_(call.y.size(1)),
      num_panels_(quire::num_panels(n_)),
      y_(call.y.data<float>()),
      y_stride_(call.y.stride(0)),
      bias_(call.epilogue.bias.is_given() ? call.epilogue.bias.data<float>() : nullptr),
      residual_(call.epilogue.residual.is_given() ? call.epilogue.residual.data<float>() : nullptr),
      residual_stride_(residual_ != nullptr ? call.epilogue.residual.stride(0) : 0) {
  is_plain_ = !is_gated_ && bias_ == nullptr && residual_ == nullptr;
}

void Outputs::finish(int64_t first_token, int64_t num_tokens, int64_t panel, int64_t end_panel, const float* sums,
                     const float* up_sums, int64_t sums_stride) const {
  const int64_t first = panel * kPanelLanes;
  finish_block_({.sums = sums,
                 .up_sums = is_gated_ ? up_sums : nullptr,
                 .sums_stride = sums_stride,
                 .y = y_ + first_token * y_stride_ + first,
                 .y_stride = y_stride_,
                 .bias = bias_ != nullptr ? bias_ + first : nullptr,
                 .up_bias = bias_ != nullptr ? bias_ + n_ + first : nullptr,
                 .residual = residual_ != nullptr ? residual_ + first_token * residual_stride_ + first : nullptr,
                 .residual_stride = residual_stride_,
                 .num_tokens = num_tokens,
                 .num_outputs = std::min(end_panel * kPanelLanes, n_) - first,
                 .activation = activation_});
}

InputRows::InputRows(const LinearCall& call, int64_t max_rows)
    : features_(call.features),
      x_{call.x.data<float>(), call.x.stride(0)},
      k_(call.weight.k),
      norm_weight_(call.norm.weight.is_given() ? call.norm.weight.data<float>() : nullptr),
      epsilon_(call.norm.epsilon),
      max_rows_(max_rows) {
  if (norm_weight_ == nullptr) return;
  normed_ = static_cast<float*>(
      call.scratch.take_bytes(call.pool.num_threads() * max_rows * k_ * static_cast<int64_t>(sizeof(float))));
}

InputRows::Rows InputRows::read(int64_t first, int64_t count, int worker_index) const {
  const Rows rows{x_.data + first * x_.stride, x_.stride};
  if (norm_weight_ == nullptr) return rows;
  float* normed = normed_ + worker_index * max_rows_ * k_;
  const RmsNormCall call{.features = features_,
                         .y = {normed, k_, 0},
                         .x = {rows.data, rows.stride, 0},
                         .delta = {},
                         .x_sum = {},
                         .weight = norm_weight_,
                         .epsilon = epsilon_,
                         .size = k_,
                         .num_heads = 1,
                         .begin = 0,
                         .end = count};
  choose_row(rms_norm_rows(), call).launch(call);
  return {normed, k_};
}

}  // namespace quire::cpu

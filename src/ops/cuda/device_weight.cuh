// Single weights of a DeviceWeight inside kernels: slow and complete, for every format. The values are those of
// quant/dequantize.h, bit for bit.
#pragma once

#include "ops/cuda/device_dtype.cuh"
#include "ops/cuda/weights.h"

namespace quire::cuda {

constexpr float kLargestF8 = 448.0f;  // of e4m3

// The bits of an e4m3 number are those of an f16 2^8 times smaller, subnormal ones too.
__device__ __forceinline__ float f8_to_float(uint8_t bits) {
  const unsigned moved = static_cast<unsigned>(bits & 0x80) << 8 | static_cast<unsigned>(bits & 0x7f) << 7;
  return __half2float(__ushort_as_half(static_cast<unsigned short>(moved))) * 256.0f;
}

struct ScaleAndMin {
  float scale;
  float min;
};

// Scale and minimum of `lane` (the output within its panel) for the k of group `group` of a scale block.
__device__ __forceinline__ ScaleAndMin load_scale(const PanelFormat& panel, const uint8_t* block, int lane, int group) {
  const auto half = [&](int row) { return to_float(reinterpret_cast<const f16*>(block)[16 * row + lane]); };
  switch (panel.scale_kind) {
    case ScaleKind::kHalf:
      return {half(0), 0};
    case ScaleKind::kHalfAndMin:
      return {half(0), half(1)};
    case ScaleKind::kSuperBytes: {
      const int num_groups = panel.scale_block_size / panel.group_size;
      const float scale = static_cast<float>(block[64 + 16 * group + lane]);
      const float min = static_cast<float>(block[64 + 16 * (num_groups + group) + lane]);
      return {__fmul_rn(half(0), scale), -__fmul_rn(half(1), min)};
    }
    case ScaleKind::kSuperNibbles: {
      const int packed = block[64 + 16 * group + lane];
      return {__fmul_rn(half(0), static_cast<float>(packed & 15)),
              -__fmul_rn(half(1), static_cast<float>(packed >> 4))};
    }
    case ScaleKind::kSuperSigned:
      return {__fmul_rn(half(0), static_cast<float>(static_cast<int8_t>(block[32 + 16 * group + lane]))), 0};
    case ScaleKind::kHalfAndZero:
      return {half(0), -__fmul_rn(half(0), static_cast<float>(block[32 + lane]))};  // exact
    case ScaleKind::kNone:
      break;
  }
  return {1, 0};
}

// The stored code of (row, k) of a panel.
__device__ __forceinline__ int load_code(const DeviceWeight& w, const uint8_t* panel_codes, int row, int64_t k) {
  const int k_in_step = static_cast<int>(k % 16);
  const int lane = row % 8 * 4 + k_in_step % 8 / 2;
  const int reg = row / 8 + k_in_step / 8 * 2;
  if (w.stored_bits == 4) {
    const uint8_t* bytes = panel_codes + k / 64 * kWeightTileBytes + lane * 16 + k % 64 / 16 * 4;
    return *reinterpret_cast<const uint32_t*>(bytes) >> (4 * (reg + k_in_step % 2 * 4)) & 15;
  }
  return panel_codes[k / 32 * kWeightTileBytes + lane * 16 + k % 32 / 16 * 8 + reg * 2 + k_in_step % 2];
}

__device__ __forceinline__ float load_weight(const DeviceWeight& w, int64_t expert, int64_t row, int64_t k) {
  if (w.is_f8) {
    return __fmul_rn(f8_to_float(w.codes[(expert * w.n + row) * w.k + k]),
                     reinterpret_cast<const float*>(w.scales)[expert * w.n + row]);
  }
  if (w.is_i8) {
    return __fmul_rn(static_cast<float>(reinterpret_cast<const int8_t*>(w.codes)[(expert * w.n + row) * w.k + k]),
                     reinterpret_cast<const float*>(w.scales)[expert * w.n + row]);
  }
  if (w.format == FormatId::kF32) return reinterpret_cast<const float*>(w.codes)[(expert * w.n + row) * w.k + k];
  if (w.format == FormatId::kF16) {
    return to_float(reinterpret_cast<const f16*>(w.codes)[(expert * w.n + row) * w.k + k]);
  }
  if (w.format == FormatId::kBF16) {
    return to_float(reinterpret_cast<const bf16*>(w.codes)[(expert * w.n + row) * w.k + k]);
  }
  const int64_t panel_index = expert * w.panels_per_expert + row / kPanelLanes;
  const int lane = static_cast<int>(row % kPanelLanes);
  const int code = load_code(w, w.codes + panel_index * w.panel_code_bytes, lane, k);
  const uint8_t* block =
      w.scales + panel_index * w.panel_scale_bytes + k / w.panel.scale_block_size * w.panel.scale_block_bytes;
  const int group = static_cast<int>(k % w.panel.scale_block_size) / w.panel.group_size;
  const ScaleAndMin scale = load_scale(w.panel, block, lane, group);
  return __fadd_rn(__fmul_rn(scale.scale, static_cast<float>(code - w.panel.offset)), scale.min);
}

}  // namespace quire::cuda

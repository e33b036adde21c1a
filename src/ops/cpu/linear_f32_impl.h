// The kernels of linear_kernels.h's "f32_ascending" order as templates over Codes (codes_*.h). Included once by each
// linear_f32_*.cc, which is compiled for one instruction set and calls nothing that other files might share.
//
// multiply_vector is bound by memory, and for integer formats by unpacking: about six instructions for 16 weights.
// multiply_tile is the usual matrix tile: T * 16 outputs in registers, a weight vector and T broadcasts for each k.
#pragma once

#include <cstdint>

#include "ops/cpu/linear_kernels.h"
#include "ops/cpu/packed_panel.h"

namespace quire::cpu {
namespace {

template <typename Codes>
struct F32Impl {
  using Lanes = typename Codes::Lanes;
  using Vec = typename Codes::Vec;
  using Bytes = typename Codes::Bytes;

  // Calls visit(k, weights of 16 outputs) for k ascending in [k_begin, k_end).
  template <FormatId kFormat, typename Visit>
  [[gnu::always_inline]] static void visit_weights(const PackedPanels& panels, int64_t panel_index, int64_t k_begin,
                                                   int64_t k_end, Visit visit) {
    const uint8_t* codes = panels.codes + panel_index * panels.codes_stride;
    if constexpr (quant_format(kFormat).is_float) {
      for (int64_t k = k_begin; k < k_end; ++k) {
        const uint8_t* p = codes + k * kPanelLanes * quant_format(kFormat).bytes_per_block;
        if constexpr (kFormat == FormatId::kF32) {
          visit(k, Lanes::load(reinterpret_cast<const float*>(p)));
        } else if constexpr (kFormat == FormatId::kF16) {
          visit(k, Lanes::load_f16(reinterpret_cast<const uint16_t*>(p)));
        } else {
          visit(k, Lanes::load_bf16(reinterpret_cast<const uint16_t*>(p)));
        }
      }
    } else {
      using Panel = PackedPanel<Codes, kFormat>;
      constexpr PanelFormat kPanel = Panel::kPanel;
      constexpr int kVectorsPerGroup = kPanel.group_size / 4;
      const uint8_t* scales = panels.scales + panel_index * panels.scales_stride;
      for (int64_t t = k_begin / kTileK; t < k_end / kTileK; ++t) {
        const uint8_t* tile = codes + t * kPanel.tile_bytes();
        const uint8_t* block = Panel::scale_block(scales, t);
        unroll<Panel::kGroupsPerTile>([&](auto g) __attribute__((always_inline)) {
          Vec scale;
          Vec min;
          Panel::scale_and_min(block, Panel::first_group(t) + decltype(g)::value, scale, min);
          unroll<kVectorsPerGroup>([&](auto i) __attribute__((always_inline)) {
            constexpr int kIndex = decltype(g)::value * kVectorsPerGroup + decltype(i)::value;
            const Bytes bytes = Panel::template codes<kIndex>(tile);
            unroll<4>([&](auto b) __attribute__((always_inline)) {
              // code * scale is exact, so that fusing or not fusing the minimum gives the same float.
              const Vec code = Codes::template to_float<decltype(b)::value>(bytes, kPanel.offset);
              Vec weight;
              if constexpr (kPanel.has_min()) {
                weight = Lanes::fma(code, scale, min);
              } else {
                weight = Lanes::mul(code, scale);
              }
              visit(t * kTileK + 4 * kIndex + decltype(b)::value, weight);
            });
          });
        });
      }
    }
  }

  template <FormatId kFormat>
  static void multiply_vector(const PackedPanels& panels, int64_t num_panels, const float* x, float* out) {
    for (int64_t p = 0; p < num_panels; ++p) {
      Vec acc = Lanes::set(0.0f);
      visit_weights<kFormat>(
          panels, p, 0, panels.k, [&](int64_t k, const Vec& weights) __attribute__((always_inline)) {
            acc = Lanes::fma(Lanes::set(x[k]), weights, acc);
          });
      Lanes::store(out + p * kPanelLanes, acc);
    }
  }

  template <FormatId kFormat>
  static void dequantize(const PackedPanels& panels, int64_t panel_index, int64_t k_begin, int64_t k_end, float* out) {
    visit_weights<kFormat>(
        panels, panel_index, k_begin, k_end, [&](int64_t k, const Vec& weights) __attribute__((always_inline)) {
          Lanes::store(out + (k - k_begin) * kPanelLanes, weights);
        });
  }

  template <int kTokens>
  static void multiply_tile(const float* weights, int64_t num_k, const float* x, float* out, int64_t out_stride) {
    Vec acc[kTokens];
    unroll<kTokens>([&](auto t) __attribute__((always_inline)) { acc[t] = Lanes::load(out + t * out_stride); });
    for (int64_t k = 0; k < num_k; ++k) {
      const Vec w = Lanes::load(weights);
      unroll<kTokens>([&](auto t) __attribute__((always_inline)) { acc[t] = Lanes::fma(Lanes::set(x[t]), w, acc[t]); });
      weights += kPanelLanes;
      x += kTokens;
    }
    unroll<kTokens>([&](auto t) __attribute__((always_inline)) { Lanes::store(out + t * out_stride, acc[t]); });
  }

  template <int... kTileSizes>
  static constexpr F32Kernels make_kernels() {
    F32Kernels kernels{};
    const auto add = [&kernels]<int... kIds>(std::integer_sequence<int, kIds...>) {
      ((kernels.formats[kIds] = {multiply_vector<static_cast<FormatId>(kIds)>,
                                 dequantize<static_cast<FormatId>(kIds)>}),
       ...);
    };
    add(std::make_integer_sequence<int, std::size(kQuantFormats)>{});
    ((kernels.multiply_tile[kTileSizes] = multiply_tile<kTileSizes>), ...);
    return kernels;
  }
};

}  // namespace
}  // namespace quire::cpu

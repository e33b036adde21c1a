// The kernels of linear_kernels.h's "f32_ascending" order, and of "bf16_pairs" in float, as templates over Codes
// (codes_*.h). Included once by each linear_f32_*.cc, which is compiled for one instruction set and calls nothing that
// other files might share.
//
// multiply_few is bound by memory. dequantize takes about six instructions for 16 weights of an integer format.
// multiply_tile is the usual matrix tile: tokens times panels in registers, for each k a weight vector a panel and a
// broadcast a token.
#pragma once

#include <cstdint>

#include "ops/cpu/linear_finish_impl.h"
#include "ops/cpu/linear_kernels.h"
#include "ops/cpu/packed_panel.h"

namespace quire::cpu {
namespace {

template <typename Codes>
struct F32Impl {
  using Lanes = typename Codes::Lanes;
  using Vec = typename Codes::Vec;
  using Bytes = typename Codes::Bytes;

  // In which order k are visited: ascending, or of each pair the second first.
  enum class Order { kAscending, kSecondFirst };

  // Calls visit(position, weights of 16 outputs) for positions ascending in [k_begin, k_end): k, or the place of k in
  // the other order.
  template <FormatId kFormat, Order kOrder, typename Visit>
  [[gnu::always_inline]] static void visit_weights(const PackedPanels& panels, int64_t panel_index, int64_t k_begin,
                                                   int64_t k_end, Visit visit) {
    const uint8_t* codes = panels.codes + panel_index * panels.codes_stride;
    if constexpr (kFormat == FormatId::kBF16) {
      for (int64_t k = k_begin; k < k_end; k += 2) {
        Vec first;
        Vec second;
        Codes::load_bf16_pairs(reinterpret_cast<const uint16_t*>(codes) + k * kPanelLanes, first, second);
        const bool is_pair = k + 1 < k_end;
        if constexpr (kOrder == Order::kAscending) {
          visit(k, first);
          if (is_pair) visit(k + 1, second);
        } else {
          if (is_pair) visit(k, second);
          visit(is_pair ? k + 1 : k, first);
        }
      }
    } else if constexpr (quant_format(kFormat).is_float) {
      for (int64_t k = k_begin; k < k_end; ++k) {
        const uint8_t* p = codes + k * kPanelLanes * quant_format(kFormat).bytes_per_block;
        if constexpr (kFormat == FormatId::kF32) {
          visit(k, Lanes::load(reinterpret_cast<const float*>(p)));
        } else {
          visit(k, Lanes::load_f16(reinterpret_cast<const uint16_t*>(p)));
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

  template <FormatId kFormat, Order kOrder, int kTokens>
  static void multiply_few(const PackedPanels& panel, const float* x, float* out, int64_t out_stride) {
    Vec acc[kTokens];
    unroll<kTokens>([&](auto t) __attribute__((always_inline)) { acc[t] = Lanes::set(0.0f); });
    visit_weights<kFormat, kOrder>(
        panel, 0, 0, panel.k, [&](int64_t k, const Vec& weights) __attribute__((always_inline)) {
          unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
            acc[t] = Lanes::fma(Lanes::set(x[k * kTokens + t]), weights, acc[t]);
          });
        });
    unroll<kTokens>([&](auto t) __attribute__((always_inline)) { Lanes::store(out + t * out_stride, acc[t]); });
  }

  template <FormatId kFormat, Order kOrder>
  static void dequantize(const PackedPanels& panels, int64_t panel_index, int64_t k_begin, int64_t k_end, float* out) {
    visit_weights<kFormat, kOrder>(
        panels, panel_index, k_begin, k_end, [&](int64_t k, const Vec& weights) __attribute__((always_inline)) {
          Lanes::store(out + (k - k_begin) * kPanelLanes, weights);
        });
  }

  template <int kPanels, int kTokens>
  static void multiply_tile(const float* weights, int64_t panel_stride, int64_t num_k, const float* x, float* out,
                            int64_t out_stride) {
    Vec acc[kPanels * kTokens];
    const auto place = [&](int i) { return out + i % kTokens * out_stride + i / kTokens * kPanelLanes; };
    unroll<kPanels * kTokens>([&](auto i) __attribute__((always_inline)) { acc[i] = Lanes::load(place(i)); });
    for (int64_t k = 0; k < num_k; ++k) {
      Vec w[kPanels];
      unroll<kPanels>([&](auto p) __attribute__((always_inline)) { w[p] = Lanes::load(weights + p * panel_stride); });
      unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
        const Vec activation = Lanes::set(x[t]);
        unroll<kPanels>([&](auto p) __attribute__((always_inline)) {
          acc[p * kTokens + t] = Lanes::fma(activation, w[p], acc[p * kTokens + t]);
        });
      });
      weights += kPanelLanes;
      x += kTokens;
    }
    unroll<kPanels * kTokens>([&](auto i) __attribute__((always_inline)) { Lanes::store(place(i), acc[i]); });
  }

  template <int... kSizes>
  using Sizes = std::integer_sequence<int, kSizes...>;

  static void round_to_bf16(const float* x, int64_t count, float* out) {
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) Lanes::store(out + i, Lanes::round_to_bf16(Lanes::load(x + i)));
    const int rest = static_cast<int>(count - i);
    if (rest > 0) Lanes::store(out + i, Lanes::round_to_bf16(Lanes::load(x + i, rest)), rest);
  }

  template <FormatId kFormat, Order kOrder, int... kFew>
  static constexpr F32Kernels::Format make_format(Sizes<kFew...>) {
    F32Kernels::Format format{};
    if constexpr (quant_format(kFormat).is_float) {
      ((format.multiply_few[kFew] = multiply_few<kFormat, kOrder, kFew>), ...);
    }
    // Groups of 128 are packed as groups of 32 (quant/regroup.h).
    if constexpr (kFormat != FormatId::kInt4G128) format.dequantize = dequantize<kFormat, kOrder>;
    return format;
  }
  template <int kPanels, int... kTiles>
  static constexpr void add_tiles([[maybe_unused]] F32Kernels& kernels, Sizes<kTiles...>) {
    ((kernels.multiply_tile[kPanels - 1][kTiles] = multiply_tile<kPanels, kTiles>), ...);
  }

  // The numbers of tokens that few-token kernels are made for, and tile kernels of one and of two panels.
  template <typename Few, typename Tiles, typename DoubleTiles>
  static constexpr F32Kernels make_kernels() {
    F32Kernels kernels{};
    kernels.finish = LinearFinish<Lanes>::finish;
    const auto add = [&kernels]<int... kIds>(std::integer_sequence<int, kIds...>) {
      ((kernels.formats[kIds] = make_format<static_cast<FormatId>(kIds), Order::kAscending>(Few{})), ...);
    };
    add(std::make_integer_sequence<int, std::size(kQuantFormats)>{});
    kernels.bf16_pairs = make_format<FormatId::kBF16, Order::kSecondFirst>(Few{});
    kernels.round_to_bf16 = round_to_bf16;
    add_tiles<1>(kernels, Tiles{});
    add_tiles<2>(kernels, DoubleTiles{});
    return kernels;
  }
};

}  // namespace
}  // namespace quire::cpu

// The kernels of linear_kernels.h's "int8_groups" order as templates over Codes (codes_*.h). Included once by each
// linear_int8_*.cc, which is compiled for one instruction set and calls nothing that other files might share.
//
// multiply_vector reads every weight byte once, unpacks it in registers and is bound by memory: for 4 bits about 30
// vector instructions for 512 weights. multiply_tile reads unpacked bytes from the cache and is bound by the
// multiplier: of 8 dot products, a conversion, a product and a fused multiply-add (two with minima) for T * 512
// weights, the former 8 count as work.
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/cpu/linear_kernels.h"
#include "ops/cpu/packed_panel.h"
#include "tensor/dtype.h"

namespace quire::cpu {
namespace {

template <typename Codes>
struct Int8Impl {
  using Lanes = typename Codes::Lanes;
  using Vec = typename Codes::Vec;
  using Bytes = typename Codes::Bytes;

  static void quantize(const float* x, int64_t x_stride, int num_tokens, int64_t k, int group_size, int offset,
                       const Int8Tile& tile) {
    const int groups_per_block = kTileK / group_size;
    for (int t = 0; t < num_tokens; ++t) {
      const float* row = x + t * x_stride;
      for (int64_t block = 0; block < k / kTileK; ++block) {
        alignas(64) int8_t codes[kTileK];
        int32_t sums[2];
        const uint32_t bits = Codes::largest_magnitude_bits(row + block * kTileK);
        const float largest = __builtin_bit_cast(float, bits);
        float scale = largest / 127.0f;
        if (bits >= 0x7f800000u || scale < 0x1p-126f) {
          // Infinity and NaN reach the output through the scale; what is too small to be divided by counts as zero.
          std::memset(codes, 0, sizeof(codes));
          sums[0] = sums[1] = 0;
          if (bits < 0x7f800000u) scale = 0;
        } else {
          Codes::quantize_32(row + block * kTileK, 127.0f / largest, codes, sums);
        }
        tile.scales[block * num_tokens + t] = scale;
        int8_t* out = tile.codes + (block * (kTileK / 4) * num_tokens + t) * 4;
        for (int i = 0; i < kTileK / 4; ++i) std::memcpy(out + i * 4 * num_tokens, codes + 4 * i, 4);
        if (groups_per_block == 1) sums[0] += sums[1];
        for (int g = 0; g < groups_per_block; ++g) {
          const int64_t index = (block * groups_per_block + g) * num_tokens + t;
          tile.biases[index] = -offset * sums[g];
          tile.sums[index] = scale * static_cast<float>(sums[g]);
        }
      }
    }
  }

  template <FormatId kFormat>
  struct Kernel {
    using Panel = PackedPanel<Codes, kFormat>;
    using Dot = typename Codes::template Dot<Panel::kMaxCode>;
    static constexpr PanelFormat kPanel = Panel::kPanel;
    static constexpr int kGroupsPerTile = Panel::kGroupsPerTile;
    static constexpr int kVectorsPerGroup = kPanel.group_size / 4;

    static void multiply_vector(const PackedPanels& panels, int64_t num_panels, const Int8Tile& x, float* out) {
      const int64_t num_tiles = panels.k / kTileK;
      for (int64_t p = 0; p < num_panels; ++p) {
        const uint8_t* tile = panels.codes + p * panels.codes_stride;
        const uint8_t* scales = panels.scales + p * panels.scales_stride;
        Vec acc = Lanes::set(0.0f);
        for (int64_t t = 0; t < num_tiles; ++t) {
          const uint8_t* block = Panel::scale_block(scales, t);
          const int8_t* activations = x.codes + t * kTileK;
          const Vec d = Lanes::set(x.scales[t]);
          unroll<kGroupsPerTile>([&](auto g) __attribute__((always_inline)) {
            const int64_t group = t * kGroupsPerTile + g;
            Dot dot(x.biases[group]);
            unroll<kVectorsPerGroup>([&](auto i) __attribute__((always_inline)) {
              constexpr int kIndex = decltype(g)::value * kVectorsPerGroup + decltype(i)::value;
              dot.template add<decltype(i)::value>(Panel::template codes<kIndex>(tile), activations + 4 * kIndex);
            });
            Vec scale;
            Vec min;
            Panel::scale_and_min(block, Panel::first_group(t) + decltype(g)::value, scale, min);
            acc = Lanes::fma(dot.finish(), Lanes::mul(scale, d), acc);
            if constexpr (kPanel.has_min()) acc = Lanes::fma(min, Lanes::set(x.sums[group]), acc);
          });
          tile += kPanel.tile_bytes();
        }
        Lanes::store(out + p * kPanelLanes, acc);
      }
    }

    static void unpack(const PackedPanels& panels, int64_t panel_index, const UnpackedPanel& out) {
      const int64_t num_tiles = panels.k / kTileK;
      const uint8_t* tile = panels.codes + panel_index * panels.codes_stride;
      const uint8_t* scales = panels.scales + panel_index * panels.scales_stride;
      for (int64_t t = 0; t < num_tiles; ++t) {
        const uint8_t* block = Panel::scale_block(scales, t);
        unroll<8>([&](auto i) __attribute__((always_inline)) {
          constexpr int kIndex = decltype(i)::value;
          Codes::store(out.codes + (t * 8 + kIndex) * 64, Panel::template codes<kIndex>(tile));
        });
        for (int g = 0; g < kGroupsPerTile; ++g) {
          Vec scale;
          Vec min;
          Panel::scale_and_min(block, Panel::first_group(t) + g, scale, min);
          Lanes::store(out.scales + (t * kGroupsPerTile + g) * kPanelLanes, scale);
          if constexpr (kPanel.has_min()) Lanes::store(out.mins + (t * kGroupsPerTile + g) * kPanelLanes, min);
        }
        tile += kPanel.tile_bytes();
      }
    }
  };

  // Codes unpacked: what is left of a format is its group size, whether it has minima, and how large codes may be.
  template <int kTokens, int kGroupSize, bool kHasMin, int kMaxCode>
  static void multiply_tile(const UnpackedPanel& panel, int64_t k, const Int8Tile& x, float* out, int64_t out_stride) {
    using Dot = typename Codes::template Dot<kMaxCode>;
    constexpr int kVectorsPerGroup = kGroupSize / 4;
    constexpr int kGroupsPerTile = kTileK / kGroupSize;
    Vec acc[kTokens];
    for (int t = 0; t < kTokens; ++t) acc[t] = Lanes::set(0.0f);
    const uint8_t* codes = panel.codes;
    const int8_t* activations = x.codes;
    const int64_t num_groups = k / kGroupSize;
    for (int64_t group = 0; group < num_groups; ++group) {
      const int32_t* biases = x.biases + group * kTokens;
      const float* d = x.scales + group / kGroupsPerTile * kTokens;
      unroll_tokens<kTokens, Dot, kVectorsPerGroup>(
          codes, activations, biases, [&](auto t, Dot& dot) __attribute__((always_inline)) {
            const Vec scale = Lanes::load(panel.scales + group * kPanelLanes);
            acc[t] = Lanes::fma(dot.finish(), Lanes::mul(scale, Lanes::set(d[t])), acc[t]);
          });
      if constexpr (kHasMin) {
        const Vec min = Lanes::load(panel.mins + group * kPanelLanes);
        const float* sums = x.sums + group * kTokens;
        for (int t = 0; t < kTokens; ++t) acc[t] = Lanes::fma(min, Lanes::set(sums[t]), acc[t]);
      }
      codes += 64 * kVectorsPerGroup;
      activations += 4 * kTokens * kVectorsPerGroup;
    }
    for (int t = 0; t < kTokens; ++t) Lanes::store(out + t * out_stride, acc[t]);
  }

  // The dot products of one group for all tokens, then finish(token, dot) for each.
  template <int kTokens, typename Dot, int kVectorsPerGroup, typename Finish>
  [[gnu::always_inline]] static void unroll_tokens(const uint8_t* codes, const int8_t* activations,
                                                   const int32_t* biases, Finish finish) {
    [&]<int... kToken>(std::integer_sequence<int, kToken...>) __attribute__((always_inline)) {
      Dot dots[kTokens] = {Dot(biases[kToken])...};
      unroll<kVectorsPerGroup>([&](auto i) __attribute__((always_inline)) {
        constexpr int kIndex = decltype(i)::value;
        const Bytes weights = Codes::load(codes + 64 * kIndex);
        (dots[kToken].template add<kIndex>(weights, activations + 4 * (kIndex * kTokens + kToken)), ...);
      });
      (finish(std::integral_constant<int, kToken>{}, dots[kToken]), ...);
    }
    (std::make_integer_sequence<int, kTokens>{});
  }

  template <FormatId kFormat, int... kTileSizes>
  static constexpr Int8Kernels::Format make_format() {
    using K = Kernel<kFormat>;
    Int8Kernels::Format format{};
    format.multiply_vector = K::multiply_vector;
    format.unpack = K::unpack;
    // Codes of one class share their kernels.
    constexpr int kMax = K::Panel::kMaxCode <= 15 ? 15 : K::Panel::kMaxCode;
    ((format.multiply_tile[kTileSizes] = multiply_tile<kTileSizes, K::kPanel.group_size, K::kPanel.has_min(), kMax>),
     ...);
    return format;
  }

  template <int... kTileSizes>
  static constexpr Int8Kernels make_kernels() {
    Int8Kernels kernels{};
    kernels.quantize = quantize;
    const auto add = [&kernels]<FormatId... kFormats>(std::integer_sequence<FormatId, kFormats...>) {
      ((kernels.formats[static_cast<int>(kFormats)] = make_format<kFormats, kTileSizes...>()), ...);
    };
    add(std::integer_sequence<FormatId, FormatId::kQ4_0, FormatId::kQ4_1, FormatId::kQ5_0, FormatId::kQ5_1,
                              FormatId::kQ8_0, FormatId::kQ2_K, FormatId::kQ3_K, FormatId::kQ4_K, FormatId::kQ5_K,
                              FormatId::kQ6_K, FormatId::kIQ4_NL, FormatId::kIQ4_XS>{});
    return kernels;
  }
};

}  // namespace
}  // namespace quire::cpu

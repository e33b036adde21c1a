// The kernels of linear_kernels.h's "int8_groups" order as templates over Codes (codes_*.h). Included once by each
// linear_int8_*.cc, which is compiled for one instruction set and calls nothing that other files might share.
//
// multiply_few reads every weight byte once, unpacks it in registers and is bound by memory: for one token and 4 bits
// about 30 vector instructions for 512 weights. multiply_tile reads unpacked bytes from the cache and is bound by the
// multiplier: of 8 dot products, a conversion, a product and a fused multiply-add (two with minima) for every 512
// weights and token, the former 8 count as work. It takes two panels where registers allow, since a load that
// broadcasts an activation costs as much as the dot product it serves. VNNI needs no such kernel: it multiplies packed
// panels for any number of tokens, two at once where codes are bytes already.
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/cpu/linear_finish_impl.h"
#include "ops/cpu/linear_kernels.h"
#include "ops/cpu/packed_panel.h"
#include "tensor/dtype.h"

namespace quire::cpu {
namespace {

// std::integer_sequence takes no enums.
template <FormatId...>
struct FormatList {};
using AllInt8Formats = FormatList<FormatId::kQ4_0, FormatId::kQ4_1, FormatId::kQ5_0, FormatId::kQ5_1, FormatId::kQ8_0,
                                  FormatId::kQ2_K, FormatId::kQ3_K, FormatId::kQ4_K, FormatId::kQ5_K, FormatId::kQ6_K,
                                  FormatId::kIQ4_NL, FormatId::kIQ4_XS>;

template <typename Codes>
struct Int8Impl {
  using Lanes = typename Codes::Lanes;
  using Vec = typename Codes::Vec;
  using Bytes = typename Codes::Bytes;

  // In which order a tile has its codes: as Int8Tile says, or [k / 32][T][32].
  enum class CodeOrder { kFours, kRows };

  template <CodeOrder kOrder = CodeOrder::kFours>
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
        if constexpr (kOrder == CodeOrder::kRows) {
          std::memcpy(tile.codes + (block * num_tokens + t) * kTileK, codes, kTileK);
        } else {
          int8_t* out = tile.codes + (block * (kTileK / 4) * num_tokens + t) * 4;
          for (int i = 0; i < kTileK / 4; ++i) std::memcpy(out + i * 4 * num_tokens, codes + 4 * i, 4);
        }
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

    // Of kPanels neighbouring panels.
    template <int kPanels, int kTokens>
    static void multiply_few(const PackedPanels& panel, const Int8Tile& x, float* out, int64_t out_stride) {
      const int64_t num_tiles = panel.k / kTileK;
      const uint8_t* tile = panel.codes;
      constexpr int kSums = kPanels * kTokens;
      Vec acc[kSums];
      unroll<kSums>([&](auto i) __attribute__((always_inline)) { acc[i] = Lanes::set(0.0f); });
      const uint8_t* ahead = panel.ahead;
      for (int64_t tile_index = 0; tile_index < num_tiles; ++tile_index) {
        for (const uint8_t* end = ahead + panel.ahead_step; ahead != end; ahead += 64) Lanes::prefetch(ahead);
        const uint8_t* block = Panel::scale_block(panel.scales, tile_index);
        const int8_t* activations = x.codes + tile_index * kTileK * kTokens;
        const float* d = x.scales + tile_index * kTokens;
        unroll<kGroupsPerTile>([&](auto g) __attribute__((always_inline)) {
          constexpr int kFirstVector = decltype(g)::value * kVectorsPerGroup;
          const int64_t group = tile_index * kGroupsPerTile + decltype(g)::value;
          Vec scale[kPanels];
          Vec min[kPanels];
          unroll<kPanels>([&](auto p) __attribute__((always_inline)) {
            Panel::scale_and_min(block + p * panel.scales_stride, Panel::first_group(tile_index) + decltype(g)::value,
                                 scale[p], min[p]);
          });
          add_group<kPanels, kTokens, Dot, kVectorsPerGroup>(
              [&](auto i, auto p) __attribute__((always_inline)) {
                return Panel::template codes<kFirstVector + decltype(i)::value>(tile + p * panel.codes_stride);
              },
              activations + 4 * kTokens * kFirstVector, x.biases + group * kTokens, d, acc, scale);
          if constexpr (kPanel.has_min()) {
            unroll<kSums>([&](auto i) __attribute__((always_inline)) {
              acc[i] = Lanes::fma(min[i / kTokens], Lanes::set(x.sums[group * kTokens + i % kTokens]), acc[i]);
            });
          }
        });
        tile += kPanel.tile_bytes();
      }
      unroll<kSums>([&](auto i) __attribute__((always_inline)) {
        Lanes::store(out + i % kTokens * out_stride + i / kTokens * kPanelLanes, acc[i]);
      });
    }

    // Codes as they are, or less the offset.
    template <bool kIsSigned = false>
    static void unpack(const PackedPanels& panel, const UnpackedPanel& out) {
      const int64_t num_tiles = panel.k / kTileK;
      const uint8_t* tile = panel.codes;
      for (int64_t t = 0; t < num_tiles; ++t) {
        const uint8_t* block = Panel::scale_block(panel.scales, t);
        unroll<8>([&](auto i) __attribute__((always_inline)) {
          constexpr int kIndex = decltype(i)::value;
          Bytes codes = Panel::template codes<kIndex>(tile);
          if constexpr (kIsSigned) codes = Codes::template subtract<kPanel.offset>(codes);
          Codes::store(out.codes + (t * 8 + kIndex) * 64, codes);
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

  // acc[panel * kTokens + token] += the products of one group. weights(i, p) are the codes of vector i of panel p,
  // scale[p] its scales; d the tokens' own scales.
  template <int kPanels, int kTokens, typename Dot, int kVectors, typename Weights>
  [[gnu::always_inline]] static void add_group(Weights weights, const int8_t* activations, const int32_t* biases,
                                               const float* d, Vec* acc, const Vec* scale) {
    [&]<int... kSums>(std::integer_sequence<int, kSums...>) __attribute__((always_inline)) {
      Dot dots[sizeof...(kSums)] = {Dot(biases[kSums % kTokens])...};
      unroll<kVectors>([&](auto i) __attribute__((always_inline)) {
        [&]<int... kIndices>(std::integer_sequence<int, kIndices...>) __attribute__((always_inline)) {
          const Bytes codes[kPanels] = {weights(i, std::integral_constant<int, kIndices>{})...};
          unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
            unroll<kPanels>([&](auto p) __attribute__((always_inline)) {
              dots[p * kTokens + t].template add<decltype(i)::value>(codes[p], activations + 4 * (i * kTokens + t));
            });
          });
        }
        (std::make_integer_sequence<int, kPanels>{});
      });
      unroll<kPanels * kTokens>([&](auto s) __attribute__((always_inline)) {
        acc[s] = Lanes::fma(dots[s].template finish<kVectors>(),
                            Lanes::mul(scale[s / kTokens], Lanes::set(d[s % kTokens])), acc[s]);
      });
    }
    (std::make_integer_sequence<int, kPanels * kTokens>{});
  }

  // Codes unpacked: what is left of a format is its group size, whether it has minima, and how large codes may be.
  template <int kTokens, int kGroupSize, bool kHasMin, int kMaxCode>
  static void multiply_tile(const UnpackedPanel& panel, int64_t k, const Int8Tile& x, float* out, int64_t out_stride) {
    using Dot = typename Codes::template Dot<kMaxCode>;
    constexpr int kVectors = kGroupSize / 4;
    constexpr int kGroupsPerTile = kTileK / kGroupSize;
    Vec acc[kTokens];
    unroll<kTokens>([&](auto t) __attribute__((always_inline)) { acc[t] = Lanes::set(0.0f); });
    const int64_t num_groups = k / kGroupSize;
    for (int64_t group = 0; group < num_groups; ++group) {
      const Vec scale = Lanes::load(panel.scales + group * kPanelLanes);
      add_group<1, kTokens, Dot, kVectors>(
          [&](auto i, auto)
              __attribute__((always_inline)) { return Codes::load(panel.codes + (group * kVectors + i) * 64); },
          x.codes + group * 4 * kTokens * kVectors, x.biases + group * kTokens,
          x.scales + group / kGroupsPerTile * kTokens, acc, &scale);
      if constexpr (kHasMin) {
        const Vec min = Lanes::load(panel.mins + group * kPanelLanes);
        unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
          acc[t] = Lanes::fma(min, Lanes::set(x.sums[group * kTokens + t]), acc[t]);
        });
      }
    }
    unroll<kTokens>([&](auto t) __attribute__((always_inline)) { Lanes::store(out + t * out_stride, acc[t]); });
  }

  template <int... kSizes>
  using Sizes = std::integer_sequence<int, kSizes...>;

  template <FormatId kFormat, int... kFew, int... kTwo, int... kTiles>
  static constexpr Int8Kernels::Format make_format(Sizes<kFew...>, Sizes<kTwo...>, Sizes<kTiles...>) {
    using K = Kernel<kFormat>;
    Int8Kernels::Format format{};
    ((format.multiply_few[kFew] = K::template multiply_few<1, kFew>), ...);
    // Where codes must be unpacked, half as many tokens share that work, and nothing is won.
    if constexpr (K::kPanel.code_bits == 8) {
      ((format.multiply_two[kTwo] = K::template multiply_few<2, kTwo>), ...);
    }
    if constexpr (sizeof...(kTiles) > 0) {
      constexpr int kMax = Codes::code_class(K::Panel::kMaxCode);
      format.unpack = K::template unpack<>;
      ((format.multiply_tile[kTiles] = multiply_tile<kTiles, K::kPanel.group_size, K::kPanel.has_min(), kMax>), ...);
    }
    return format;
  }

  // The numbers of tokens that kernels of packed and of unpacked weights are made for, and those of two packed panels.
  template <typename Few, typename Tiles, typename Two = Sizes<>>
  static constexpr Int8Kernels make_kernels() {
    Int8Kernels kernels{};
    kernels.finish = LinearFinish<Lanes>::finish;
    kernels.quantize = quantize<>;
    const auto add = [&kernels]<FormatId... kFormats>(FormatList<kFormats...>) {
      ((kernels.formats[static_cast<int>(kFormats)] = make_format<kFormats>(Few{}, Two{}, Tiles{})), ...);
    };
    add(AllInt8Formats{});
    return kernels;
  }
};

}  // namespace
}  // namespace quire::cpu

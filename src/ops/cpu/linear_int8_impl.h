// The kernels of linear_kernels.h's "int8_groups" order as templates over Codes (codes_*.h). Included once by each
// linear_int8_*.cc, which is compiled for one instruction set and calls nothing that other files might share.
//
// multiply_few reads every weight byte once, unpacks it in registers and is bound by memory: for one token and 4 bits
// about 30 vector instructions for 512 weights. multiply_tile reads unpacked bytes from the cache and is bound by the
// multiplier: of 8 dot products, a conversion, a product and a fused multiply-add (two with minima) for every 512
// weights and token, the former 8 count as work. VNNI multiplies at that rate from packed panels too, so that unpacking
// wins it little: two panels of many inputs then share the loads that broadcast activations.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

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

  // Sixteen blocks of 32 at once, so that their sums and divisions are one vector each; blocks are numbered as tiles
  // have their scales, [k / 32][T].
  template <CodeOrder kOrder = CodeOrder::kFours>
  static void quantize(const float* x, int64_t x_stride, int num_tokens, int64_t k, int group_size, int offset,
                       const Int8Tile& tile) {
    const int64_t num_blocks = k / kTileK * num_tokens;
    int64_t block = 0;
    int token = 0;
    for (int64_t first = 0; first < num_blocks; first += 16) {
      const int count = static_cast<int>(num_blocks - first < 16 ? num_blocks - first : 16);
      const float* from[16];
      int8_t* to[16];
      for (int i = 0; i < count; ++i) {
        from[i] = x + token * x_stride + block * kTileK;
        to[i] = tile.codes + block * kTileK * num_tokens + token * (kOrder == CodeOrder::kRows ? kTileK : 4);
        if (++token == num_tokens) {
          token = 0;
          ++block;
        }
      }
      // What is missing of sixteen is the last one again.
      for (int i = count; i < 16; ++i) {
        from[i] = from[count - 1];
        to[i] = to[count - 1];
      }
      alignas(64) float sums[2][16];
      if (group_size == kTileK) {
        quantize_blocks<kOrder, 1>(from, to, 4 * num_tokens, sums, tile.scales + first, count);
        for (int i = 0; i < count; ++i) {
          tile.biases[first + i] = -offset * static_cast<int32_t>(sums[0][i]);
          tile.sums[first + i] = tile.scales[first + i] * sums[0][i];
        }
      } else {
        quantize_blocks<kOrder, 2>(from, to, 4 * num_tokens, sums, tile.scales + first, count);
        for (int i = 0; i < count; ++i) {
          const int64_t at = (first + i) / num_tokens * num_tokens * 2 + (first + i) % num_tokens;
          for (int half = 0; half < 2; ++half) {
            tile.biases[at + half * num_tokens] = -offset * static_cast<int32_t>(sums[half][i]);
            tile.sums[at + half * num_tokens] = tile.scales[first + i] * sums[half][i];
          }
        }
      }
    }
  }

  enum class Join { kSum, kLargest };
  // Lane i of out[n]: the lanes of row[n], as make_row(i, row) gives it, joined as Lanes::sum_of_each does.
  template <Join kJoin, int kCount, typename MakeRow>
  [[gnu::always_inline]] static void join_16(MakeRow make_row, Vec (&out)[kCount]) {
    const auto join = [](const Vec& a, const Vec& b) __attribute__((always_inline)) {
      return kJoin == Join::kSum ? Lanes::add(a, b) : Lanes::max(a, b);
    };
    if constexpr (requires { Codes::template join_16<kCount>(make_row, join, out); }) {
      Codes::template join_16<kCount>(make_row, join, out);
    } else {
      Vec rows[kCount][16];
      for (int i = 0; i < 16; ++i) {
        Vec row[kCount];
        make_row(i, row);
        for (int n = 0; n < kCount; ++n) rows[n][i] = row[n];
      }
      for (int n = 0; n < kCount; ++n) {
        out[n] = kJoin == Join::kSum ? Lanes::sum_of_each(rows[n]) : Lanes::largest_of_each(rows[n]);
      }
    }
  }

  // `sums` are those of the codes of the first and the second 16 of each block, or, with one group a block, sums[0] of
  // all; fours of codes are `fours_stride` apart.
  template <CodeOrder kOrder, int kGroups>
  static void quantize_blocks(const float* const (&from)[16], int8_t* const (&to)[16], int fours_stride,
                              float (&sums)[2][16], float* scales, int count) {
    using OneVec = Vec[1];
    using Parts = Vec[2 + kGroups];
    OneVec largest;
    join_16<Join::kLargest, 1>(
        [&](int i, OneVec& row) __attribute__((always_inline)) {
          row[0] = Lanes::max(Lanes::abs(Lanes::load(from[i])), Lanes::abs(Lanes::load(from[i] + 16)));
        },
        largest);
    alignas(64) float factors[16];
    Lanes::store(factors, Lanes::div(Lanes::set(127.0f), largest[0]));
    // Adding this rounds to an integer, to nearest even, whose lowest byte is that of the float.
    const Vec rounder = Lanes::set(12582912.0f);
    Parts parts;
    join_16<Join::kSum, 2 + kGroups>(
        [&](int i, Parts& row) __attribute__((always_inline)) {
          const Vec factor = Lanes::set(factors[i]);
          const Vec first = Lanes::load(from[i]);
          const Vec second = Lanes::load(from[i] + 16);
          const Vec first_rounded = Lanes::add(Lanes::mul(first, factor), rounder);
          const Vec second_rounded = Lanes::add(Lanes::mul(second, factor), rounder);
          const Vec first_code = Lanes::sub(first_rounded, rounder);
          const Vec second_code = Lanes::sub(second_rounded, rounder);
          row[0] = Lanes::fma(second, second_code, Lanes::mul(first, first_code));
          row[1] = Lanes::fma(second_code, second_code, Lanes::mul(first_code, first_code));
          row[2] = kGroups == 1 ? Lanes::add(first_code, second_code) : first_code;
          if constexpr (kGroups == 2) row[3] = second_code;
          if constexpr (kOrder == CodeOrder::kRows) {
            Codes::store_low_bytes(to[i], first_rounded);
            Codes::store_low_bytes(to[i] + 16, second_rounded);
          } else {
            alignas(32) int8_t codes[kTileK];
            Codes::store_low_bytes(codes, first_rounded);
            Codes::store_low_bytes(codes + 16, second_rounded);
            for (int j = 0; j < kTileK / 4; ++j) std::memcpy(to[i] + j * fours_stride, codes + 4 * j, 4);
          }
        },
        parts);
    for (int g = 0; g < kGroups; ++g) Lanes::store(sums[g], parts[2 + g]);
    alignas(64) float steps[16];
    alignas(64) float best[16];
    Lanes::store(steps, Lanes::div(largest[0], Lanes::set(127.0f)));
    Lanes::store(best, Lanes::div(parts[0], parts[1]));
    int num_plain = 0;
    for (int i = 0; i < 16; ++i) num_plain += steps[i] >= kLeastStep && best[i] <= std::numeric_limits<float>::max();
    for (int i = 0; i < count; ++i) scales[i] = best[i];
    if (num_plain == 16) return;
    for (int i = 0; i < count; ++i) {
      if (!mend_scale(from[i], scales[i])) continue;
      for (int j = 0; j < kTileK / 4; ++j) {
        std::memset(to[i] + j * (kOrder == CodeOrder::kRows ? 4 : fours_stride), 0, 4);
      }
      for (int g = 0; g < kGroups; ++g) sums[g][i] = 0;
    }
  }

  static constexpr float kLeastStep = 0x1p-126f;
  // The scale of a block that is not made like others; true where its codes are zeros.
  static bool mend_scale(const float* x, float& scale) {
    uint32_t bits = 0;
    for (int i = 0; i < kTileK; ++i) {
      const uint32_t magnitude = __builtin_bit_cast(uint32_t, x[i]) & 0x7fffffffu;
      if (magnitude > bits) bits = magnitude;
    }
    const float step = __builtin_bit_cast(float, bits) / 127.0f;
    if (bits < 0x7f800000u && step >= kLeastStep) {
      if (scale > std::numeric_limits<float>::max()) scale = step;
      return false;
    }
    // Infinity and NaN reach the output through the scale; what is too small to be divided by counts as zero.
    scale = bits < 0x7f800000u ? 0 : step;
    return true;
  }

  template <FormatId kFormat>
  struct Kernel {
    using Panel = PackedPanel<Codes, kFormat>;
    using Dot = typename Codes::template Dot<Panel::kMaxCode>;
    static constexpr PanelFormat kPanel = Panel::kPanel;
    static constexpr int kGroupsPerTile = Panel::kGroupsPerTile;
    static constexpr int kVectorsPerGroup = kPanel.group_size / 4;
    static constexpr bool kHasBytes = kPanel.code_bits == 8;

    template <int kTokens>
    static void multiply_few(const PackedPanels& panel, const Int8Tile& x, float* out, int64_t out_stride) {
      const int64_t num_tiles = panel.k / kTileK;
      const uint8_t* tile = panel.codes;
      Vec acc[kTokens];
      unroll<kTokens>([&](auto t) __attribute__((always_inline)) { acc[t] = Lanes::set(0.0f); });
      const uint8_t* ahead = panel.ahead;
      for (int64_t tile_index = 0; tile_index < num_tiles; ++tile_index) {
        for (const uint8_t* end = ahead + panel.ahead_step; ahead != end; ahead += 64) Lanes::prefetch(ahead);
        const uint8_t* block = Panel::scale_block(panel.scales, tile_index);
        const int8_t* activations = x.codes + tile_index * kTileK * kTokens;
        const float* d = x.scales + tile_index * kTokens;
        unroll<kGroupsPerTile>([&](auto g) __attribute__((always_inline)) {
          constexpr int kFirstVector = decltype(g)::value * kVectorsPerGroup;
          const int64_t group = tile_index * kGroupsPerTile + decltype(g)::value;
          Vec scale;
          Vec min;
          Panel::scale_and_min(block, Panel::first_group(tile_index) + decltype(g)::value, scale, min);
          add_group<1, kTokens, Dot, kVectorsPerGroup>(
              [&](auto i, auto) __attribute__((always_inline)) {
                return Panel::template codes<kFirstVector + decltype(i)::value>(tile);
              },
              activations + 4 * kTokens * kFirstVector, x.biases + group * kTokens, d, acc, &scale);
          if constexpr (kPanel.has_min()) add_mins<1, kTokens>(x.sums + group * kTokens, acc, &min);
        });
        tile += kPanel.tile_bytes();
      }
      unroll<kTokens>([&](auto t) __attribute__((always_inline)) { Lanes::store(out + t * out_stride, acc[t]); });
    }

    // Codes as they are, or less the offset.
    template <bool kIsSigned = false>
    static void unpack(const PackedPanels& panel, uint8_t* codes, float* scales, float* mins) {
      const int64_t num_tiles = panel.k / kTileK;
      const uint8_t* tile = panel.codes;
      for (int64_t t = 0; t < num_tiles; ++t) {
        if constexpr (kIsSigned || !kHasBytes) {
          unroll<8>([&](auto i) __attribute__((always_inline)) {
            constexpr int kIndex = decltype(i)::value;
            Bytes vector = Panel::template codes<kIndex>(tile);
            if constexpr (kIsSigned) vector = Codes::template subtract<kPanel.offset>(vector);
            Codes::store(codes + (t * 8 + kIndex) * 64, vector);
          });
        }
        const uint8_t* block = Panel::scale_block(panel.scales, t);
        for (int g = 0; g < kGroupsPerTile; ++g) {
          Vec scale;
          Vec min;
          Panel::scale_and_min(block, Panel::first_group(t) + g, scale, min);
          Lanes::store(scales + (t * kGroupsPerTile + g) * kPanelLanes, scale);
          if constexpr (kPanel.has_min()) Lanes::store(mins + (t * kGroupsPerTile + g) * kPanelLanes, min);
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

  template <int kPanels, int kTokens>
  [[gnu::always_inline]] static void add_mins(const float* sums, Vec* acc, const Vec* min) {
    unroll<kPanels * kTokens>([&](auto s) __attribute__((always_inline)) {
      acc[s] = Lanes::fma(min[s / kTokens], Lanes::set(sums[s % kTokens]), acc[s]);
    });
  }

  // Codes unpacked: what is left of a format is its group size, whether it has minima, and how large codes may be.
  template <int kPanels, int kTokens, int kGroupSize, bool kHasMin, int kMaxCode>
  static void multiply_tile(const UnpackedPanels& panels, int64_t k, const Int8Tile& x, float* out,
                            int64_t out_stride) {
    using Dot = typename Codes::template Dot<kMaxCode>;
    constexpr int kVectors = kGroupSize / 4;
    constexpr int kGroupsPerTile = kTileK / kGroupSize;
    constexpr int kSums = kPanels * kTokens;
    Vec acc[kSums];
    unroll<kSums>([&](auto s) __attribute__((always_inline)) { acc[s] = Lanes::set(0.0f); });
    const int64_t num_groups = k / kGroupSize;
    for (int64_t group = 0; group < num_groups; ++group) {
      const uint8_t* codes = panels.codes + group * kVectors * 64;
      const auto load = [&](const float* first, Vec* each) __attribute__((always_inline)) {
        unroll<kPanels>([&](auto p) __attribute__((always_inline)) {
          each[p] = Lanes::load(first + p * panels.scales_stride + group * kPanelLanes);
        });
      };
      Vec scale[kPanels];
      load(panels.scales, scale);
      add_group<kPanels, kTokens, Dot, kVectors>(
          [&](auto i, auto p)
              __attribute__((always_inline)) { return Codes::load(codes + p * panels.codes_stride + i * 64); },
          x.codes + group * 4 * kTokens * kVectors, x.biases + group * kTokens,
          x.scales + group / kGroupsPerTile * kTokens, acc, scale);
      if constexpr (kHasMin) {
        Vec min[kPanels];
        load(panels.mins, min);
        add_mins<kPanels, kTokens>(x.sums + group * kTokens, acc, min);
      }
    }
    unroll<kSums>([&](auto s) __attribute__((always_inline)) {
      Lanes::store(out + s % kTokens * out_stride + s / kTokens * kPanelLanes, acc[s]);
    });
  }

  template <int... kSizes>
  using Sizes = std::integer_sequence<int, kSizes...>;

  template <FormatId kFormat, int... kFew, int... kTiles, int... kTwo>
  static constexpr Int8Kernels::Format make_format(Sizes<kFew...>, Sizes<kTiles...>, Sizes<kTwo...>) {
    using K = Kernel<kFormat>;
    constexpr int kMax = Codes::code_class(K::Panel::kMaxCode);
    constexpr int kGroupSize = K::kPanel.group_size;
    constexpr bool kHasMin = K::kPanel.has_min();
    Int8Kernels::Format format{};
    if constexpr (sizeof...(kTwo) > 0) {
      // Both multiply at the same rate from the cache; two panels then load half as many activations.
      format.min_unpacked_tokens = 200;
      format.min_unpacked_k = 1024;
    } else {
      // Half bytes are unpacked so quickly that multiplying them packed is best for any number of tokens.
      format.min_unpacked_tokens = K::kPanel.code_bits == 4 ? std::numeric_limits<int64_t>::max() : 33;
    }
    ((format.multiply_few[kFew] = K::template multiply_few<kFew>), ...);
    if constexpr (sizeof...(kTiles) > 0) {
      format.unpack = K::template unpack<>;
      format.reads_packed_codes = K::kHasBytes;
      ((format.multiply_tile[0][kTiles] = multiply_tile<1, kTiles, kGroupSize, kHasMin, kMax>), ...);
      ((format.multiply_tile[1][kTwo] = multiply_tile<2, kTwo, kGroupSize, kHasMin, kMax>), ...);
    }
    return format;
  }

  // The numbers of tokens that kernels of packed and of unpacked weights are made for, and those of two unpacked
  // panels.
  template <typename Few, typename Tiles, typename Two = Sizes<>>
  static constexpr Int8Kernels make_kernels() {
    Int8Kernels kernels{};
    kernels.finish = LinearFinish<Lanes>::finish;
    kernels.quantize = quantize<>;
    const auto add = [&kernels]<FormatId... kFormats>(FormatList<kFormats...>) {
      ((kernels.formats[static_cast<int>(kFormats)] = make_format<kFormats>(Few{}, Tiles{}, Two{})), ...);
    };
    add(AllInt8Formats{});
    return kernels;
  }
};

}  // namespace
}  // namespace quire::cpu

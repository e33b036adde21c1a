// Reading packed panels with vector types: the codes of a tile and the scales of a group, one template for all formats.
// quant/packing.h describes the bytes. Included by the kernel templates only.
#pragma once

#include <cstdint>
#include <utility>

#include "quant/dequantize.h"
#include "quant/packing.h"

namespace quire::cpu {
namespace {

// Calls f(std::integral_constant<int, i>) for i in [0, kCount), unrolled.
template <int kCount, typename F>
[[gnu::always_inline]] inline void unroll(F&& f) {
  [&]<int... kIndices>(std::integer_sequence<int, kIndices...>) {
    (f(std::integral_constant<int, kIndices>{}), ...);
  }
  (std::make_integer_sequence<int, kCount>{});
}

struct Iq4Codes {
  uint8_t code[16];
};
constexpr Iq4Codes make_iq4_codes() {
  Iq4Codes codes{};
  for (int i = 0; i < 16; ++i) codes.code[i] = static_cast<uint8_t>(kIq4Values[i] + 128);
  return codes;
}
constexpr Iq4Codes kIq4Codes = make_iq4_codes();

template <typename Codes, FormatId kFormat>
struct PackedPanel {
  using Vec = typename Codes::Vec;
  using Bytes = typename Codes::Bytes;
  static constexpr PanelFormat kPanel = panel_format(kFormat);
  static constexpr int kGroupsPerTile = kTileK / kPanel.group_size;
  static constexpr int kTilesPerScaleBlock = kPanel.scale_block_size / kTileK;
  static constexpr int kMaxCode = kPanel.is_lookup ? 255 : (1 << kPanel.code_bits) - 1;

  // The codes of 4 k: vector kIndex of 8 of the tile.
  template <int kIndex>
  [[gnu::always_inline]] static Bytes codes(const uint8_t* tile) {
    if constexpr (kPanel.code_bits == 8) {
      return Codes::load(tile + 64 * kIndex);
    } else {
      constexpr int kLowBits = kPanel.code_bits >= 4 ? 4 : 2;
      constexpr int kPerByte = 8 / kLowBits;
      constexpr int kMask = (1 << kLowBits) - 1;
      const Bytes low = Codes::template shift_and_mask<kIndex % kPerByte * kLowBits, kMask>(
          Codes::load(tile + 64 * (kIndex / kPerByte)));
      if constexpr (kPanel.is_lookup) {
        return Codes::lookup(kIq4Codes.code, low);
      } else if constexpr (kPanel.code_bits == kLowBits) {
        return low;
      } else {
        // The remaining bits, brought above the low ones.
        constexpr int kHighBits = kPanel.code_bits - kLowBits;
        constexpr int kHighPerByte = 8 / kHighBits;
        constexpr int kHighMask = ((1 << kHighBits) - 1) << kLowBits;
        constexpr int kShift = kIndex % kHighPerByte * kHighBits - kLowBits;
        const uint8_t* plane = tile + 64 * kLowBits;
        return Codes::bit_or(
            low, Codes::template shift_and_mask<kShift, kHighMask>(Codes::load(plane + 64 * (kIndex / kHighPerByte))));
      }
    }
  }

  static const uint8_t* scale_block(const uint8_t* scales, int64_t tile_index) {
    return scales + tile_index / kTilesPerScaleBlock * kPanel.scale_block_bytes;
  }

  // The scale and the min of 16 outputs for group `group` of a scale block.
  [[gnu::always_inline]] static void scale_and_min(const uint8_t* block, int group, Vec& scale, Vec& min) {
    using Lanes = typename Codes::Lanes;
    const auto half = [block](int row) { return Lanes::load_f16(reinterpret_cast<const uint16_t*>(block) + 16 * row); };
    constexpr int kNumGroups = kPanel.scale_block_size / kPanel.group_size;
    const auto negate = [](const Vec& v) { return Lanes::sub(Lanes::set(-0.0f), v); };
    if constexpr (kPanel.scale_kind == ScaleKind::kHalf) {
      scale = half(0);
    } else if constexpr (kPanel.scale_kind == ScaleKind::kHalfAndMin) {
      scale = half(0);
      min = half(1);
    } else if constexpr (kPanel.scale_kind == ScaleKind::kSuperBytes) {
      scale = Lanes::mul(half(0), Codes::load_u8(block + 64 + 16 * group));
      min = negate(Lanes::mul(half(1), Codes::load_u8(block + 64 + 16 * (kNumGroups + group))));
    } else if constexpr (kPanel.scale_kind == ScaleKind::kSuperNibbles) {
      scale = Lanes::mul(half(0), Codes::load_low_nibbles(block + 64 + 16 * group));
      min = negate(Lanes::mul(half(1), Codes::load_high_nibbles(block + 64 + 16 * group)));
    } else {
      scale = Lanes::mul(half(0), Codes::load_i8(block + 32 + 16 * group));
    }
  }

  // The group of a scale block with which a tile begins.
  static int first_group(int64_t tile_index) {
    return static_cast<int>(tile_index % kTilesPerScaleBlock) * kGroupsPerTile;
  }
};

}  // namespace
}  // namespace quire::cpu

#include "quant/packing.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "quant/dequantize.h"
#include "tensor/dtype.h"

namespace quire {

namespace {

constexpr int kGroupsPerTile = kTileK / 4;

// The scales of one row for one scale block, in the file's own numbers.
struct RowScales {
  uint16_t d = 0;
  uint16_t min = 0;         // m or dmin
  uint8_t scales[16] = {};  // s, or the bytes of kSuperNibbles
  uint8_t mins[16] = {};
};

uint16_t load_u16(const uint8_t* bytes) {
  return static_cast<uint16_t>(bytes[0] | bytes[1] << 8);
}

uint32_t load_u32(const uint8_t* bytes) {
  return load_u16(bytes) | static_cast<uint32_t>(load_u16(bytes + 2)) << 16;
}

// ---- Reading one block of a file: codes[values_per_block] and the scales --------------------------------------------

// 16 bytes: value i is a low nibble for i < 16, else a high one. `high` holds a fifth bit for each.
void read_nibbles(const uint8_t* packed, uint32_t high, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = static_cast<uint8_t>((packed[i] & 15) | ((high >> i & 1) << 4));
    codes[i + 16] = static_cast<uint8_t>((packed[i] >> 4) | ((high >> (i + 16) & 1) << 4));
  }
}

// The 12 bytes of q4_k and q5_k: eight 6-bit scales and eight 6-bit minima.
void read_6_bit_scales(const uint8_t* packed, RowScales& scales) {
  for (int i = 0; i < 4; ++i) {
    scales.scales[i] = packed[i] & 63;
    scales.mins[i] = packed[i + 4] & 63;
    scales.scales[i + 4] = static_cast<uint8_t>((packed[i + 8] & 15) | (packed[i] >> 6) << 4);
    scales.mins[i + 4] = static_cast<uint8_t>((packed[i + 8] >> 4) | (packed[i + 4] >> 6) << 4);
  }
}

void read_32_nibble_pairs(const uint8_t* packed, uint8_t* codes) {
  for (int i = 0; i < 256; ++i) {
    const uint8_t byte = packed[i / 64 * 32 + i % 32];
    codes[i] = static_cast<uint8_t>(i / 32 % 2 == 0 ? byte & 15 : byte >> 4);
  }
}

// Inlined where the format is known, as are the functions below that write what it read: of the switch and of the
// planes only those of the format are left.
[[gnu::always_inline]] inline void read_block(FormatId format, const uint8_t* block, uint8_t* codes,
                                              RowScales& scales) {
  switch (format) {
    case FormatId::kQ4_0:
    case FormatId::kIQ4_NL:
      scales.d = load_u16(block);
      read_nibbles(block + 2, 0, codes);
      return;
    case FormatId::kQ4_1:
      scales.d = load_u16(block);
      scales.min = load_u16(block + 2);
      read_nibbles(block + 4, 0, codes);
      return;
    case FormatId::kQ5_0:
      scales.d = load_u16(block);
      read_nibbles(block + 6, load_u32(block + 2), codes);
      return;
    case FormatId::kQ5_1:
      scales.d = load_u16(block);
      scales.min = load_u16(block + 2);
      read_nibbles(block + 8, load_u32(block + 4), codes);
      return;
    case FormatId::kQ8_0:
      scales.d = load_u16(block);
      for (int i = 0; i < 32; ++i) codes[i] = block[2 + i] ^ 0x80;  // signed to unsigned with offset 128
      return;
    case FormatId::kQ2_K:
      std::memcpy(scales.scales, block, 16);
      for (int i = 0; i < 256; ++i) {
        codes[i] = static_cast<uint8_t>(block[16 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3);
      }
      scales.d = load_u16(block + 80);
      scales.min = load_u16(block + 82);
      return;
    case FormatId::kQ3_K:
      for (int i = 0; i < 256; ++i) {
        const int low = block[32 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
        const int high = block[i % 32] >> (i / 32) & 1;
        codes[i] = static_cast<uint8_t>(low | high << 2);
      }
      for (int i = 0; i < 16; ++i) {
        const int low = i < 8 ? block[96 + i] & 15 : block[88 + i] >> 4;
        const int high = block[104 + i % 4] >> (i / 4 * 2) & 3;
        scales.scales[i] = static_cast<uint8_t>((low | high << 4) - 32);
      }
      scales.d = load_u16(block + 108);
      return;
    case FormatId::kQ4_K:
      scales.d = load_u16(block);
      scales.min = load_u16(block + 2);
      read_6_bit_scales(block + 4, scales);
      read_32_nibble_pairs(block + 16, codes);
      return;
    case FormatId::kQ5_K:
      scales.d = load_u16(block);
      scales.min = load_u16(block + 2);
      read_6_bit_scales(block + 4, scales);
      read_32_nibble_pairs(block + 48, codes);
      for (int i = 0; i < 256; ++i) {
        codes[i] = static_cast<uint8_t>(codes[i] | (block[16 + i % 32] >> (i / 32) & 1) << 4);
      }
      return;
    case FormatId::kQ6_K:
      for (int i = 0; i < 256; ++i) {
        const uint8_t low = block[i / 128 * 64 + i % 64];
        const int high = block[128 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
        codes[i] = static_cast<uint8_t>((i / 64 % 2 == 0 ? low & 15 : low >> 4) | high << 4);
      }
      std::memcpy(scales.scales, block + 192, 16);
      scales.d = load_u16(block + 208);
      return;
    case FormatId::kIQ4_XS: {
      scales.d = load_u16(block);
      const int high = load_u16(block + 2);
      for (int i = 0; i < 8; ++i) {
        const int low = block[4 + i / 2] >> (i % 2 * 4) & 15;
        scales.scales[i] = static_cast<uint8_t>((low | (high >> (2 * i) & 3) << 4) - 32);
        read_nibbles(block + 8 + 16 * i, 0, codes + 32 * i);
      }
      return;
    }
    case FormatId::kInt4G128:
      scales.d = load_u16(block);
      scales.scales[0] = static_cast<uint8_t>(std::min<int>(block[2], kMaxInt4Zero));
      for (int i = 0; i < 64; ++i) {
        codes[i] = block[3 + i] & 15;
        codes[i + 64] = block[3 + i] >> 4;
      }
      return;
    case FormatId::kF32:
    case FormatId::kF16:
    case FormatId::kBF16:
      break;
  }
  CHECK(!"not an integer format");
}

// ---- Writing panels -------------------------------------------------------------------------------------------------

// Codes of one lane's tile into its planes; `codes` are 8 groups of 4. `tile` points at the lane's four bytes of the
// tile's first 64-byte vector.
[[gnu::always_inline]] inline void write_lane_codes(int code_bits, const uint8_t* codes, uint8_t* tile) {
  uint32_t groups[kGroupsPerTile];
  std::memcpy(groups, codes, sizeof(groups));
  const auto store = [tile](int vector, uint32_t word) { std::memcpy(tile + 64 * vector, &word, sizeof(word)); };
  int next_vector = 0;
  if (code_bits == 8) {
    for (const uint32_t group : groups) store(next_vector++, group);
    return;
  }
  int bits_done = 0;
  if (code_bits >= 4) {
    constexpr uint32_t kMask = 0x0f0f0f0f;
    for (int g = 0; g < 8; g += 2) store(next_vector++, (groups[g] & kMask) | (groups[g + 1] & kMask) << 4);
    bits_done = 4;
  }
  if (code_bits - bits_done >= 2) {
    constexpr uint32_t kMask = 0x03030303;
    for (int g = 0; g < 8; g += 4) {
      uint32_t word = 0;
      for (int i = 0; i < 4; ++i) word |= (groups[g + i] >> bits_done & kMask) << (2 * i);
      store(next_vector++, word);
    }
    bits_done += 2;
  }
  if (code_bits - bits_done == 1) {
    uint32_t word = 0;
    for (int g = 0; g < 8; ++g) word |= (groups[g] >> bits_done & 0x01010101u) << g;
    store(next_vector, word);
  }
}

[[gnu::always_inline]] inline void write_lane_scales(const PanelFormat& panel, const RowScales& scales, int lane,
                                                     uint8_t* block) {
  const auto store_half = [&](int row, uint16_t half) {
    std::memcpy(block + 32 * row + 2 * lane, &half, sizeof(half));
  };
  const int num_groups = panel.scale_block_size / panel.group_size;
  const auto store_bytes = [&](uint8_t* base, const uint8_t* bytes) {
    for (int g = 0; g < num_groups; ++g) base[16 * g + lane] = bytes[g];
  };
  store_half(0, scales.d);
  switch (panel.scale_kind) {
    case ScaleKind::kHalf:
    case ScaleKind::kNone:
      return;
    case ScaleKind::kHalfAndMin:
      store_half(1, scales.min);
      return;
    case ScaleKind::kSuperBytes:
      store_half(1, scales.min);
      store_bytes(block + 64, scales.scales);
      store_bytes(block + 64 + 16 * num_groups, scales.mins);
      return;
    case ScaleKind::kSuperNibbles:
      store_half(1, scales.min);
      store_bytes(block + 64, scales.scales);
      return;
    case ScaleKind::kSuperSigned:
    case ScaleKind::kHalfAndZero:
      store_bytes(block + 32, scales.scales);
      return;
  }
}

// What packing a panel needs to know of its weight.
struct Source {
  const uint8_t* rows;  // of the expert
  int64_t row_bytes;
  int64_t n;
  int64_t k;
};

template <FormatId kFormat, typename Element>
void pack_float_panel(const Source& source, int64_t first_row, uint8_t* out, uint8_t*) {
  const int num_lanes = static_cast<int>(std::min<int64_t>(kPanelLanes, source.n - first_row));
  constexpr int64_t kElementBytes = sizeof(Element);
  constexpr int64_t kBlock = 64;  // what is written stays in the first-level cache until all lanes are there
  for (int64_t first_k = 0; first_k < source.k; first_k += kBlock) {
    const int64_t end_k = std::min(source.k, first_k + kBlock);
    for (int lane = 0; lane < num_lanes; ++lane) {
      const uint8_t* row = source.rows + (first_row + lane) * source.row_bytes;
      for (int64_t k = first_k; k < end_k; ++k) {
        std::memcpy(out + float_element(kFormat, k, lane) * kElementBytes, row + k * kElementBytes, sizeof(Element));
      }
    }
  }
  if (kFormat == FormatId::kBF16 && source.k % 2 != 0) {
    for (int lane = 0; lane < num_lanes; ++lane) {
      std::memset(out + float_element(kFormat, source.k, lane) * kElementBytes, 0, sizeof(Element));
    }
  }
}

template <FormatId kFormat>
void pack_integer_panel(const Source& source, int64_t first_row, uint8_t* codes_out, uint8_t* scales_out) {
  constexpr PanelFormat panel = panel_format(kFormat);
  constexpr QuantFormat quant = quant_format(kFormat);
  constexpr int tiles_per_block = quant.values_per_block / kTileK;
  const int num_lanes = static_cast<int>(std::min<int64_t>(kPanelLanes, source.n - first_row));
  const int64_t num_blocks = source.k / quant.values_per_block;
  for (int64_t b = 0; b < num_blocks; ++b) {
    for (int lane = 0; lane < num_lanes; ++lane) {
      uint8_t codes[256];
      RowScales scales;
      read_block(kFormat, source.rows + (first_row + lane) * source.row_bytes + b * quant.bytes_per_block, codes,
                 scales);
      for (int t = 0; t < tiles_per_block; ++t) {
        write_lane_codes(panel.code_bits, codes + kTileK * t,
                         codes_out + (b * tiles_per_block + t) * panel.tile_bytes() + 4 * lane);
      }
      write_lane_scales(panel, scales, lane, scales_out + b * panel.scale_block_bytes);
    }
  }
}

using PackPanel = void (*)(const Source& source, int64_t first_row, uint8_t* codes_out, uint8_t* scales_out);

PackPanel pack_panel_of(FormatId format) {
  switch (format) {
    case FormatId::kF32:
      return pack_float_panel<FormatId::kF32, uint32_t>;
    case FormatId::kF16:
      return pack_float_panel<FormatId::kF16, uint16_t>;
    case FormatId::kBF16:
      return pack_float_panel<FormatId::kBF16, uint16_t>;
    case FormatId::kQ4_0:
      return pack_integer_panel<FormatId::kQ4_0>;
    case FormatId::kQ4_1:
      return pack_integer_panel<FormatId::kQ4_1>;
    case FormatId::kQ5_0:
      return pack_integer_panel<FormatId::kQ5_0>;
    case FormatId::kQ5_1:
      return pack_integer_panel<FormatId::kQ5_1>;
    case FormatId::kQ8_0:
      return pack_integer_panel<FormatId::kQ8_0>;
    case FormatId::kQ2_K:
      return pack_integer_panel<FormatId::kQ2_K>;
    case FormatId::kQ3_K:
      return pack_integer_panel<FormatId::kQ3_K>;
    case FormatId::kQ4_K:
      return pack_integer_panel<FormatId::kQ4_K>;
    case FormatId::kQ5_K:
      return pack_integer_panel<FormatId::kQ5_K>;
    case FormatId::kQ6_K:
      return pack_integer_panel<FormatId::kQ6_K>;
    case FormatId::kIQ4_NL:
      return pack_integer_panel<FormatId::kIQ4_NL>;
    case FormatId::kIQ4_XS:
      return pack_integer_panel<FormatId::kIQ4_XS>;
    case FormatId::kInt4G128:
      return pack_integer_panel<FormatId::kInt4G128>;
  }
  CHECK(!"not a format");
  return nullptr;
}

// ---- Reading panels back --------------------------------------------------------------------------------------------

int read_packed_code(const PanelFormat& panel, const uint8_t* tile, int lane, int k) {
  const int group = k / 4;
  const int byte = 4 * lane + k % 4;
  if (panel.code_bits == 8) return tile[64 * group + byte];
  int code = 0;
  int bits_done = 0;
  if (panel.code_bits >= 4) {
    code = tile[64 * (group / 2) + byte] >> (group % 2 * 4) & 15;
    tile += 256;
    bits_done = 4;
  }
  if (panel.code_bits - bits_done >= 2) {
    code |= (tile[64 * (group / 4) + byte] >> (group % 4 * 2) & 3) << bits_done;
    tile += 128;
    bits_done += 2;
  }
  if (panel.code_bits - bits_done == 1) code |= (tile[byte] >> group & 1) << bits_done;
  return panel.is_lookup ? kIq4Values[code] + 128 : code;
}

struct ScaleAndMin {
  float scale;
  float min;
  int zero = 0;
};

ScaleAndMin read_packed_scale(const PanelFormat& panel, const uint8_t* block, int lane, int group) {
  const auto half = [&](int row) { return f16_to_f32(load_u16(block + 32 * row + 2 * lane)); };
  const int num_groups = panel.scale_block_size / panel.group_size;
  switch (panel.scale_kind) {
    case ScaleKind::kHalf:
      return {half(0), 0};
    case ScaleKind::kHalfAndMin:
      return {half(0), half(1)};
    case ScaleKind::kSuperBytes: {
      const float scale = static_cast<float>(block[64 + 16 * group + lane]);
      const float min = static_cast<float>(block[64 + 16 * (num_groups + group) + lane]);
      return {half(0) * scale, -(half(1) * min)};
    }
    case ScaleKind::kSuperNibbles: {
      const int packed = block[64 + 16 * group + lane];
      return {half(0) * static_cast<float>(packed & 15), -(half(1) * static_cast<float>(packed >> 4))};
    }
    case ScaleKind::kSuperSigned:
      return {half(0) * static_cast<float>(static_cast<int8_t>(block[32 + 16 * group + lane])), 0};
    case ScaleKind::kHalfAndZero:
      return {half(0), 0, block[32 + lane]};
    case ScaleKind::kNone:
      break;
  }
  return {1, 0};
}

}  // namespace

PanelBytes panel_bytes(FormatId format, int64_t k) {
  const QuantFormat& quant = quant_format(format);
  CHECK(k % quant.values_per_block == 0);
  const int64_t stored_k = format == FormatId::kBF16 ? (k + 1) / 2 * 2 : k;
  if (quant.is_float) return {stored_k * kPanelLanes * quant.bytes_per_block, 0};
  const PanelFormat panel = panel_format(format);
  return {k / kTileK * panel.tile_bytes(), k / panel.scale_block_size * panel.scale_block_bytes};
}

PanelBytes packed_bytes(const Weight& weight) {
  const PanelBytes panel = panel_bytes(weight.format, weight.k);
  const int64_t count = num_panels(weight.n) * weight.num_experts;
  return {count * panel.codes, count * panel.scales};
}

void pack_cpu_panels(ThreadPool& pool, const Weight& weight, std::span<std::byte> codes, std::span<std::byte> scales) {
  CHECK(weight.layout == Layout::kRowMajor);
  const QuantFormat& quant = weight.quant();
  const int64_t row_bytes = quant.row_bytes(weight.k);
  const PanelBytes panel = panel_bytes(weight.format, weight.k);
  const PanelBytes total = packed_bytes(weight);
  CHECK(weight.parts[0].size() >= weight.num_experts * weight.n * row_bytes);
  CHECK(codes.size() == total.codes);
  CHECK(scales.size() == total.scales);
  const PackPanel pack_panel = pack_panel_of(weight.format);
  const int64_t panels_per_expert = num_panels(weight.n);
  const uint8_t* rows = reinterpret_cast<const uint8_t*>(weight.parts[0].data());
  uint8_t* codes_out = reinterpret_cast<uint8_t*>(codes.data());
  uint8_t* scales_out = reinterpret_cast<uint8_t*>(scales.data());
  pool.parallel_for(panels_per_expert * weight.num_experts, 4, [&](const WorkRange& range) {
    for (int64_t p = range.begin; p < range.end; ++p) {
      const int64_t expert = p / panels_per_expert;
      const int64_t first_row = p % panels_per_expert * kPanelLanes;
      const Source source{rows + expert * weight.n * row_bytes, row_bytes, weight.n, weight.k};
      uint8_t* panel_codes = codes_out + p * panel.codes;
      uint8_t* panel_scales = scales_out + p * panel.scales;
      if (first_row + kPanelLanes > weight.n) {  // the lanes that are no outputs
        std::memset(panel_codes, 0, static_cast<size_t>(panel.codes));
        if (panel.scales > 0) std::memset(panel_scales, 0, static_cast<size_t>(panel.scales));
      }
      pack_panel(source, first_row, panel_codes, panel_scales);
    }
  });
}

void dequantize_packed_row(const Weight& packed, int64_t row, float* out) {
  CHECK(packed.layout == Layout::kCpuPanels);
  CHECK(0 <= row && row < packed.n);
  const PanelBytes bytes = panel_bytes(packed.format, packed.k);
  const int64_t panel_index = row / kPanelLanes;
  const int lane = static_cast<int>(row % kPanelLanes);
  const uint8_t* codes = reinterpret_cast<const uint8_t*>(packed.parts[0].data()) + panel_index * bytes.codes;
  if (packed.quant().is_float) {
    const int64_t element_bytes = packed.quant().bytes_per_block;
    for (int64_t k = 0; k < packed.k; ++k) {
      const uint8_t* element = codes + float_element(packed.format, k, lane) * element_bytes;
      dequantize_row(packed.format, reinterpret_cast<const std::byte*>(element), out + k, 1);
    }
    return;
  }
  const PanelFormat panel = panel_format(packed.format);
  const uint8_t* scales = reinterpret_cast<const uint8_t*>(packed.parts[1].data()) + panel_index * bytes.scales;
  for (int64_t first_k = 0; first_k < packed.k; first_k += panel.group_size) {
    const uint8_t* block = scales + first_k / panel.scale_block_size * panel.scale_block_bytes;
    const int group = static_cast<int>(first_k % panel.scale_block_size) / panel.group_size;
    const ScaleAndMin scale = read_packed_scale(panel, block, lane, group);
    for (int i = 0; i < panel.group_size; ++i) {
      const int64_t at = first_k + i;
      const uint8_t* tile = codes + at / kTileK * panel.tile_bytes();
      const int code = read_packed_code(panel, tile, lane, static_cast<int>(at % kTileK));
      const float value = scale.scale * static_cast<float>(code - panel.offset - scale.zero);
      out[first_k + i] = panel.has_min() ? value + scale.min : value;
    }
  }
}

}  // namespace quire

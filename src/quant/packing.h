// Layout::kCpuPanels: how weights lie in memory for the CPU's kernels, and the code that lays them so, at load.
//
// A panel is 16 outputs, one a lane; n is filled up to whole panels with zeros. Panels of an expert follow one another,
// experts too. All kernels of all instruction sets read these same bytes.
//
// Float formats: parts[0] is [panel][k][16 lanes] of the file's own elements; of bf16 [panel][(k + 1) / 2][16
// lanes][2], pairs of neighbouring k as the instructions that multiply and add pairs want them, the last filled up with
// a zero.
//
// Integer formats: a tile is 32 consecutive k of a panel: 8 groups of 4 k; a group is 64 bytes, byte 4 * lane + k % 4,
// which is what the instructions that multiply bytes and add four neighbours want. Codes are unsigned; the value of
// code c is scale * (c - offset) + min, with scale and min an output's own for every `group_size` k.
//   parts[0]: [panel][tile] of code planes: the groups' codes taken apart so that bytes stay full.
//     - 4-bit plane, 256 bytes: vector v (64 bytes) holds group 2 v in its low halves and group 2 v + 1 in its high
//     ones
//     - 2-bit plane, 128 bytes: vector v holds groups 4 v to 4 v + 3, lowest bits first
//     - 1-bit plane, 64 bytes: groups 0 to 7, lowest bit first
//     - 8 bits: the groups themselves, 512 bytes
//     - 3 bits are a 2-bit and a 1-bit plane, 5 are 4 and 1, 6 are 4 and 2: low bits first. iq4_* store indices into
//       kIq4Values; their codes are value + 128.
//   parts[1]: [panel][scale block] of scales, by ScaleKind; a scale block covers `scale_block_size` k.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "quant/weight.h"

namespace quire {

constexpr int kPanelLanes = 16;
constexpr int kTileK = 32;

// All arrays are [.. ][16 lanes]. half: f16.
enum class ScaleKind : uint8_t {
  kNone,          // float formats
  kHalf,          // scale = half d
  kHalfAndMin,    // half d, half m: scale = d, min = m
  kSuperBytes,    // half d, half dmin, u8 s[8], u8 m[8]: scale = d * s, min = -(dmin * m); groups of 32
  kSuperNibbles,  // half d, half dmin, u8 b[16]: scale = d * (b & 15), min = -(dmin * (b >> 4)); groups of 16
  kSuperSigned,   // half d, i8 s[256 / group_size]: scale = d * s
  kHalfAndZero,   // half d, u8 z: scale = d, and z is subtracted from a code
};

struct PanelFormat {
  int code_bits;  // stored bits a weight; 0: a float format
  int offset;     // subtracted from a code
  bool is_lookup;
  int group_size;  // k that share a scale: 16, 32 or 128
  ScaleKind scale_kind;
  int scale_block_size;   // k of a scale block
  int scale_block_bytes;  // its bytes, all 16 lanes

  constexpr bool has_min() const {
    return scale_kind == ScaleKind::kHalfAndMin || scale_kind == ScaleKind::kSuperBytes ||
           scale_kind == ScaleKind::kSuperNibbles;
  }
  constexpr int tile_bytes() const { return code_bits * kTileK * kPanelLanes / 8; }
};

constexpr PanelFormat panel_format(FormatId id) {
  switch (id) {
    case FormatId::kF32:
    case FormatId::kF16:
    case FormatId::kBF16:
      break;
    case FormatId::kQ4_0:
      return {4, 8, false, 32, ScaleKind::kHalf, 32, 32};
    case FormatId::kQ4_1:
      return {4, 0, false, 32, ScaleKind::kHalfAndMin, 32, 64};
    case FormatId::kQ5_0:
      return {5, 16, false, 32, ScaleKind::kHalf, 32, 32};
    case FormatId::kQ5_1:
      return {5, 0, false, 32, ScaleKind::kHalfAndMin, 32, 64};
    case FormatId::kQ8_0:
      return {8, 128, false, 32, ScaleKind::kHalf, 32, 32};
    case FormatId::kQ2_K:
      return {2, 0, false, 16, ScaleKind::kSuperNibbles, 256, 64 + 256};
    case FormatId::kQ3_K:
      return {3, 4, false, 16, ScaleKind::kSuperSigned, 256, 32 + 256};
    case FormatId::kQ4_K:
      return {4, 0, false, 32, ScaleKind::kSuperBytes, 256, 64 + 256};
    case FormatId::kQ5_K:
      return {5, 0, false, 32, ScaleKind::kSuperBytes, 256, 64 + 256};
    case FormatId::kQ6_K:
      return {6, 32, false, 16, ScaleKind::kSuperSigned, 256, 32 + 256};
    case FormatId::kIQ4_NL:
      return {4, 128, true, 32, ScaleKind::kHalf, 32, 32};
    case FormatId::kIQ4_XS:
      return {4, 128, true, 32, ScaleKind::kSuperSigned, 256, 32 + 128};
    case FormatId::kInt4G128:
      return {4, 0, false, 128, ScaleKind::kHalfAndZero, 128, 32 + 16};
  }
  return {0, 0, false, 0, ScaleKind::kNone, 0, 0};
}

// Bytes of a panel in parts[0] and parts[1], and of a whole weight.
struct PanelBytes {
  int64_t codes;
  int64_t scales;
};
PanelBytes panel_bytes(FormatId format, int64_t k);
// Where a float format's element for input k of an output's lane lies in the panel, in elements.
constexpr int64_t float_element(FormatId format, int64_t k, int lane) {
  return format == FormatId::kBF16 ? (k / 2 * kPanelLanes + lane) * 2 + k % 2 : k * kPanelLanes + lane;
}
constexpr int64_t num_panels(int64_t n) {
  return (n + kPanelLanes - 1) / kPanelLanes;
}
// Of all panels of all experts of a weight.
PanelBytes packed_bytes(const Weight& weight);

// Re-lays a row-major weight into `codes` and `scales`, which are packed_bytes(weight) long.
void pack_cpu_panels(ThreadPool& pool, const Weight& weight, std::span<std::byte> codes, std::span<std::byte> scales);

// Row `row` (output) of expert 0 of a packed weight as floats: the values that dequantize_row gives for the file's row,
// bit for bit.   out: [k]
void dequantize_packed_row(const Weight& packed, int64_t row, float* out);

}  // namespace quire

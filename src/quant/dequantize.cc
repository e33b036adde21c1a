// One function a format: value(block, i) is the i-th number of a block. Scales are f16 and become float first; products
// and sums are rounded in the order written here, which is part of the definition.
#include "quant/dequantize.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "tensor/dtype.h"

namespace quire {

namespace {

// A block as bytes, read at offsets.
struct Block {
  const std::byte* bytes;

  int u8(int64_t offset) const { return std::to_integer<int>(bytes[offset]); }
  int i8(int64_t offset) const { return static_cast<int8_t>(std::to_integer<uint8_t>(bytes[offset])); }
  uint16_t u16(int64_t offset) const { return static_cast<uint16_t>(u8(offset) | u8(offset + 1) << 8); }
  uint32_t u32(int64_t offset) const { return u16(offset) | static_cast<uint32_t>(u16(offset + 2)) << 16; }
  float f16(int64_t offset) const { return f16_to_f32(u16(offset)); }
  float bf16(int64_t offset) const { return bf16_to_f32(u16(offset)); }
  float f32(int64_t offset) const { return std::bit_cast<float>(u32(offset)); }

  // Codes of 32 values in 16 bytes at `offset`: value i is a low nibble for i < 16, else a high one.
  int nibble_of_32(int64_t offset, int i) const { return u8(offset + i % 16) >> (i < 16 ? 0 : 4) & 15; }
};

float value_f32(Block block, int) {
  return block.f32(0);
}

float value_f16(Block block, int) {
  return block.f16(0);
}

float value_bf16(Block block, int) {
  return block.bf16(0);
}

// f16 scale, 16 bytes of nibbles.
float value_q4_0(Block block, int i) {
  return block.f16(0) * static_cast<float>(block.nibble_of_32(2, i) - 8);
}

// f16 scale, f16 minimum, 16 bytes of nibbles.
float value_q4_1(Block block, int i) {
  return block.f16(0) * static_cast<float>(block.nibble_of_32(4, i)) + block.f16(2);
}

// f16 scale, u32 of fifth bits, 16 bytes of nibbles.
float value_q5_0(Block block, int i) {
  const int high = static_cast<int>(block.u32(2) >> i & 1);
  return block.f16(0) * static_cast<float>((block.nibble_of_32(6, i) | high << 4) - 16);
}

// f16 scale, f16 minimum, u32 of fifth bits, 16 bytes of nibbles.
float value_q5_1(Block block, int i) {
  const int high = static_cast<int>(block.u32(4) >> i & 1);
  return block.f16(0) * static_cast<float>(block.nibble_of_32(8, i) | high << 4) + block.f16(2);
}

// f16 scale, 32 signed bytes.
float value_q8_0(Block block, int i) {
  return block.f16(0) * static_cast<float>(block.i8(2 + i));
}

// The 2-bit part of value i of q2_k and q3_k: 32 bytes hold 128 values, two bits each, 32 values a shift.
int two_bits(Block block, int64_t offset, int i) {
  return block.u8(offset + i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
}

// 16 bytes {scale, minimum} as nibbles, one byte for 16 values; 64 bytes of codes; f16 scale of scales, f16 of minima.
float value_q2_k(Block block, int i) {
  const int packed = block.u8(i / 16);
  const float scale = block.f16(80) * static_cast<float>(packed & 15);
  const float minimum = block.f16(82) * static_cast<float>(packed >> 4);
  return scale * static_cast<float>(two_bits(block, 16, i)) - minimum;
}

// 32 bytes of third bits (clear means minus 4), 64 bytes of low bits, 12 bytes of 6-bit scales, f16 scale of scales.
float value_q3_k(Block block, int i) {
  const int group = i / 16;
  const int low = block.u8(96 + group % 8) >> (group < 8 ? 0 : 4) & 15;
  const int high = block.u8(104 + group % 4) >> (group / 4 * 2) & 3;
  const float scale = block.f16(108) * static_cast<float>((low | high << 4) - 32);
  const bool has_third_bit = block.u8(i % 32) >> (i / 32) & 1;
  return scale * static_cast<float>(two_bits(block, 32, i) - (has_third_bit ? 0 : 4));
}

// Scale and minimum of the 32 values of a group of q4_k and q5_k: 12 bytes hold eight 6-bit pairs. Groups 0 to 3 have
// theirs in the low six bits of bytes 0 to 3 and 4 to 7; groups 4 to 7 have four bits in bytes 8 to 11 and the upper
// two in what groups 0 to 3 left over.
struct ScaleAndMinimum {
  int scale;
  int minimum;
};
ScaleAndMinimum six_bit_pair(Block block, int64_t offset, int group) {
  if (group < 4) return {block.u8(offset + group) & 63, block.u8(offset + 4 + group) & 63};
  const int rest = group - 4;
  const int low = block.u8(offset + 8 + rest);
  return {(low & 15) | block.u8(offset + rest) >> 6 << 4, low >> 4 | block.u8(offset + 4 + rest) >> 6 << 4};
}

// Value i of q4_k and q5_k has its low four bits in 128 bytes: 32 bytes hold 64 values, 32 in each nibble.
int nibble_of_64(Block block, int64_t offset, int i) {
  return block.u8(offset + i / 64 * 32 + i % 32) >> (i / 32 % 2 * 4) & 15;
}

// f16 scale of scales, f16 of minima, 12 bytes of pairs, 128 bytes of nibbles.
float value_q4_k(Block block, int i) {
  const auto [scale, minimum] = six_bit_pair(block, 4, i / 32);
  const int code = nibble_of_64(block, 16, i);
  return block.f16(0) * static_cast<float>(scale) * static_cast<float>(code) -
         block.f16(2) * static_cast<float>(minimum);
}

// As q4_k, with 32 bytes of fifth bits before the nibbles: bit g of byte i is that of value 32 g + i.
float value_q5_k(Block block, int i) {
  const auto [scale, minimum] = six_bit_pair(block, 4, i / 32);
  const int high = block.u8(16 + i % 32) >> (i / 32) & 1;
  const int code = nibble_of_64(block, 48, i) | high << 4;
  return block.f16(0) * static_cast<float>(scale) * static_cast<float>(code) -
         block.f16(2) * static_cast<float>(minimum);
}

// 128 bytes of low nibbles (64 bytes hold 128 values), 64 bytes of upper two bits (32 bytes hold 128), 16 signed bytes
// of scales, f16 scale of scales.
float value_q6_k(Block block, int i) {
  const int half = i / 128;
  const int low = block.u8(half * 64 + i % 64) >> (i % 128 / 64 * 4) & 15;
  const int high = block.u8(128 + half * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
  return block.f16(208) * static_cast<float>(block.i8(192 + i / 16)) * static_cast<float>((low | high << 4) - 32);
}

// f16 scale, 16 bytes of nibbles that index the table.
float value_iq4_nl(Block block, int i) {
  return block.f16(0) * static_cast<float>(kIq4Values[block.nibble_of_32(2, i)]);
}

// f16 scale of scales, u16 of upper two bits and 4 bytes of low nibbles of eight scales, 8 times 16 bytes of nibbles.
float value_iq4_xs(Block block, int i) {
  const int group = i / 32;
  const int low = block.u8(4 + group / 2) >> (group % 2 * 4) & 15;
  const int high = block.u16(2) >> (group * 2) & 3;
  const float scale = block.f16(0) * static_cast<float>((low | high << 4) - 32);
  return scale * static_cast<float>(kIq4Values[block.nibble_of_32(8 + group * 16, i % 32)]);
}

// f16 scale, zero point (at most 16), 64 bytes of nibbles: value i is a low nibble for i < 64.
float value_int4_g128(Block block, int i) {
  const int code = block.u8(3 + i % 64) >> (i < 64 ? 0 : 4) & 15;
  return block.f16(0) * static_cast<float>(code - std::min(block.u8(2), kMaxInt4Zero));
}

template <float (*value)(Block, int)>
void dequantize_blocks(const QuantFormat& format, const std::byte* blocks, float* out, int64_t num_values) {
  for (int64_t start = 0; start < num_values; start += format.values_per_block, blocks += format.bytes_per_block) {
    for (int i = 0; i < format.values_per_block; ++i) out[start + i] = value(Block{blocks}, i);
  }
}

}  // namespace

void dequantize_row(FormatId id, const std::byte* blocks, float* out, int64_t num_values) {
  const QuantFormat& format = quant_format(id);
  CHECK(num_values % format.values_per_block == 0);
  switch (id) {
    case FormatId::kF32:
      return dequantize_blocks<value_f32>(format, blocks, out, num_values);
    case FormatId::kF16:
      return dequantize_blocks<value_f16>(format, blocks, out, num_values);
    case FormatId::kBF16:
      return dequantize_blocks<value_bf16>(format, blocks, out, num_values);
    case FormatId::kQ4_0:
      return dequantize_blocks<value_q4_0>(format, blocks, out, num_values);
    case FormatId::kQ4_1:
      return dequantize_blocks<value_q4_1>(format, blocks, out, num_values);
    case FormatId::kQ5_0:
      return dequantize_blocks<value_q5_0>(format, blocks, out, num_values);
    case FormatId::kQ5_1:
      return dequantize_blocks<value_q5_1>(format, blocks, out, num_values);
    case FormatId::kQ8_0:
      return dequantize_blocks<value_q8_0>(format, blocks, out, num_values);
    case FormatId::kQ2_K:
      return dequantize_blocks<value_q2_k>(format, blocks, out, num_values);
    case FormatId::kQ3_K:
      return dequantize_blocks<value_q3_k>(format, blocks, out, num_values);
    case FormatId::kQ4_K:
      return dequantize_blocks<value_q4_k>(format, blocks, out, num_values);
    case FormatId::kQ5_K:
      return dequantize_blocks<value_q5_k>(format, blocks, out, num_values);
    case FormatId::kQ6_K:
      return dequantize_blocks<value_q6_k>(format, blocks, out, num_values);
    case FormatId::kIQ4_NL:
      return dequantize_blocks<value_iq4_nl>(format, blocks, out, num_values);
    case FormatId::kIQ4_XS:
      return dequantize_blocks<value_iq4_xs>(format, blocks, out, num_values);
    case FormatId::kInt4G128:
      return dequantize_blocks<value_int4_g128>(format, blocks, out, num_values);
  }
}

}  // namespace quire

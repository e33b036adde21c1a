// The formats in which weights are stored: a format is a row of kQuantFormats. Kernels and readers know formats; layers
// do not. Block layouts are those of GGUF (llama.cpp's ggml-common.h describes the same bytes), but for int4_g128, to
// which checkpoints of GPTQ and AWQ are turned while they are read; a plain float format is a block of one value.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace quire {

enum class FormatId : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kInt4G128,
};

struct QuantFormat {
  FormatId id;
  std::string_view name;     // as users write it: "q4_1"
  int32_t gguf_type;         // the number that stands in GGUF files
  int32_t values_per_block;  // along the input dimension; a row is a whole number of blocks
  int32_t bytes_per_block;
  bool is_float;  // f32, f16, bf16: no block, nothing to dequantize

  constexpr int64_t row_bytes(int64_t num_values) const { return num_values / values_per_block * bytes_per_block; }
  constexpr double bits_per_value() const { return 8.0 * bytes_per_block / values_per_block; }
};

// What GPTQ and AWQ make has no number in GGUF; from here on they are ours.
inline constexpr int32_t kFirstOwnType = 0x5100;

inline constexpr QuantFormat kQuantFormats[] = {
    {FormatId::kF32, "f32", 0, 1, 4, true},
    {FormatId::kF16, "f16", 1, 1, 2, true},
    {FormatId::kBF16, "bf16", 30, 1, 2, true},
    {FormatId::kQ4_0, "q4_0", 2, 32, 18, false},
    {FormatId::kQ4_1, "q4_1", 3, 32, 20, false},
    {FormatId::kQ5_0, "q5_0", 6, 32, 22, false},
    {FormatId::kQ5_1, "q5_1", 7, 32, 24, false},
    {FormatId::kQ8_0, "q8_0", 8, 32, 34, false},
    {FormatId::kQ2_K, "q2_k", 10, 256, 84, false},
    {FormatId::kQ3_K, "q3_k", 11, 256, 110, false},
    {FormatId::kQ4_K, "q4_k", 12, 256, 144, false},
    {FormatId::kQ5_K, "q5_k", 13, 256, 176, false},
    {FormatId::kQ6_K, "q6_k", 14, 256, 210, false},
    {FormatId::kIQ4_NL, "iq4_nl", 20, 32, 18, false},
    {FormatId::kIQ4_XS, "iq4_xs", 23, 256, 136, false},
    {FormatId::kInt4G128, "int4_g128", kFirstOwnType, 128, 67, false},
};

// The row of a format; every FormatId has one, at the index of its value.
constexpr const QuantFormat& quant_format(FormatId id) {
  return kQuantFormats[static_cast<int>(id)];
}
std::optional<FormatId> find_format_by_gguf_type(int64_t gguf_type);
std::optional<FormatId> find_format_by_name(std::string_view name);

}  // namespace quire

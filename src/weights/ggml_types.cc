#include "weights/ggml_types.h"

namespace quire {

namespace {

struct ForeignType {
  uint32_t number;
  std::string_view name;
  int32_t values_per_block;
  int32_t bytes_per_block;
};

constexpr ForeignType kForeignTypes[] = {
    {16, "iq2_xxs", 256, 66}, {17, "iq2_xs", 256, 74}, {18, "iq3_xxs", 256, 98}, {19, "iq1_s", 256, 50},
    {21, "iq3_s", 256, 110},  {22, "iq2_s", 256, 82},  {24, "i8", 1, 1},         {25, "i16", 1, 2},
    {26, "i32", 1, 4},        {27, "i64", 1, 8},       {28, "f64", 1, 8},        {29, "iq1_m", 256, 56},
    {34, "tq1_0", 256, 54},   {35, "tq2_0", 256, 66},  {39, "mxfp4", 32, 17},    {40, "nvfp4", 64, 36},
    {41, "q1_0", 128, 18},
};

}  // namespace

std::optional<GgmlType> find_ggml_type(uint32_t number) {
  if (const std::optional<FormatId> id = find_format_by_gguf_type(number)) {
    const QuantFormat& format = quant_format(*id);
    return GgmlType{*id, format.name, format.values_per_block, format.bytes_per_block};
  }
  for (const ForeignType& type : kForeignTypes) {
    if (type.number == number) return GgmlType{std::nullopt, type.name, type.values_per_block, type.bytes_per_block};
  }
  return std::nullopt;
}

}  // namespace quire

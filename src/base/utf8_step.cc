#include "base/utf8_step.h"

namespace quire {

Utf8Step step_utf8(std::string_view bytes, size_t offset) {
  using Kind = Utf8Step::Kind;
  const auto lead = static_cast<unsigned char>(bytes[offset]);
  if (lead < 0x80) return {Kind::kValid, 1};
  size_t length = 0;
  unsigned char second_min = 0x80, second_max = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) second_min = 0xA0;  // shorter forms exist
    if (lead == 0xED) second_max = 0x9F;  // surrogates
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) second_min = 0x90;
    if (lead == 0xF4) second_max = 0x8F;  // above U+10FFFF
  } else {
    return {Kind::kInvalid, 1};
  }
  for (size_t i = 1; i < length; ++i) {
    if (offset + i >= bytes.size()) return {Kind::kIncomplete, i};
    const auto byte = static_cast<unsigned char>(bytes[offset + i]);
    const bool fits = i == 1 ? byte >= second_min && byte <= second_max : byte >= 0x80 && byte <= 0xBF;
    if (!fits) return {Kind::kInvalid, i};
  }
  return {Kind::kValid, length};
}

}  // namespace quire

#include "quant/format.h"

namespace quire {

namespace {

constexpr bool rows_stand_at_their_ids() {
  int index = 0;
  for (const QuantFormat& format : kQuantFormats) {
    if (static_cast<int>(format.id) != index++) return false;
  }
  return true;
}
static_assert(rows_stand_at_their_ids());

}  // namespace

std::optional<FormatId> find_format_by_gguf_type(int64_t gguf_type) {
  for (const QuantFormat& format : kQuantFormats) {
    if (format.gguf_type == gguf_type) return format.id;
  }
  return std::nullopt;
}

std::optional<FormatId> find_format_by_name(std::string_view name) {
  // As other servers call what these methods make, whatever the group.
  if (name == "awq" || name == "gptq") return FormatId::kInt4G128;
  for (const QuantFormat& format : kQuantFormats) {
    if (format.name == name) return format.id;
  }
  return std::nullopt;
}

}  // namespace quire

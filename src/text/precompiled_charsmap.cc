// The unit layout is that of the darts-clone double array: bit 8 says that a value hangs below, the low byte is the
// label, bits 10-31 (shifted by 8 more when bit 9 is set) are the offset to the children.
#include "text/precompiled_charsmap.h"

namespace quire {
namespace {

constexpr size_t kMaxCharsmapBytes = 64 * 1024 * 1024;

uint32_t read_u32(std::string_view bytes, size_t offset) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i)
    value |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[offset + i])) << (8 * i);
  return value;
}

uint32_t child_offset(uint32_t unit) {
  return (unit >> 10) << ((unit & (1u << 9)) >> 6);
}

}  // namespace

Result<std::shared_ptr<const PrecompiledCharsmap>> PrecompiledCharsmap::create(std::string_view bytes) {
  if (bytes.size() < 4 || bytes.size() > kMaxCharsmapBytes) {
    return invalid_argument("the tokenizer's precompiled_charsmap has " + std::to_string(bytes.size()) +
                            " bytes, which cannot be right");
  }
  const size_t trie_bytes = read_u32(bytes, 0);
  if (trie_bytes % 4 != 0 || trie_bytes == 0 || trie_bytes > bytes.size() - 4) {
    return invalid_argument("the tokenizer's precompiled_charsmap is damaged: its trie does not fit in it");
  }
  auto map = std::make_shared<PrecompiledCharsmap>();
  map->units_.reserve(trie_bytes / 4);
  for (size_t i = 0; i < trie_bytes; i += 4) map->units_.push_back(read_u32(bytes, 4 + i));
  map->replacements_ = std::string(bytes.substr(4 + trie_bytes));
  map->replacements_.push_back('\0');
  return std::shared_ptr<const PrecompiledCharsmap>(std::move(map));
}

std::optional<std::string_view> PrecompiledCharsmap::find_prefix(std::string_view text) const {
  size_t node = child_offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto label = static_cast<unsigned char>(text[i]);
    node ^= label;
    if (label == 0 || node >= units_.size()) break;
    const uint32_t unit = units_[node];
    if ((unit & 0x800000FFu) != label) break;
    node ^= child_offset(unit);
    if (((unit >> 8) & 1) == 0) continue;
    if (node >= units_.size()) break;
    const size_t begin = units_[node] & 0x7FFFFFFFu;
    if (begin >= replacements_.size()) break;
    const size_t end = replacements_.find('\0', begin);
    return std::string_view(replacements_).substr(begin, end - begin);
  }
  return std::nullopt;
}

std::optional<std::string> decode_base64(std::string_view text) {
  const auto digit = [](char c) -> int {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
  };
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  std::string out;
  out.reserve(text.size() * 3 / 4);
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : text) {
    const int value = digit(c);
    if (value < 0) return std::nullopt;
    bits = ((bits << 6) | static_cast<uint32_t>(value)) & 0xFFFFFF;
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      out.push_back(static_cast<char>((bits >> num_bits) & 0xFF));
    }
  }
  return out;
}

}  // namespace quire

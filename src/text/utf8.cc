// UTF-8 by base/utf8_step, and properties from utf8proc.
#include "text/utf8.h"

#include <utf8proc.h>

#include <cstring>

#include "text/unicode_updates.h"

namespace quire {

DecodedCodePoint decode_code_point(std::string_view valid_text, size_t offset) {
  if (offset >= valid_text.size()) return {};
  const auto at = [&](size_t i) { return static_cast<unsigned char>(valid_text[offset + i]); };
  const size_t length = utf8_sequence_length(valid_text[offset]);
  if (length > valid_text.size() - offset) return {kReplacementCharacter, valid_text.size() - offset};
  const auto tail = [&](size_t i) { return static_cast<char32_t>(at(i) & 0x3F); };
  switch (length) {
    case 1:
      return {at(0), 1};
    case 2:
      return {(static_cast<char32_t>(at(0) & 0x1F) << 6) | tail(1), 2};
    case 3:
      return {(static_cast<char32_t>(at(0) & 0x0F) << 12) | (tail(1) << 6) | tail(2), 3};
    default:
      return {(static_cast<char32_t>(at(0) & 0x07) << 18) | (tail(1) << 12) | (tail(2) << 6) | tail(3), 4};
  }
}

void append_utf8(char32_t code_point, std::string& out) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

bool is_valid_utf8(std::string_view bytes) {
  size_t i = 0;
  while (i < bytes.size()) {
    // Eight bytes of ASCII at a time.
    while (i + 8 <= bytes.size()) {
      uint64_t word;
      std::memcpy(&word, bytes.data() + i, 8);
      if (word & 0x8080808080808080ULL) break;
      i += 8;
    }
    if (i >= bytes.size()) break;
    const Utf8Step step = step_utf8(bytes, i);
    if (step.kind != Utf8Step::Kind::kValid) return false;
    i += step.num_bytes;
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() + 16);
  for (size_t i = 0; i < bytes.size();) {
    const Utf8Step step = step_utf8(bytes, i);
    if (step.kind == Utf8Step::Kind::kValid) {
      out.append(bytes.substr(i, step.num_bytes));
    } else {
      append_utf8(kReplacementCharacter, out);
    }
    i += step.num_bytes;
  }
  return out;
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

namespace {
utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}
}  // namespace

bool is_word_character(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return c == 0x200C || c == 0x200D;  // Join_Control
  }
}

bool is_punctuation(char32_t c) {
  const utf8proc_category_t found = category(c);
  const bool is_known = found >= UTF8PROC_CATEGORY_PC && found <= UTF8PROC_CATEGORY_PO;
  return is_known ? !is_unknown_punctuation(c) : is_newer_punctuation(c);
}

bool is_numeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const utf8proc_category_t found = category(c);
  return found == UTF8PROC_CATEGORY_ND || found == UTF8PROC_CATEGORY_NL || found == UTF8PROC_CATEGORY_NO ||
         is_newer_number(c);
}

}  // namespace quire

// UTF-8 and the few Unicode facts that tokenizers need: walking, checking and repairing text, White_Space, categories.
// Not for normal forms (normalizer.h). Called by everything in text/; pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/utf8_step.h"

namespace quire {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;

struct DecodedCodePoint {
  char32_t value = 0;
  size_t num_bytes = 0;  // 1 to 4, 0 at the end of the text
};

// The code point at `offset` of text that is known to be valid UTF-8.
DecodedCodePoint decode_code_point(std::string_view valid_text, size_t offset);

// Bytes of the sequence that a lead byte of valid UTF-8 opens.
inline size_t utf8_sequence_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

void append_utf8(char32_t code_point, std::string& out);

bool is_valid_utf8(std::string_view bytes);

// Every ill-formed sequence becomes U+FFFD.
std::string replace_invalid_utf8(std::string_view bytes);

// The Unicode property White_Space.
bool is_white_space(char32_t code_point);
// Letters, marks, decimal digits and connector punctuation: \w.
bool is_word_character(char32_t code_point);
// General category P*.
bool is_punctuation(char32_t code_point);
// General category N*.
bool is_numeric(char32_t code_point);

}  // namespace quire

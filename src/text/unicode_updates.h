// The few thousand characters about which Unicode's versions disagree. Tokenizers of today know Unicode 16 in their
// patterns and Unicode 9 in their normal forms, our libraries know 14 and 15: these questions settle the difference, so
// that ids agree for any text. Called by split_regex, normalizer and utf8; pure functions, any thread.
#pragma once

#include <string>
#include <string_view>

namespace quire {

// A copy of valid UTF-8 in which each character that PCRE2 does not know yet is replaced by an older one of the same
// kind and encoded length; empty where there is none.
std::string replace_newer_characters(std::string_view valid_text);

// The character takes no part in normal forms.
bool stays_unnormalized(char32_t code_point);

// Numbers and punctuation beyond or short of the library's.
bool is_newer_number(char32_t code_point);
bool is_newer_punctuation(char32_t code_point);
bool is_unknown_punctuation(char32_t code_point);

}  // namespace quire

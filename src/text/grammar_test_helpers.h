// For tests of grammars: a vocabulary of all bytes and a few longer tokens, and questions asked byte by byte.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar.h"
#include "text/grammar_matcher.h"
#include "text/grammar_vocabulary.h"

namespace quire {

inline constexpr int32_t kTestEndToken = 256;  // "<end>"

// Tokens 0 to 255 are the bytes, 256 is the control token <end>, 257 the control token <tool>, then `more`.
inline GrammarVocabulary::Ptr byte_vocabulary(const std::vector<std::string>& more = {}) {
  std::vector<GrammarVocabulary::Token> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back({std::string(1, static_cast<char>(byte)), false});
  tokens.push_back({"<end>", true});
  tokens.push_back({"<tool>", true});
  for (const std::string& text : more) tokens.push_back({text, false});
  return GrammarVocabulary::create(tokens).value();
}

inline std::unique_ptr<GrammarMatcher> byte_matcher(const Grammar::Ptr& grammar) {
  return GrammarMatcher::create(grammar, byte_vocabulary(), {kTestEndToken});
}

// The number of bytes that are accepted from the beginning of the text.
inline size_t accepted_length(GrammarMatcher& matcher, std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (!matcher.accept(static_cast<unsigned char>(text[i]))) return i;
  }
  return text.size();
}

inline bool accepts(const Grammar::Ptr& grammar, std::string_view text) {
  const auto matcher = byte_matcher(grammar);
  return accepted_length(*matcher, text) == text.size() && matcher->may_end();
}

inline bool accepts_prefix(const Grammar::Ptr& grammar, std::string_view text) {
  const auto matcher = byte_matcher(grammar);
  return accepted_length(*matcher, text) == text.size();
}

inline std::vector<int32_t> allowed_tokens(GrammarMatcher& matcher, const GrammarVocabulary& vocabulary) {
  std::vector<uint32_t> mask(vocabulary.num_mask_words() + 1, ~uint32_t{0});
  matcher.fill_mask(mask);
  std::vector<int32_t> ids;
  for (size_t i = 0; i < mask.size() * 32; ++i) {
    if ((mask[i / 32] >> (i % 32) & 1) != 0) ids.push_back(static_cast<int32_t>(i));
  }
  return ids;
}

}  // namespace quire

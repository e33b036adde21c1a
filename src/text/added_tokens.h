// Tokens that are found in text as they stand, before any pre-tokenizing: control markers such as <|im_end|>, and the
// plain ones that a vocabulary adds (runs of line ends, say). The matcher finds them leftmost-longest in one pass, and
// only where the bytes may become special (marked_text.h). Immutable, shared by threads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/marked_text.h"
#include "text/token_table.h"

namespace quire {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool is_special = false;   // left out of decoded text on request
  bool strips_left = false;  // takes the white space before it along
  bool strips_right = false;
  bool is_single_word = false;  // not inside a word
  bool is_normalized = false;   // looked for in normalized text
};

// Whether text that spells this token gets power over the conversation by it: control tokens, and plain ones in the
// shape of a marker ("</think>", "<tool_call>"). Others (runs of line ends, Gemma's HTML tags, words) may come from
// anybody.
bool is_marker(const AddedToken& token);

class AddedTokenMatcher {
 public:
  // `pattern` is what to look for (the token's content, or its normalized form).
  void add(const AddedToken& token, std::string_view pattern);
  bool is_empty() const { return tokens_.empty(); }

  struct Match {
    size_t begin;
    size_t end;
    int32_t id;
  };
  // Appends all matches, in order, none overlapping. `marks` is as long as `text`, or empty where all may be special.
  void find_all(std::string_view text, std::string_view marks, std::vector<Match>& matches) const;

 private:
  std::vector<AddedToken> tokens_;
  ByteTrie trie_;  // pattern → index in tokens_
};

}  // namespace quire

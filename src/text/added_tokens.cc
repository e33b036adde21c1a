// The search. A step costs at most the length of the longest added token, a property of the vocabulary and not of the
// text.
#include "text/added_tokens.h"

#include <algorithm>
#include <iterator>

#include "text/utf8.h"

namespace quire {
namespace {

// Gemma's vocabularies have these as plain tokens, and text with HTML in it is to be read as they were trained.
bool is_html_tag(std::string_view text) {
  static constexpr std::string_view kNames[] = {
      "table", "caption", "thead", "tbody",  "tfoot", "tr",     "th",     "td",        "h1", "h2",
      "h3",    "h4",      "h5",    "h6",     "ul",    "ol",     "li",     "p",         "b",  "i",
      "u",     "s",       "em",    "strong", "sub",   "sup",    "code",   "pre",       "br", "hr",
      "a",     "img",     "div",   "span",   "body",  "header", "footer", "blockquote"};
  if (text.size() < 3 || text.front() != '<' || text.back() != '>') return false;
  text = text.substr(1, text.size() - 2);
  if (text.front() == '/') text.remove_prefix(1);
  return std::find(std::begin(kNames), std::end(kNames), text) != std::end(kNames);
}

size_t previous_character(std::string_view text, size_t offset) {
  size_t begin = offset - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return begin;
}

bool ends_with_word(std::string_view text, size_t offset) {
  return offset > 0 && is_word_character(decode_code_point(text, previous_character(text, offset)).value);
}

bool begins_with_word(std::string_view text, size_t offset) {
  return offset < text.size() && is_word_character(decode_code_point(text, offset).value);
}

}  // namespace

bool is_marker(const AddedToken& token) {
  if (token.is_special) return true;
  return token.content.find_first_of("<>[]{}|") != std::string::npos && !is_html_tag(token.content);
}

void AddedTokenMatcher::add(const AddedToken& token, std::string_view pattern) {
  if (pattern.empty()) return;
  trie_.insert(pattern, static_cast<int32_t>(tokens_.size()));
  tokens_.push_back(token);
}

void AddedTokenMatcher::find_all(std::string_view text, std::string_view marks, std::vector<Match>& matches) const {
  if (is_empty()) return;
  size_t done = 0;  // the end of the last match, white space that it took included
  for (size_t i = 0; i < text.size();) {
    uint32_t node = ByteTrie::kRoot;
    int32_t best = ByteTrie::kNoValue;
    size_t best_end = i;
    bool is_open = true;
    for (size_t j = i; j < text.size(); ++j) {
      node = trie_.step(node, text[j]);
      if (node == ByteTrie::kNoNode) break;
      is_open = is_open && (marks.empty() || marks[j] == MarkedText::kOpen);
      const int32_t value = trie_.value(node);
      if (value != ByteTrie::kNoValue && (is_open || !is_marker(tokens_[static_cast<size_t>(value)]))) {
        best = value;
        best_end = j + 1;
      }
    }
    if (best == ByteTrie::kNoValue) {
      ++i;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(best)];
    size_t begin = i;
    size_t end = best_end;
    i = best_end;
    if (token.is_single_word && (ends_with_word(text, begin) || begins_with_word(text, end))) continue;
    if (token.strips_left) {
      while (begin > done) {
        const size_t previous = previous_character(text, begin);
        if (!is_white_space(decode_code_point(text, previous).value)) break;
        begin = std::max(previous, done);
      }
    }
    if (token.strips_right) {
      while (end < text.size()) {
        const DecodedCodePoint c = decode_code_point(text, end);
        if (!is_white_space(c.value)) break;
        end += c.num_bytes;
      }
    }
    if (begin < done) begin = done;
    matches.push_back({begin, std::max(end, begin), token.id});
    done = std::max(done, end);
    i = std::max(i, done);
  }
}

}  // namespace quire

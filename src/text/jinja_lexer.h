// Template source → tokens, with jinja2's whitespace rules under trim_blocks and lstrip_blocks. Used by the parser
// only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire::jinja {

enum class TokenKind {
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,  // its text says which
  kEnd,
};

struct Token {
  TokenKind kind;
  int line;
  std::string text;  // of strings: unescaped; of numbers: without underscores

  bool is(TokenKind other, std::string_view value) const { return kind == other && text == value; }
  bool is_name(std::string_view value) const { return is(TokenKind::kName, value); }
  bool is_operator(std::string_view value) const { return is(TokenKind::kOperator, value); }
};

Result<std::vector<Token>> tokenize(std::string_view source);  // ends with kEnd
std::string describe(const Token& token);                      // for messages

}  // namespace quire::jinja

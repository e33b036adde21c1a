// The lexer walks data, then tags. What a tag takes of the whitespace around it: '-' all of it; '+' none; a plain block
// or comment the blanks before it on its line and one newline after it; a plain {{ }} nothing. See jinja_lexer.h.
#include "text/jinja_lexer.h"

#include <array>

#include "text/jinja_text.h"
#include "text/jinja_unicode.h"

namespace quire::jinja {
namespace {

constexpr size_t kMaxTokens = 1'000'000;

bool is_digit_byte(char c) {
  return c >= '0' && c <= '9';
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// "\r\n" and "\r" become "\n"; one newline at the end of the source is dropped.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out.push_back(source[i]);
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_newlines(source)), view_(source_) {}

  Result<std::vector<Token>> run() {
    while (position_ < view_.size()) {
      RETURN_IF_ERROR(lex_data());
      if (tokens_.size() > kMaxTokens) return error("the template has too many tokens");
    }
    tokens_.push_back({TokenKind::kEnd, line_, ""});
    return std::move(tokens_);
  }

 private:
  enum class Tag { kBlock, kVariable, kComment, kRaw };

  Status error(const std::string& message) const {
    return invalid_argument("line " + std::to_string(line_) + ": " + message);
  }

  bool starts_with(size_t at, std::string_view text) const {
    return view_.substr(std::min(at, view_.size())).starts_with(text);
  }

  size_t skip_space(size_t at) const {
    while (at < view_.size()) {
      const CodePoint point = code_point_at(view_, at);
      if (!is_python_space(point.value)) break;
      at += point.num_bytes;
    }
    return at;
  }

  // Moves on to `end`, counting the lines passed.
  void advance(size_t end) {
    for (; position_ < end; ++position_) line_ += view_[position_] == '\n' ? 1 : 0;
  }

  void add_data(size_t begin, size_t end) {
    if (end > begin) tokens_.push_back({TokenKind::kData, line_, std::string(view_.substr(begin, end - begin))});
  }

  // Where the data before a tag ends, once the tag has taken its whitespace.
  size_t data_end(size_t begin, size_t tag, char sign, bool is_variable) const {
    if (sign == '-') {
      size_t end = tag;
      while (end > begin) {
        const size_t previous = previous_offset(view_, end);
        if (!is_python_space(code_point_at(view_, previous).value)) break;
        end = previous;
      }
      return end;
    }
    if (sign == '+' || is_variable) return tag;
    const size_t newline = tag > begin ? view_.rfind('\n', tag - 1) : std::string_view::npos;
    const bool has_newline = newline != std::string_view::npos && newline >= begin;
    if (!has_newline && !is_line_start_) return tag;
    const size_t line_begin = has_newline ? newline + 1 : begin;
    return skip_space(line_begin) >= tag ? line_begin : tag;
  }

  // "%}" with an optional sign before it, at `at`; returns where the whitespace after it ends, or npos.
  size_t match_block_end(size_t at, std::string_view closing) const {
    if (starts_with(at, "-") && starts_with(at + 1, closing)) return skip_space(at + 3);
    if (starts_with(at, "+") && starts_with(at + 1, closing)) return at + 3;
    if (!starts_with(at, closing)) return std::string_view::npos;
    return starts_with(at + 2, "\n") ? at + 3 : at + 2;
  }

  // After "{%" and its sign: "raw %}" whole, or npos.
  size_t match_raw_begin(size_t at) const {
    at = skip_space(at);
    if (!starts_with(at, "raw")) return std::string_view::npos;
    at = skip_space(at + 3);
    if (starts_with(at, "-%}")) return skip_space(at + 3);
    return starts_with(at, "%}") ? at + 2 : std::string_view::npos;
  }

  Status lex_data() {
    const size_t begin = position_;
    for (size_t brace = view_.find('{', begin); brace != std::string_view::npos; brace = view_.find('{', brace + 1)) {
      const char next = brace + 1 < view_.size() ? view_[brace + 1] : '\0';
      if (next != '%' && next != '{' && next != '#') continue;
      size_t after = brace + 2;
      char sign = '\0';
      if (starts_with(after, "-") || starts_with(after, "+")) sign = view_[after++];
      Tag tag = next == '%' ? Tag::kBlock : next == '{' ? Tag::kVariable : Tag::kComment;
      if (tag == Tag::kBlock) {
        const size_t raw_body = match_raw_begin(after);
        if (raw_body != std::string_view::npos) {
          tag = Tag::kRaw;
          after = raw_body;
        }
      }
      add_data(begin, data_end(begin, brace, sign, tag == Tag::kVariable));
      advance(brace);
      const int tag_line = line_;
      advance(after);
      is_line_start_ = view_[after - 1] == '\n';
      switch (tag) {
        case Tag::kComment:
          return lex_comment();
        case Tag::kRaw:
          return lex_raw();
        default:
          tokens_.push_back({tag == Tag::kBlock ? TokenKind::kBlockBegin : TokenKind::kVariableBegin, tag_line, ""});
          return lex_tag(tag == Tag::kBlock);
      }
    }
    add_data(begin, view_.size());
    advance(view_.size());
    return ok_status();
  }

  Status lex_comment() {
    const size_t begin = position_;
    const size_t closing = view_.find("#}", begin);
    if (closing == std::string_view::npos) return error("Missing end of comment tag");
    const bool has_sign = closing > begin && (view_[closing - 1] == '-' || view_[closing - 1] == '+');
    advance(match_block_end(has_sign ? closing - 1 : closing, "#}"));
    is_line_start_ = view_[position_ - 1] == '\n';
    return ok_status();
  }

  Status lex_raw() {
    const size_t begin = position_;
    for (size_t tag = view_.find("{%", begin); tag != std::string_view::npos; tag = view_.find("{%", tag + 1)) {
      size_t at = tag + 2;
      char sign = '\0';
      if (starts_with(at, "-") || starts_with(at, "+")) sign = view_[at++];
      at = skip_space(at);
      if (!starts_with(at, "endraw")) continue;
      const size_t end = match_block_end(skip_space(at + 6), "%}");
      if (end == std::string_view::npos) continue;
      add_data(begin, data_end(begin, tag, sign, false));
      advance(end);
      is_line_start_ = view_[end - 1] == '\n';
      return ok_status();
    }
    return error("Missing end of raw directive");
  }

  Status lex_tag(bool is_block) {
    std::vector<char> open_brackets;
    while (position_ < view_.size()) {
      if (open_brackets.empty()) {
        size_t end = std::string_view::npos;
        if (is_block) {
          end = match_block_end(position_, "%}");
        } else if (starts_with(position_, "-}}")) {
          end = skip_space(position_ + 3);
        } else if (starts_with(position_, "}}")) {
          end = position_ + 2;
        }
        if (end != std::string_view::npos) {
          tokens_.push_back({is_block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, line_, ""});
          advance(end);
          is_line_start_ = view_[end - 1] == '\n';
          return ok_status();
        }
      }
      const size_t after_space = skip_space(position_);
      if (after_space != position_) {
        advance(after_space);
        continue;
      }
      RETURN_IF_ERROR(lex_token(open_brackets));
    }
    return ok_status();  // the parser reports the missing end
  }

  Status lex_token(std::vector<char>& open_brackets) {
    const char c = view_[position_];
    if (is_digit_byte(c)) return lex_number();
    if (c == '\'' || c == '"') return lex_string();
    const size_t name_end = match_name(position_);
    if (name_end != position_) {
      tokens_.push_back({TokenKind::kName, line_, std::string(view_.substr(position_, name_end - position_))});
      advance(name_end);
      return ok_status();
    }
    return lex_operator(open_brackets);
  }

  size_t match_name(size_t at) const {
    while (at < view_.size()) {
      const CodePoint point = code_point_at(view_, at);
      if (point.value != '_' && !is_alpha(point.value) && !is_numeric(point.value)) break;
      at += point.num_bytes;
    }
    return at;
  }

  // Digits, single underscores between them.
  template <typename IsDigit>
  size_t match_digits(size_t at, IsDigit is_digit) const {
    while (at < view_.size()) {
      if (is_digit(view_[at])) {
        ++at;
      } else if (view_[at] == '_' && at + 1 < view_.size() && is_digit(view_[at + 1])) {
        at += 2;
      } else {
        break;
      }
    }
    return at;
  }

  size_t match_float(size_t at) const {
    if (at > 0 && view_[at - 1] == '.') return at;
    const size_t whole = match_digits(at, is_digit_byte);
    size_t end = whole;
    if (end + 1 < view_.size() && view_[end] == '.' && is_digit_byte(view_[end + 1])) {
      end = match_digits(end + 1, is_digit_byte);
    }
    if (end < view_.size() && (view_[end] == 'e' || view_[end] == 'E')) {
      size_t digits = end + 1;
      if (digits < view_.size() && (view_[digits] == '+' || view_[digits] == '-')) ++digits;
      if (digits < view_.size() && is_digit_byte(view_[digits])) return match_digits(digits, is_digit_byte);
    }
    return end == whole ? at : end;
  }

  size_t match_integer(size_t at) const {
    if (view_[at] == '0') {
      const char kind = at + 1 < view_.size() ? static_cast<char>(view_[at + 1] | 0x20) : '\0';
      const int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
      if (base != 0) {
        const size_t end = match_digits(at + 2, [base](char c) { return hex_value(c) >= 0 && hex_value(c) < base; });
        if (end > at + 2) return end;
      }
      return match_digits(at, [](char c) { return c == '0'; });
    }
    return match_digits(at, is_digit_byte);
  }

  Status lex_number() {
    size_t end = match_float(position_);
    const bool is_float = end != position_;
    if (!is_float) end = match_integer(position_);
    std::string text;
    for (const char c : view_.substr(position_, end - position_)) {
      if (c != '_') text.push_back(c);
    }
    tokens_.push_back({is_float ? TokenKind::kFloat : TokenKind::kInteger, line_, std::move(text)});
    advance(end);
    return ok_status();
  }

  Status lex_string() {
    const char quote = view_[position_];
    size_t end = position_ + 1;
    while (end < view_.size() && view_[end] != quote) end += view_[end] == '\\' ? 2 : 1;
    if (end >= view_.size()) return error(std::string("unexpected char ") + quote + ": the string does not end");
    Token token = {TokenKind::kString, line_, ""};
    RETURN_IF_ERROR(unescape(view_.substr(position_ + 1, end - position_ - 1), token.text));
    tokens_.push_back(std::move(token));
    advance(end + 1);
    return ok_status();
  }

  Status unescape_hex(std::string_view body, size_t& at, size_t num_digits, std::string& out) const {
    uint32_t value = 0;
    for (size_t i = 0; i < num_digits; ++i) {
      const int digit = at + i < body.size() ? hex_value(body[at + i]) : -1;
      if (digit < 0) return error("truncated escape in a string");
      value = value * 16 + static_cast<uint32_t>(digit);
    }
    if (value > 0x10FFFF) return error("illegal Unicode character in a string");
    append_utf8(out, value);
    at += num_digits;
    return ok_status();
  }

  // As Python's unicode-escape codec does it.
  Status unescape(std::string_view body, std::string& out) const {
    for (size_t i = 0; i < body.size();) {
      if (body[i] != '\\') {
        out.push_back(body[i++]);
        continue;
      }
      if (++i >= body.size()) return error("\\ at end of string");
      const char c = body[i];
      constexpr std::string_view kNames = "\\'\"abfnrtv", kValues = "\\'\"\a\b\f\n\r\t\v";
      if (const size_t index = kNames.find(c); index != kNames.npos) {
        out.push_back(kValues[index]);
        ++i;
      } else if (c == '\n') {
        ++i;
      } else if (c >= '0' && c <= '7') {
        uint32_t value = 0;
        for (size_t digits = 0; digits < 3 && i < body.size() && body[i] >= '0' && body[i] <= '7'; ++digits, ++i) {
          value = value * 8 + static_cast<uint32_t>(body[i] - '0');
        }
        append_utf8(out, value);
      } else if (c == 'x' || c == 'u' || c == 'U') {
        ++i;
        RETURN_IF_ERROR(unescape_hex(body, i, c == 'x' ? 2 : c == 'u' ? 4 : 8, out));
      } else if (c == 'N') {
        return error("\\N{...} in a string is not supported; write the character itself");
      } else if (static_cast<uint8_t>(c) >= 0x80) {
        // The codec sees a backslash and the escaped form of the character: the backslash swallows the next one.
        const CodePoint point = code_point_at(body, i);
        constexpr char kHex[] = "0123456789abcdef";
        const int num_digits = point.value < 0x100 ? 2 : point.value < 0x10000 ? 4 : 8;
        out += num_digits == 2 ? "\\x" : num_digits == 4 ? "\\u" : "\\U";
        for (int shift = 4 * (num_digits - 1); shift >= 0; shift -= 4) out.push_back(kHex[point.value >> shift & 15]);
        i += point.num_bytes;
      } else {
        out.push_back('\\');
        out.push_back(c);
        ++i;
      }
    }
    return ok_status();
  }

  Status lex_operator(std::vector<char>& open_brackets) {
    constexpr std::array<std::string_view, 25> kOperators = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                             "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                             ">",  "<",  "=",  ".",  ":",  "|",  ","};
    for (const std::string_view op : kOperators) {
      if (!starts_with(position_, op)) continue;
      const char c = op[0];
      if (c == '(' || c == '[' || c == '{') open_brackets.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
      if (c == ')' || c == ']' || c == '}') {
        if (open_brackets.empty()) return error(std::string("unexpected '") + c + "'");
        if (open_brackets.back() != c) {
          return error(std::string("unexpected '") + c + "', expected '" + open_brackets.back() + "'");
        }
        open_brackets.pop_back();
      }
      tokens_.push_back({TokenKind::kOperator, line_, std::string(op)});
      advance(position_ + op.size());
      return ok_status();
    }
    return error("unexpected char '" + std::string(view_.substr(position_, code_point_at(view_, position_).num_bytes)) +
                 "'");
  }

  std::string source_;
  std::string_view view_;
  size_t position_ = 0;
  int line_ = 1;
  bool is_line_start_ = true;  // the last thing read ended with a newline
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view source) {
  return Lexer(source).run();
}

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kData:
      return "template data";
    case TokenKind::kVariableBegin:
      return "begin of print statement";
    case TokenKind::kVariableEnd:
      return "end of print statement";
    case TokenKind::kBlockBegin:
      return "begin of statement block";
    case TokenKind::kBlockEnd:
      return "end of statement block";
    case TokenKind::kString:
      return "a string";
    case TokenKind::kEnd:
      return "end of template";
    default:
      return "'" + token.text + "'";
  }
}

}  // namespace quire::jinja

#include "text/grammar_ebnf.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/utf8.h"

namespace quire::grammar_internal {
namespace {

// A part and the bounds of repetitions inside it, multiplied.
struct Part {
  NodeIndex node = kNoNode;
  int64_t num_repetitions = 1;
};

class EbnfParser {
 public:
  EbnfParser(NodePool& pool, std::string_view text) : pool_(pool), text_(text) {}

  Result<NodeIndex> parse() {
    if (text_.size() > pool_.limits().max_source_bytes) {
      return invalid_argument("the grammar has " + std::to_string(text_.size()) + " bytes, more than the " +
                              std::to_string(pool_.limits().max_source_bytes) + " that are allowed");
    }
    if (!is_valid_utf8(text_)) return invalid_argument("the grammar is not valid UTF-8");
    skip_space();
    while (position_ < text_.size()) RETURN_IF_ERROR(parse_rule());
    for (const auto& [name, rule] : rules_) {
      if (!rule.is_defined) {
        position_ = rule.position;
        return error("rule \"" + name + "\" is not defined");
      }
    }
    const auto root = rules_.find("root");
    if (root == rules_.end()) return invalid_argument("the grammar has no rule \"root\" to begin with");
    return root->second.node;
  }

 private:
  struct RuleEntry {
    NodeIndex node = kNoNode;
    bool is_defined = false;
    size_t position = 0;  // where it is named first
  };

  bool next_is(std::string_view token) const { return text_.substr(position_).starts_with(token); }
  bool take(std::string_view token) {
    if (!next_is(token)) return false;
    position_ += token.size();
    return true;
  }
  bool at_end() const { return position_ == text_.size(); }
  size_t line() const {
    return 1 +
           static_cast<size_t>(std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(position_), '\n'));
  }
  Status error(const std::string& what) const {
    return invalid_argument("in the grammar at line " + std::to_string(line()) + ": " + what);
  }

  void skip_space() {
    while (!at_end()) {
      if (std::isspace(static_cast<unsigned char>(text_[position_])) != 0) {
        ++position_;
      } else if (text_[position_] == '#') {
        position_ = std::min(text_.size(), text_.find('\n', position_));
      } else {
        break;
      }
    }
  }

  static bool is_name_character(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
  }

  // The name at the position, or nothing. '.' belongs to names only inside them.
  std::string_view peek_name() const {
    size_t end = position_;
    while (end < text_.size() && is_name_character(text_[end]) && (text_[end] != '.' || end > position_)) ++end;
    return text_.substr(position_, end - position_);
  }

  // A name with "::=" behind it begins the next rule.
  bool at_rule_start() {
    const std::string_view name = peek_name();
    if (name.empty()) return false;
    const size_t before = position_;
    position_ += name.size();
    skip_space();
    const bool is_start = next_is("::=");
    position_ = before;
    return is_start;
  }

  RuleEntry& rule_named(std::string_view name) {
    RuleEntry& entry = rules_[std::string(name)];
    if (entry.node == kNoNode) {
      entry.node = pool_.declare_rule(name);
      entry.position = position_;
    }
    return entry;
  }

  Status parse_rule() {
    const std::string_view name = peek_name();
    if (name.empty()) return error("a rule was expected: name ::= ...");
    position_ += name.size();
    skip_space();
    if (!take("::=")) {
      if (next_is(":")) {
        return error("rules are written \"name ::= ...\" (GBNF); Lark grammars with \"name: ...\" are not supported");
      }
      return error("\"::=\" was expected behind \"" + std::string(name) + "\"");
    }
    if (rules_.size() > static_cast<size_t>(pool_.limits().max_rules)) {
      return error("more than " + std::to_string(pool_.limits().max_rules) + " rules");
    }
    if (rule_named(name).is_defined) return error("rule \"" + std::string(name) + "\" is defined twice");
    skip_space();
    ASSIGN_OR_RETURN(const Part body, parse_alternatives(0));
    if (!at_end() && !at_rule_start()) {
      return error(next_is(")") ? "')' without '('" : "unexpected \"" + std::string(text_.substr(position_, 1)) + "\"");
    }
    RuleEntry& entry = rule_named(name);
    pool_.define_rule(entry.node, body.node);
    entry.is_defined = true;
    return ok_status();
  }

  Result<Part> parse_alternatives(int depth) {
    if (depth > pool_.limits().max_depth) {
      return error("groups are nested too deep, more than " + std::to_string(pool_.limits().max_depth));
    }
    std::vector<NodeIndex> nodes;
    int64_t num_repetitions = 1;
    do {
      skip_space();
      ASSIGN_OR_RETURN(const Part sequence, parse_sequence(depth));
      nodes.push_back(sequence.node);
      num_repetitions = std::max(num_repetitions, sequence.num_repetitions);
    } while (take("|"));
    return Part{pool_.alternatives(std::move(nodes)), num_repetitions};
  }

  Result<Part> parse_sequence(int depth) {
    std::vector<NodeIndex> nodes;
    int64_t num_repetitions = 1;
    while (!at_end() && !next_is("|") && !next_is(")") && !at_rule_start()) {
      ASSIGN_OR_RETURN(Part part, parse_symbol(depth));
      RETURN_IF_ERROR(parse_repetitions(part));
      nodes.push_back(part.node);
      num_repetitions = std::max(num_repetitions, part.num_repetitions);
      skip_space();
    }
    return Part{pool_.sequence(std::move(nodes)), num_repetitions};
  }

  Result<Part> parse_symbol(int depth) {
    if (next_is("(?")) return error("lookahead is not supported");
    if (take("(")) {
      ASSIGN_OR_RETURN(const Part inner, parse_alternatives(depth + 1));
      if (!take(")")) return error("'(' without ')'");
      return inner;
    }
    if (next_is("\"") || next_is("'")) return parse_literal();
    if (next_is("[")) return parse_class();
    if (next_is("<")) return parse_special();
    if (take(".")) return Part{pool_.character({{0, kMaxCodePoint}})};
    const std::string_view name = peek_name();
    if (name.empty()) return error("unexpected \"" + std::string(text_.substr(position_, 1)) + "\"");
    const NodeIndex node = rule_named(name).node;
    position_ += name.size();
    return Part{node};
  }

  Status parse_repetitions(Part& part) {
    // GBNF lets repetitions follow each other: x*? is (x*)?. Their number is bounded by the product of the bounds
    // below, and those without bounds by this.
    for (int count = 0;; ++count) {
      const size_t before = position_;
      skip_space();
      int64_t min = 0, max = -1;
      if (take("*")) {
      } else if (take("+")) {
        min = 1;
      } else if (take("?")) {
        max = 1;
      } else if (next_is("{")) {
        RETURN_IF_ERROR(parse_bounds(min, max));
      } else {
        position_ = before;
        return ok_status();
      }
      if (count >= pool_.limits().max_depth) return error("too many repetitions of one symbol");
      part.num_repetitions =
          std::min<int64_t>(int64_t{1} << 40, part.num_repetitions * std::max<int64_t>({1, min, max}));
      if (part.num_repetitions > pool_.limits().max_repetition) {
        return error("repetitions that multiply to more than " + std::to_string(pool_.limits().max_repetition));
      }
      part.node = pool_.repeat(part.node, static_cast<int>(min), static_cast<int>(max));
    }
  }

  Status parse_bounds(int64_t& min, int64_t& max) {
    take("{");
    skip_space();
    const std::optional<int64_t> low = parse_number();
    skip_space();
    std::optional<int64_t> high = low;
    if (take(",")) {
      skip_space();
      high = parse_number();
      skip_space();
      if (!high) high = -1;
    }
    if (!high || !take("}")) return error("a repetition is written {m}, {m,} or {m,n}");
    min = low.value_or(0);
    max = *high;
    if (max != -1 && max < min) return error("a repetition whose maximum is below its minimum");
    return ok_status();
  }

  std::optional<int64_t> parse_number() {
    std::optional<int64_t> value;
    for (; !at_end() && text_[position_] >= '0' && text_[position_] <= '9'; ++position_) {
      value = std::min<int64_t>(1'000'000'000, value.value_or(0) * 10 + (text_[position_] - '0'));
    }
    return value;
  }

  Result<Part> parse_literal() {
    const char quote = text_[position_++];
    std::string bytes;
    for (;;) {
      if (at_end() || text_[position_] == '\n') return error("a literal without its closing quote");
      if (text_[position_] == quote) break;
      ASSIGN_OR_RETURN(const char32_t c, parse_character());
      append_utf8(c, bytes);
    }
    ++position_;
    return Part{pool_.bytes(bytes)};
  }

  Result<Part> parse_class() {
    take("[");
    const bool is_negated = take("^");
    std::vector<CodePointRange> ranges;
    while (!take("]")) {
      if (at_end() || text_[position_] == '\n') return error("'[' without ']'");
      ASSIGN_OR_RETURN(const char32_t first, parse_character());
      char32_t last = first;
      if (next_is("-") && !next_is("-]")) {
        take("-");
        if (at_end()) return error("'[' without ']'");
        ASSIGN_OR_RETURN(last, parse_character());
        if (last < first) return error("a range of characters that runs backwards");
      }
      ranges.push_back({first, last});
    }
    ranges = normalize_ranges(std::move(ranges));
    if (is_negated) ranges = complement_ranges(ranges);
    return Part{pool_.character(std::move(ranges))};
  }

  // <|name|>: the special token with this text.
  Result<Part> parse_special() {
    const size_t end = text_.find('>', position_);
    const size_t line_end = text_.find('\n', position_);
    if (end == std::string_view::npos || line_end < end) return error("'<' without '>'");
    const std::string_view name = text_.substr(position_, end + 1 - position_);
    if (name.size() < 3 || name[1] == '[') return error("tokens are named by their text, as in <|im_end|>");
    position_ = end + 1;
    return Part{pool_.special(name)};
  }

  // One character of a literal or a class, escapes resolved.
  Result<char32_t> parse_character() {
    if (!take("\\")) {
      const DecodedCodePoint c = decode_code_point(text_, position_);
      position_ += c.num_bytes;
      return c.value;
    }
    if (at_end()) return error("the grammar ends with a backslash");
    const char letter = text_[position_++];
    switch (letter) {
      case 'n':
        return U'\n';
      case 'r':
        return U'\r';
      case 't':
        return U'\t';
      case 'f':
        return U'\f';
      case 'v':
        return U'\v';
      case '0':
        return char32_t{0};
      case 'x':
        return parse_hex(2);
      case 'u':
        return parse_hex(4);
      case 'U':
        return parse_hex(8);
      default:
        if (std::isalnum(static_cast<unsigned char>(letter)) != 0) {
          return error(std::string("unknown escape \\") + letter);
        }
        --position_;
        const DecodedCodePoint c = decode_code_point(text_, position_);
        position_ += c.num_bytes;
        return c.value;
    }
  }

  Result<char32_t> parse_hex(size_t num_digits) {
    uint64_t value = 0;
    for (size_t i = 0; i < num_digits; ++i, ++position_) {
      const char c = at_end() ? ' ' : text_[position_];
      if (std::isxdigit(static_cast<unsigned char>(c)) == 0) return error("a hexadecimal digit was expected");
      value = value * 16 + static_cast<uint64_t>(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    if (value > kMaxCodePoint || (value >= 0xD800 && value <= 0xDFFF)) return error("no such character");
    return static_cast<char32_t>(value);
  }

  NodePool& pool_;
  const std::string_view text_;
  size_t position_ = 0;
  std::map<std::string, RuleEntry> rules_;
};

}  // namespace

Result<NodeIndex> ebnf_to_node(NodePool& pool, std::string_view text) {
  return EbnfParser(pool, text).parse();
}

}  // namespace quire::grammar_internal

// Reads a regular expression into a tree. See grammar_regex.h.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "text/grammar_character_class.h"
#include "text/grammar_regex.h"
#include "text/utf8.h"

namespace quire::grammar_internal {
namespace {

using Kind = RegexNode::Kind;

class RegexParser {
 public:
  RegexParser(std::string_view pattern, const GrammarLimits& limits, CompileWork& work)
      : pattern_(pattern), limits_(limits), work_(work) {}

  Result<RegexNode> parse() {
    if (pattern_.size() > limits_.max_source_bytes) {
      return invalid_argument("the pattern has " + std::to_string(pattern_.size()) + " bytes, more than the " +
                              std::to_string(limits_.max_source_bytes) + " that are allowed");
    }
    if (!is_valid_utf8(pattern_)) return invalid_argument("the pattern is not valid UTF-8");
    ASSIGN_OR_RETURN(RegexNode node, parse_alternatives(0));
    if (!at_end()) return error("')' without '('");
    return node;
  }

 private:
  bool at_end() const { return position_ == pattern_.size(); }
  char peek() const { return pattern_[position_]; }
  bool next_is(std::string_view text) const { return pattern_.substr(position_).starts_with(text); }
  bool take(std::string_view text) {
    if (!next_is(text)) return false;
    position_ += text.size();
    return true;
  }
  char32_t take_code_point() {
    const DecodedCodePoint code_point = decode_code_point(pattern_, position_);
    position_ += code_point.num_bytes;
    return code_point.value;
  }
  Status error(const std::string& what) const {
    return invalid_argument("in the pattern at byte " + std::to_string(position_) + ": " + what);
  }
  Status refused(const std::string& what) const {
    return unimplemented("in the pattern at byte " + std::to_string(position_) + ": " + what);
  }

  static RegexNode make(Kind kind, std::vector<RegexNode> children) {
    RegexNode node{.kind = kind};
    for (const RegexNode& child : children) {
      node.has_anchor = node.has_anchor || child.has_anchor;
      node.num_repetitions = std::max(node.num_repetitions, child.num_repetitions);
    }
    node.children = std::move(children);
    return node;
  }

  Result<RegexNode> parse_alternatives(int depth) {
    if (depth > limits_.max_depth) {
      return error("groups are nested too deep, more than " + std::to_string(limits_.max_depth));
    }
    std::vector<RegexNode> alternatives;
    do {
      ASSIGN_OR_RETURN(RegexNode sequence, parse_sequence(depth));
      alternatives.push_back(std::move(sequence));
    } while (take("|"));
    if (alternatives.size() == 1) return std::move(alternatives[0]);
    return make(Kind::kAlternatives, std::move(alternatives));
  }

  Result<RegexNode> parse_sequence(int depth) {
    std::vector<RegexNode> parts;
    while (!at_end() && peek() != '|' && peek() != ')') {
      ASSIGN_OR_RETURN(RegexNode atom, parse_atom(depth));
      ASSIGN_OR_RETURN(RegexNode part, parse_quantifier(std::move(atom)));
      work_.spend(16 + part.ranges.size());
      RETURN_IF_ERROR(work_.status());
      parts.push_back(std::move(part));
    }
    if (parts.size() == 1) return std::move(parts[0]);
    if (parts.empty()) return RegexNode{};
    return make(Kind::kSequence, std::move(parts));
  }

  Result<RegexNode> parse_atom(int depth) {
    const char c = peek();
    if (c == '(') return parse_group(depth);
    if (c == '[') return parse_class();
    if (c == '\\') return parse_escape();
    if (c == '*' || c == '+' || c == '?') return error(std::string("nothing to repeat before '") + c + "'");
    if (take("^")) return RegexNode{.kind = Kind::kTextStart, .has_anchor = true};
    if (take("$")) return RegexNode{.kind = Kind::kTextEnd, .has_anchor = true};
    if (take(".")) return character(complement_ranges(std::vector<CodePointRange>{{'\n', '\n'}}));
    if (c == '{' && parse_bounds().has_value()) return error("nothing to repeat before '{'");
    const char32_t code_point = take_code_point();
    return character({{code_point, code_point}});
  }

  static RegexNode character(std::vector<CodePointRange> ranges) {
    return {.kind = Kind::kCharacter, .ranges = normalize_ranges(std::move(ranges))};
  }

  Result<RegexNode> parse_group(int depth) {
    const size_t begin = position_;
    take("(");
    if (take("?")) {
      if (next_is("=") || next_is("!") || next_is("<=") || next_is("<!")) {
        return refused("lookaround is not supported: write the pattern without it");
      }
      if (take("P<") || take("<")) {
        const size_t end = pattern_.find('>', position_);
        if (end == std::string_view::npos) return error("the name of a group has no '>'");
        position_ = end + 1;
      } else if (!take(":")) {
        return refused("groups of this kind \"(?" + std::string(pattern_.substr(position_, 1)) +
                       "\" are not supported, only (...), (?:...) and (?<name>...)");
      }
    }
    ASSIGN_OR_RETURN(RegexNode inner, parse_alternatives(depth + 1));
    if (!take(")")) {
      position_ = begin;
      return error("'(' without ')'");
    }
    return inner;
  }

  struct Bounds {
    int64_t min, max;
    size_t end;
  };

  // {m}, {m,}, {,n} or {m,n} at the position; anything else is plain text.
  std::optional<Bounds> parse_bounds() const {
    size_t i = position_ + 1;
    auto number = [&]() -> std::optional<int64_t> {
      std::optional<int64_t> value;
      for (; i < pattern_.size() && pattern_[i] >= '0' && pattern_[i] <= '9'; ++i) {
        value = std::min<int64_t>(1'000'000'000, value.value_or(0) * 10 + (pattern_[i] - '0'));
      }
      return value;
    };
    const std::optional<int64_t> min = number();
    std::optional<int64_t> max = min;
    if (i < pattern_.size() && pattern_[i] == ',') {
      ++i;
      max = number();
      if (!min && !max) return std::nullopt;
      if (!max) max = -1;
    }
    if (!max || i >= pattern_.size() || pattern_[i] != '}') return std::nullopt;
    return Bounds{min.value_or(0), *max, i + 1};
  }

  Result<RegexNode> parse_quantifier(RegexNode atom) {
    if (at_end()) return atom;
    Bounds bounds{0, -1, position_ + 1};
    switch (peek()) {
      case '*':
        break;
      case '+':
        bounds.min = 1;
        break;
      case '?':
        bounds.max = 1;
        break;
      case '{': {
        const std::optional<Bounds> parsed = parse_bounds();
        if (!parsed) return atom;
        bounds = *parsed;
        break;
      }
      default:
        return atom;
    }
    if (atom.kind == Kind::kTextStart || atom.kind == Kind::kTextEnd) return error("'^' and '$' cannot be repeated");
    if (bounds.max != -1 && bounds.max < bounds.min) return error("a repetition whose maximum is below its minimum");
    const int64_t count = std::max<int64_t>({1, bounds.min, bounds.max});
    atom.num_repetitions = std::min<int64_t>(int64_t{1} << 40, atom.num_repetitions * count);
    if (atom.num_repetitions > limits_.max_repetition) {
      return error("repetitions that multiply to more than " + std::to_string(limits_.max_repetition));
    }
    position_ = bounds.end;
    take("?");  // lazy: the same texts
    if (!at_end() && (peek() == '*' || peek() == '+' || peek() == '?' || (peek() == '{' && parse_bounds()))) {
      return error("a repetition of a repetition; put the inner one in a group");
    }
    std::vector<RegexNode> children;
    children.push_back(std::move(atom));
    RegexNode node = make(Kind::kRepeat, std::move(children));
    node.min_count = static_cast<int>(bounds.min);
    node.max_count = static_cast<int>(bounds.max);
    return node;
  }

  Result<RegexNode> parse_escape() {
    const char letter = position_ + 1 < pattern_.size() ? pattern_[position_ + 1] : '\0';
    if (letter == 'b' || letter == 'B') return refused("word boundaries (\\b, \\B) are not supported");
    if (letter >= '1' && letter <= '9') return refused("back-references are not supported");
    if (letter == 'k') return refused("back-references are not supported");
    if (take("\\A")) return RegexNode{.kind = Kind::kTextStart, .has_anchor = true};
    if (take("\\Z") || take("\\z")) return RegexNode{.kind = Kind::kTextEnd, .has_anchor = true};
    ASSIGN_OR_RETURN(std::vector<CodePointRange> ranges, parse_escaped_class());
    return character(std::move(ranges));
  }

  // What follows a backslash, in and out of brackets: a class, or a character as a class of one.
  Result<std::vector<CodePointRange>> parse_escaped_class() {
    take("\\");
    if (at_end()) return error("the pattern ends with a backslash");
    const char letter = peek();
    if (auto named = class_of_escape(letter)) {
      ++position_;
      return std::move(*named);
    }
    if (letter == 'p' || letter == 'P') return parse_category();
    ASSIGN_OR_RETURN(const char32_t value, parse_escaped_character());
    return std::vector<CodePointRange>{{value, value}};
  }

  Result<std::vector<CodePointRange>> parse_category() {
    const bool is_negated = peek() == 'P';
    ++position_;
    std::string_view name = pattern_.substr(position_, 1);
    size_t length = 1;
    if (name == "{") {
      const size_t end = pattern_.find('}', position_);
      if (end == std::string_view::npos) return error("\\p{ without '}'");
      name = pattern_.substr(position_ + 1, end - position_ - 1);
      length = end + 1 - position_;
    }
    auto ranges = class_of_category(name);
    work_.spend(1000);  // it looks at all code points' runs
    if (!ranges) return refused("the Unicode class \\p{" + std::string(name) + "} is not supported");
    position_ += length;
    return is_negated ? complement_ranges(*ranges) : std::move(*ranges);
  }

  Result<char32_t> parse_escaped_character() {
    static constexpr std::pair<char, char32_t> kControls[] = {{'n', '\n'}, {'r', '\r'}, {'t', '\t'}, {'f', '\f'},
                                                              {'v', '\v'}, {'0', 0},    {'a', 7},    {'e', 27}};
    const char letter = peek();
    for (const auto& [name, value] : kControls) {
      if (letter != name) continue;
      ++position_;
      return value;
    }
    if (letter == 'x') return parse_hex(1, 2);
    if (letter == 'u') {
      if (pattern_.substr(position_).starts_with("u{")) {
        const size_t end = pattern_.find('}', position_);
        if (end == std::string_view::npos || end - position_ > 8) return error("\\u{ without '}'");
        ASSIGN_OR_RETURN(const char32_t value, parse_hex(2, end - position_ - 2));
        take("}");
        return value;
      }
      ASSIGN_OR_RETURN(const char32_t high, parse_hex(1, 4));
      if (high < 0xD800 || high > 0xDBFF || !next_is("\\u")) return high;
      const size_t before = position_;
      ++position_;
      ASSIGN_OR_RETURN(const char32_t low, parse_hex(1, 4));
      if (low >= 0xDC00 && low <= 0xDFFF) return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
      position_ = before;
      return high;
    }
    if ((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || (letter >= '0' && letter <= '9')) {
      return error(std::string("unknown escape \\") + letter);
    }
    return take_code_point();
  }

  Result<char32_t> parse_hex(size_t skip, size_t num_digits) {
    position_ += skip;
    const std::string_view digits = pattern_.substr(position_, num_digits);
    char32_t value = 0;
    for (char c : digits) {
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return error("a hexadecimal digit was expected");
      value = value * 16 + static_cast<char32_t>(digit);
    }
    if (num_digits == 0 || digits.size() != num_digits) return error("too few hexadecimal digits");
    if (value > kMaxCodePoint) return error("no such character");
    position_ += num_digits;
    return value;
  }

  Result<RegexNode> parse_class() {
    const size_t begin = position_;
    take("[");
    const bool is_negated = take("^");
    std::vector<CodePointRange> ranges;
    for (bool is_first = true;; is_first = false) {
      if (at_end()) {
        position_ = begin;
        return error("'[' without ']'");
      }
      if (!is_first && take("]")) break;
      if (is_first && next_is("]") && pattern_.find(']', position_ + 1) == std::string_view::npos) {
        return error("an empty class []");
      }
      ASSIGN_OR_RETURN(std::vector<CodePointRange> item, parse_class_item());
      work_.spend(4 + 2 * item.size());
      RETURN_IF_ERROR(work_.status());
      const bool is_one = item.size() == 1 && item[0].first == item[0].last;
      if (next_is("-") && position_ + 1 < pattern_.size() && pattern_[position_ + 1] != ']') {
        if (!is_one) return error("a range of characters that begins with a class");
        take("-");
        ASSIGN_OR_RETURN(const std::vector<CodePointRange> last, parse_class_item());
        if (last.size() != 1 || last[0].first != last[0].last) {
          return error("a range of characters that ends with a class");
        }
        if (last[0].first < item[0].first) return error("a range of characters that runs backwards");
        item[0].last = last[0].first;
      }
      ranges.insert(ranges.end(), item.begin(), item.end());
      if (ranges.size() > 10'000) ranges = normalize_ranges(std::move(ranges));
    }
    ranges = normalize_ranges(std::move(ranges));
    if (is_negated) ranges = complement_ranges(ranges);
    return character(std::move(ranges));
  }

  Result<std::vector<CodePointRange>> parse_class_item() {
    if (next_is("\\b")) {
      position_ += 2;
      return std::vector<CodePointRange>{{8, 8}};
    }
    if (next_is("\\")) return parse_escaped_class();
    const char32_t value = take_code_point();
    return std::vector<CodePointRange>{{value, value}};
  }

  const std::string_view pattern_;
  const GrammarLimits& limits_;
  CompileWork& work_;
  size_t position_ = 0;
};

}  // namespace

Result<RegexNode> parse_regex(std::string_view pattern, const GrammarLimits& limits, CompileWork& work) {
  return RegexParser(pattern, limits, work).parse();
}

}  // namespace quire::grammar_internal

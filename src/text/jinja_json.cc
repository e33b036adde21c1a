// Recursive descent over RFC 8259, the depth bounded. See jinja_json.h.
#include "text/jinja_json.h"

#include <charconv>
#include <cmath>

namespace quire::jinja {
namespace {

static_assert(JsonLimits{}.max_depth < kMaxValueDepth);

class JsonParser {
 public:
  JsonParser(std::string_view text, const JsonLimits& limits) : text_(text), limits_(limits) {}

  Result<Value> run() {
    if (text_.size() > limits_.max_bytes) return resource_exhausted("the JSON text is too long");
    ASSIGN_OR_RETURN(Value value, parse_value(0));
    skip_space();
    if (at_ < text_.size()) return error("unexpected text after the value");
    return value;
  }

 private:
  Status error(const std::string& message) const {
    return invalid_argument("JSON, byte " + std::to_string(at_) + ": " + message);
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r'))
      ++at_;
  }

  bool skip(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  bool skip_word(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  Result<Value> parse_value(int depth) {
    if (depth > limits_.max_depth)
      return resource_exhausted("the JSON nests more than " + std::to_string(limits_.max_depth) + " deep");
    skip_space();
    if (at_ >= text_.size()) return error("a value is missing");
    const char c = text_[at_];
    if (c == '{') return parse_object(depth);
    if (c == '[') return parse_array(depth);
    if (c == '"') {
      ASSIGN_OR_RETURN(std::string string, parse_string());
      return Value::string(std::move(string));
    }
    if (c == '-' || (c >= '0' && c <= '9')) return parse_number();
    if (skip_word("true")) return Value::boolean(true);
    if (skip_word("false")) return Value::boolean(false);
    if (skip_word("null")) return Value::none();
    return error("unexpected character");
  }

  Result<Value> parse_object(int depth) {
    ++at_;
    std::vector<std::pair<std::string, Value>> entries;
    if (skip('}')) return Value::dict({});
    do {
      skip_space();
      if (at_ >= text_.size() || text_[at_] != '"') return error("a key is missing");
      ASSIGN_OR_RETURN(std::string key, parse_string());
      if (!skip(':')) return error("':' is missing");
      ASSIGN_OR_RETURN(Value value, parse_value(depth + 1));
      entries.emplace_back(std::move(key), std::move(value));
    } while (skip(','));
    if (!skip('}')) return error("'}' is missing");
    return Value::dict(std::move(entries));
  }

  Result<Value> parse_array(int depth) {
    ++at_;
    std::vector<Value> items;
    if (skip(']')) return Value::list({});
    do {
      ASSIGN_OR_RETURN(Value value, parse_value(depth + 1));
      items.push_back(std::move(value));
    } while (skip(','));
    if (!skip(']')) return error("']' is missing");
    return Value::list(std::move(items));
  }

  std::optional<uint32_t> parse_hex4() {
    if (text_.size() - at_ < 4) return std::nullopt;
    uint32_t value = 0;
    const auto [end, code] = std::from_chars(text_.data() + at_, text_.data() + at_ + 4, value, 16);
    if (code != std::errc() || end != text_.data() + at_ + 4) return std::nullopt;
    at_ += 4;
    return value;
  }

  Result<std::string> parse_string() {
    ++at_;
    std::string out;
    for (;;) {
      const size_t begin = at_;
      while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' && static_cast<uint8_t>(text_[at_]) >= 0x20)
        ++at_;
      const std::string_view plain = text_.substr(begin, at_ - begin);
      if (!is_valid_utf8(plain)) return error("the text is not UTF-8");
      out.append(plain);
      if (at_ >= text_.size()) return error("a string does not end");
      if (static_cast<uint8_t>(text_[at_]) < 0x20)
        return error("a control character in a string; write it as an escape");
      const char c = text_[at_++];
      if (c == '"') return out;
      if (at_ >= text_.size()) return error("a string does not end");
      constexpr std::string_view kNames = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
      const char escape = text_[at_++];
      if (const size_t index = kNames.find(escape); index != kNames.npos) {
        out.push_back(kValues[index]);
        continue;
      }
      if (escape != 'u') return error("unknown escape in a string");
      std::optional<uint32_t> code_point = parse_hex4();
      if (!code_point) return error("\\u needs four hexadecimal digits");
      if (*code_point >= 0xD800 && *code_point < 0xDC00 && text_.substr(at_).starts_with("\\u")) {
        const size_t before = at_;
        at_ += 2;
        const std::optional<uint32_t> low = parse_hex4();
        if (low && *low >= 0xDC00 && *low < 0xE000) {
          code_point = 0x10000 + ((*code_point - 0xD800) << 10) + (*low - 0xDC00);
        } else {
          at_ = before;
        }
      }
      append_utf8(out, *code_point);
    }
  }

  Result<Value> parse_number() {
    const size_t begin = at_;
    const auto digits = [&] {
      const size_t first = at_;
      while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
      return at_ > first;
    };
    if (text_[at_] == '-') ++at_;
    const size_t whole = at_;
    if (!digits()) return error("a number has no digits");
    if (text_[whole] == '0' && at_ - whole > 1) return error("a number may not begin with 0");
    bool is_float = false;
    if (at_ < text_.size() && text_[at_] == '.') {
      is_float = true;
      ++at_;
      if (!digits()) return error("a number has no digits after the point");
    }
    if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      is_float = true;
      ++at_;
      if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
      if (!digits()) return error("a number has no digits in its exponent");
    }
    const std::string_view number = text_.substr(begin, at_ - begin);
    if (is_float) return parse_float(number);
    int64_t value = 0;
    if (std::from_chars(number.data(), number.data() + number.size(), value).ec == std::errc())
      return Value::integer(value);
    return Value::big_integer(std::string(number));
  }

  static Value parse_float(std::string_view number) {
    double value = 0;
    if (std::from_chars(number.data(), number.data() + number.size(), value).ec == std::errc())
      return Value::number(value);
    // Out of range: nothing or infinity. The mantissa's magnitude counts as well as the exponent, so ask strtod.
    return Value::number(std::strtod(std::string(number).c_str(), nullptr));
  }

  const std::string_view text_;
  const JsonLimits& limits_;
  size_t at_ = 0;
};

}  // namespace

Result<Value> from_json(std::string_view text, const JsonLimits& limits) {
  return JsonParser(text, limits).run();
}

std::string json_quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<uint8_t>(c) < 0x20) {
          constexpr char kHex[] = "0123456789abcdef";
          out += "\\u00";
          out.push_back(kHex[c >> 4]);
          out.push_back(kHex[c & 15]);
        } else {
          out.push_back(c);
        }
    }
  }
  return out + "\"";
}

}  // namespace quire::jinja

#include "text/answer_json_scanner.h"

namespace quire::answer {

bool is_json_space(char byte) {
  return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t';
}

namespace {

bool is_digit(char byte) {
  return byte >= '0' && byte <= '9';
}

int hex_digit(char byte) {
  if (is_digit(byte)) return byte - '0';
  if (byte >= 'a' && byte <= 'f') return byte - 'a' + 10;
  if (byte >= 'A' && byte <= 'F') return byte - 'A' + 10;
  return -1;
}

}  // namespace

void JsonScanner::reset() {
  *this = JsonScanner();
}

bool JsonScanner::may_end() const {
  if (!closers_.empty()) return false;
  return state_ == State::kZero || state_ == State::kInteger || state_ == State::kFraction ||
         state_ == State::kExponentDigits || state_ == State::kEnded;
}

JsonScanner::Step JsonScanner::end_value() {
  if (closers_.empty()) {
    state_ = State::kEnded;
    return Step::kDone;
  }
  state_ = State::kAfterValue;
  return Step::kMore;
}

JsonScanner::Step JsonScanner::close(char byte) {
  if (closers_.empty() || closers_.back() != byte) return Step::kError;
  closers_.pop_back();
  return end_value();
}

JsonScanner::Step JsonScanner::begin_value(char byte) {
  const auto go = [&](State state) {
    state_ = state;
    return Step::kMore;
  };
  switch (byte) {
    case '{':
    case '[':
      if (closers_.size() >= kMaxDepth) return Step::kError;
      closers_.push_back(byte == '{' ? '}' : ']');
      return go(byte == '{' ? State::kKeyOrClose : State::kValueOrClose);
    case '"':
      is_key_ = false;
      return go(State::kString);
    case 't':
      literal_ = "rue";
      return go(State::kLiteral);
    case 'f':
      literal_ = "alse";
      return go(State::kLiteral);
    case 'n':
      literal_ = "ull";
      return go(State::kLiteral);
    case '-':
      return go(State::kMinus);
    case '0':
      return go(State::kZero);
    default:
      return is_digit(byte) ? go(State::kInteger) : Step::kError;
  }
}

JsonScanner::Step JsonScanner::add_to_number(char byte) {
  const auto go = [&](State state) {
    state_ = state;
    return Step::kMore;
  };
  const bool is_exponent = byte == 'e' || byte == 'E';
  switch (state_) {
    case State::kMinus:
      return byte == '0' ? go(State::kZero) : is_digit(byte) ? go(State::kInteger) : Step::kError;
    case State::kInteger:
      if (is_digit(byte)) return Step::kMore;
      [[fallthrough]];
    case State::kZero:
      if (byte == '.') return go(State::kPoint);
      if (is_exponent) return go(State::kExponent);
      break;
    case State::kPoint:
      return is_digit(byte) ? go(State::kFraction) : Step::kError;
    case State::kFraction:
      if (is_digit(byte)) return Step::kMore;
      if (is_exponent) return go(State::kExponent);
      break;
    case State::kExponent:
      if (byte == '+' || byte == '-') return go(State::kExponentSign);
      [[fallthrough]];
    case State::kExponentSign:
      return is_digit(byte) ? go(State::kExponentDigits) : Step::kError;
    default:  // kExponentDigits
      if (is_digit(byte)) return Step::kMore;
      break;
  }
  // The number has ended, and the byte belongs to what is around it.
  if (end_value() == Step::kDone) return Step::kDoneBefore;
  return add(byte);
}

JsonScanner::Step JsonScanner::add(char byte) {
  switch (state_) {
    case State::kValue:
      return is_json_space(byte) ? Step::kMore : begin_value(byte);
    case State::kValueOrClose:
      if (is_json_space(byte)) return Step::kMore;
      return byte == ']' ? close(byte) : begin_value(byte);
    case State::kKeyOrClose:
      if (byte == '}') return close(byte);
      [[fallthrough]];
    case State::kKey:
      if (is_json_space(byte)) return Step::kMore;
      if (byte != '"') return Step::kError;
      is_key_ = true;
      state_ = State::kString;
      return Step::kMore;
    case State::kColon:
      if (is_json_space(byte)) return Step::kMore;
      if (byte != ':') return Step::kError;
      state_ = State::kValue;
      return Step::kMore;
    case State::kAfterValue:
      if (is_json_space(byte)) return Step::kMore;
      if (byte != ',') return close(byte);
      state_ = closers_.back() == '}' ? State::kKey : State::kValue;
      return Step::kMore;
    case State::kString:
      if (byte == '\\') {
        state_ = State::kEscape;
      } else if (byte == '"') {
        if (!is_key_) return end_value();
        state_ = State::kColon;
      }
      return Step::kMore;
    case State::kEscape:
      if (byte == 'u') {
        num_digits_ = 4;
        state_ = State::kUnicode;
        return Step::kMore;
      }
      if (std::string_view("\"\\/bfnrt").find(byte) == std::string_view::npos) return Step::kError;
      state_ = State::kString;
      return Step::kMore;
    case State::kUnicode:
      if (hex_digit(byte) < 0) return Step::kError;
      if (--num_digits_ == 0) state_ = State::kString;
      return Step::kMore;
    case State::kLiteral:
      if (byte != literal_.front()) return Step::kError;
      literal_.remove_prefix(1);
      return literal_.empty() ? end_value() : Step::kMore;
    case State::kEnded:
      return Step::kError;
    default:
      return add_to_number(byte);
  }
}

JsonStringReader::Step JsonStringReader::add(char byte, std::string* out) {
  if (num_digits_ > 0) {
    const int digit = hex_digit(byte);
    if (digit < 0) return Step::kError;
    code_ = code_ * 16 + static_cast<uint32_t>(digit);
    if (--num_digits_ > 0) return Step::kMore;
    const bool is_high = code_ >= 0xD800 && code_ < 0xDC00;
    const bool is_low = code_ >= 0xDC00 && code_ < 0xE000;
    if (is_low && high_surrogate_ != 0) {
      append_code_point(0x10000 + ((high_surrogate_ - 0xD800) << 10) + (code_ - 0xDC00), out);
      high_surrogate_ = 0;
      return Step::kMore;
    }
    if (high_surrogate_ != 0) append_code_point(0xFFFD, out);
    high_surrogate_ = is_high ? code_ : 0;
    if (!is_high) append_code_point(code_, out);
    return Step::kMore;
  }
  if (is_escape_) {
    is_escape_ = false;
    if (byte == 'u') {
      num_digits_ = 4;
      code_ = 0;
      return Step::kMore;
    }
  } else if (byte == '\\') {
    is_escape_ = true;
    return Step::kMore;
  } else {
    if (high_surrogate_ != 0) append_code_point(0xFFFD, out);
    high_surrogate_ = 0;
    if (byte == '"') return Step::kDone;
    out->push_back(byte);
    return Step::kMore;
  }
  if (high_surrogate_ != 0) append_code_point(0xFFFD, out);
  high_surrogate_ = 0;
  constexpr std::string_view kNames = "\"\\/bfnrt";
  constexpr std::string_view kBytes = "\"\\/\b\f\n\r\t";
  const size_t at = kNames.find(byte);
  if (at == std::string_view::npos) return Step::kError;
  out->push_back(kBytes[at]);
  return Step::kMore;
}

void append_code_point(uint32_t code, std::string* out) {
  if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) code = 0xFFFD;
  const auto put = [&](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

void append_json_escaped(std::string_view text, std::string* out) {
  constexpr char kHex[] = "0123456789abcdef";
  for (const char byte : text) {
    switch (byte) {
      case '"':
        *out += "\\\"";
        break;
      case '\\':
        *out += "\\\\";
        break;
      case '\n':
        *out += "\\n";
        break;
      case '\r':
        *out += "\\r";
        break;
      case '\t':
        *out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(byte) < 0x20) {
          *out += "\\u00";
          out->push_back(kHex[byte >> 4]);
          out->push_back(kHex[byte & 15]);
        } else {
          out->push_back(byte);
        }
    }
  }
}

bool is_whole_json(std::string_view text) {
  while (!text.empty() && is_json_space(text.back())) text.remove_suffix(1);
  JsonScanner scanner;
  for (size_t i = 0; i < text.size(); ++i) {
    if (scanner.is_in_string() && static_cast<unsigned char>(text[i]) < 0x20) return false;
    const JsonScanner::Step step = scanner.add(text[i]);
    if (step == JsonScanner::Step::kDone) return i + 1 == text.size();
    if (step != JsonScanner::Step::kMore) return false;
  }
  return scanner.may_end();
}

}  // namespace quire::answer

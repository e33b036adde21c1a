// Format specifications ("{:>8,.2f}") and %-formatting, as Python's. Digits come from std::to_chars: no locale.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "text/jinja_format.h"

namespace quire::jinja {
namespace {

struct Specification {
  Text fill = Text(" ", false);
  char align = '\0';
  char sign = '\0';
  bool is_alternate = false;
  bool is_zero_padded = false;
  int64_t width = -1;
  char grouping = '\0';
  int64_t precision = -1;
  char type = '\0';
};

bool is_align(char c) {
  return c == '<' || c == '>' || c == '=' || c == '^';
}

// Digits up to a size no output reaches; none where there is no digit.
std::optional<int64_t> parse_number(std::string_view text, size_t& at) {
  const size_t begin = at;
  int64_t value = 0;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') {
    value = std::min<int64_t>(value * 10 + (text[at] - '0'), int64_t{1} << 40);
    ++at;
  }
  return at == begin ? std::nullopt : std::optional<int64_t>(value);
}

Result<Specification> parse_specification(const Text& text) {
  Specification spec;
  const std::string_view bytes = text.bytes();
  size_t at = 0;
  if (!bytes.empty()) {
    const size_t fill_size = code_point_at(bytes, 0).num_bytes;
    if (fill_size < bytes.size() && is_align(bytes[fill_size])) {
      spec.fill = text.substr(0, fill_size);
      spec.align = bytes[fill_size];
      at = fill_size + 1;
    } else if (is_align(bytes[0])) {
      spec.align = bytes[0];
      at = 1;
    }
  }
  const auto take = [&](std::string_view any_of) {
    return at < bytes.size() && any_of.find(bytes[at]) != any_of.npos ? bytes[at++] : '\0';
  };
  spec.sign = take("+- ");
  spec.is_alternate = take("#") != '\0';
  if (take("0") != '\0') {
    spec.is_zero_padded = true;
    if (spec.align == '\0') {
      spec.fill = Text("0", false);
      spec.align = '=';
    }
  }
  spec.width = parse_number(bytes, at).value_or(-1);
  spec.grouping = take(",_");
  if (take(".") != '\0') {
    const std::optional<int64_t> precision = parse_number(bytes, at);
    if (!precision) return invalid_argument("Format specifier missing precision");
    spec.precision = *precision;
  }
  if (at < bytes.size()) spec.type = bytes[at++];
  if (at < bytes.size()) return invalid_argument("Invalid format specifier '" + std::string(bytes) + "'");
  return spec;
}

std::string group_digits(const std::string& digits, char separator, size_t every) {
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % every == 0) out.push_back(separator);
    out.push_back(digits[i]);
  }
  return out;
}

Result<Text> pad(Runtime& runtime, const Specification& spec, const Text& prefix, const Text& body,
                 char default_align) {
  const size_t length = count_code_points(prefix.bytes()) + count_code_points(body.bytes());
  const size_t width = spec.width > 0 ? static_cast<size_t>(spec.width) : 0;
  const size_t missing = width > length ? width - length : 0;
  if (missing > runtime.limits().max_output_bytes) return runtime.check_string_size(missing);
  RETURN_IF_ERROR(runtime.check_string_size(prefix.size() + body.size() + missing * spec.fill.size()));
  const char align = spec.align != '\0' ? spec.align : default_align;
  const size_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  Text out;
  if (align == '=') out.append(prefix);
  for (size_t i = 0; i < left; ++i) out.append(spec.fill);
  if (align != '=') out.append(prefix);
  out.append(body);
  for (size_t i = left; i < missing; ++i) out.append(spec.fill);
  return out;
}

std::string sign_of(bool is_negative, char sign) {
  if (is_negative) return "-";
  return sign == '+' ? "+" : sign == ' ' ? " " : "";
}

// Groups the digits before the point; zero padding takes part in the grouping, as Python has it.
std::string group_number(std::string digits, const Specification& spec, size_t every, size_t num_sign_chars) {
  if (spec.grouping == '\0') return digits;
  const size_t whole = std::min(digits.find_first_not_of("0123456789abcdefABCDEF"), digits.size());
  const std::string rest = digits.substr(whole);
  std::string grouped = group_digits(digits.substr(0, whole), spec.grouping, every);
  if (spec.is_zero_padded && spec.align == '=') {
    std::string padded = digits.substr(0, whole);
    while (static_cast<int64_t>(grouped.size() + rest.size() + num_sign_chars) < std::min<int64_t>(spec.width, 4096)) {
      padded.insert(padded.begin(), '0');
      grouped = group_digits(padded, spec.grouping, every);
    }
  }
  return grouped + rest;
}

Result<std::string> float_digits(double magnitude, char type, int64_t precision, bool is_alternate) {
  if (std::isnan(magnitude) || std::isinf(magnitude)) {
    std::string text = std::isnan(magnitude) ? "nan" : "inf";
    if (type == 'F' || type == 'E' || type == 'G')
      std::transform(text.begin(), text.end(), text.begin(), [](char c) { return static_cast<char>(c - 32); });
    return text;
  }
  if (precision > 1000) return invalid_argument("a precision of more than 1000 digits is not supported");
  const char lower = static_cast<char>(type | 0x20);
  const int digits = static_cast<int>(precision < 0 ? 6 : (lower == 'g' && precision == 0) ? 1 : precision);
  char buffer[1500];
  const auto format = lower == 'f'   ? std::chars_format::fixed
                      : lower == 'e' ? std::chars_format::scientific
                                     : std::chars_format::general;
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), magnitude, format, digits);
  std::string text(buffer, result.ptr);
  if (is_alternate && lower != 'g' && text.find('.') == text.npos) {
    text.insert(std::min(text.find('e'), text.size()), ".");
  }
  if (type < 'a') std::transform(text.begin(), text.end(), text.begin(), [](char c) { return c == 'e' ? 'E' : c; });
  return text;
}

Result<Text> format_float(Runtime& runtime, double value, const Specification& spec) {
  const bool is_negative = std::signbit(value) && !std::isnan(value);
  const double magnitude = std::fabs(value);
  std::string digits;
  switch (spec.type) {
    case '\0':
      if (spec.precision < 0) {
        digits = float_repr(magnitude);
      } else {
        ASSIGN_OR_RETURN(digits, float_digits(magnitude, 'g', spec.precision, false));
        if (digits.find_first_of(".enai") == digits.npos) digits += ".0";
      }
      break;
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G': {
      ASSIGN_OR_RETURN(digits, float_digits(magnitude, spec.type, spec.precision, spec.is_alternate));
      break;
    }
    case 'n': {
      ASSIGN_OR_RETURN(digits, float_digits(magnitude, 'g', spec.precision, spec.is_alternate));
      break;
    }
    case '%': {
      ASSIGN_OR_RETURN(digits, float_digits(magnitude * 100, 'f', spec.precision, spec.is_alternate));
      digits += '%';
      break;
    }
    default:
      return invalid_argument(std::string("Unknown format code '") + spec.type + "' for object of type 'float'");
  }
  const std::string sign = sign_of(is_negative, spec.sign);
  digits = group_number(std::move(digits), spec, 3, sign.size());
  return pad(runtime, spec, Text(sign, false), Text(digits, false), '>');
}

std::string integer_digits(uint64_t magnitude, int base, bool is_upper) {
  char buffer[70];
  std::string text(buffer, std::to_chars(buffer, buffer + sizeof(buffer), magnitude, base).ptr);
  if (is_upper)
    std::transform(text.begin(), text.end(), text.begin(),
                   [](char c) { return c >= 'a' ? static_cast<char>(c - 32) : c; });
  return text;
}

uint64_t magnitude_of(int64_t value) {
  return value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
}

Result<Text> format_integer(Runtime& runtime, int64_t value, Specification spec) {
  if (std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos && spec.type != '\0') {
    return format_float(runtime, static_cast<double>(value), spec);
  }
  if (spec.precision >= 0) return invalid_argument("Precision not allowed in integer format specifier");
  if (spec.type == 'c') {
    if (value < 0 || value > 0x10FFFF) return invalid_argument("%c arg not in range(0x110000)");
    std::string text;
    append_utf8(text, static_cast<uint32_t>(value));
    return pad(runtime, spec, Text(), Text(text, false), '>');
  }
  int base = 10;
  switch (spec.type) {
    case '\0':
    case 'd':
    case 'n':
      break;
    case 'b':
      base = 2;
      break;
    case 'o':
      base = 8;
      break;
    case 'x':
    case 'X':
      base = 16;
      break;
    default:
      return invalid_argument(std::string("Unknown format code '") + spec.type + "' for object of type 'int'");
  }
  if (base != 10 && spec.grouping == ',') return invalid_argument("Cannot specify ',' with this format code.");
  std::string prefix = sign_of(value < 0, spec.sign);
  if (spec.is_alternate && base != 10) prefix += std::string("0") + spec.type;
  std::string digits = integer_digits(magnitude_of(value), base, spec.type == 'X');
  digits = group_number(std::move(digits), spec, base == 10 ? 3 : 4, prefix.size());
  return pad(runtime, spec, Text(prefix, false), Text(digits, false), '>');
}

// ---- % ----

struct Conversion {
  bool is_left = false, has_plus = false, has_space = false, is_alternate = false, is_zero = false;
  int64_t width = -1, precision = -1;
  char type = '\0';
};

class PercentFormatter {
 public:
  PercentFormatter(Runtime& runtime, const Text& format, const Value& values)
      : runtime_(runtime), format_(format), bytes_(format.bytes()), values_(values) {}

  Result<Text> run() {
    size_t at = 0;
    while (at < bytes_.size()) {
      const size_t percent = std::min(bytes_.find('%', at), bytes_.size());
      out_.append(format_, at, percent);
      at = percent;
      if (at < bytes_.size()) RETURN_IF_ERROR(convert(at));
      RETURN_IF_ERROR(runtime_.check_string_size(out_.size()));
    }
    const size_t num_values = values_.kind() == Kind::kTuple ? values_.items().size() : 1;
    const bool is_mapping =
        values_.is_dict() || values_.kind() == Kind::kList || values_.is_undefined() || values_.kind() == Kind::kRange;
    if (next_ < num_values && !is_mapping) {
      return invalid_argument("not all arguments converted during string formatting");
    }
    return std::move(out_);
  }

 private:
  Result<Value> next_value() {
    if (values_.kind() != Kind::kTuple) {
      if (next_++ > 0) return invalid_argument("not enough arguments for format string");
      return values_;
    }
    if (next_ >= values_.items().size()) return invalid_argument("not enough arguments for format string");
    return values_.items()[next_++];
  }

  Result<int64_t> star_value() {
    ASSIGN_OR_RETURN(const Value value, next_value());
    if (!value.is_int_like()) return invalid_argument("* wants int");
    return std::clamp<int64_t>(value.int_value(), -(int64_t{1} << 40), int64_t{1} << 40);
  }

  Status convert(size_t& at) {
    Conversion conversion;
    std::optional<Value> named;
    ++at;
    if (at < bytes_.size() && bytes_[at] == '(') {
      const size_t begin = ++at;
      for (int open = 1; at < bytes_.size(); ++at) {
        open += bytes_[at] == '(' ? 1 : bytes_[at] == ')' ? -1 : 0;
        if (open == 0) break;
      }
      if (at >= bytes_.size()) return invalid_argument("incomplete format key");
      if (!values_.is_dict()) return invalid_argument("format requires a mapping");
      const std::string_view key = bytes_.substr(begin, at - begin);
      const Value* found = values_.dict_object().find(key);
      if (found == nullptr) return invalid_argument("KeyError: '" + std::string(key) + "'");
      named = *found;
      ++at;
    }
    for (; at < bytes_.size(); ++at) {
      const char c = bytes_[at];
      if (c == '-')
        conversion.is_left = true;
      else if (c == '+')
        conversion.has_plus = true;
      else if (c == ' ')
        conversion.has_space = true;
      else if (c == '#')
        conversion.is_alternate = true;
      else if (c == '0')
        conversion.is_zero = true;
      else
        break;
    }
    if (at < bytes_.size() && bytes_[at] == '*') {
      ASSIGN_OR_RETURN(conversion.width, star_value());
      if (conversion.width < 0) {
        conversion.is_left = true;
        conversion.width = -conversion.width;
      }
      ++at;
    } else {
      conversion.width = parse_number(bytes_, at).value_or(-1);
    }
    if (at < bytes_.size() && bytes_[at] == '.') {
      ++at;
      if (at < bytes_.size() && bytes_[at] == '*') {
        ASSIGN_OR_RETURN(const int64_t precision, star_value());
        conversion.precision = std::max<int64_t>(precision, 0);
        ++at;
      } else {
        conversion.precision = parse_number(bytes_, at).value_or(0);
      }
    }
    while (at < bytes_.size() && (bytes_[at] == 'h' || bytes_[at] == 'l' || bytes_[at] == 'L')) ++at;
    if (at >= bytes_.size()) return invalid_argument("incomplete format");
    conversion.type = bytes_[at];
    if (conversion.type == '%') {
      out_.append(format_, at, at + 1);
      ++at;
      return ok_status();
    }
    ++at;
    Value value;
    if (named) {
      value = *named;
    } else {
      ASSIGN_OR_RETURN(value, next_value());
    }
    return append_converted(conversion, value);
  }

  Status append_converted(const Conversion& conversion, const Value& value) {
    Specification spec;
    spec.width = conversion.width;
    spec.align = conversion.is_left ? '<' : '>';
    spec.sign = conversion.has_plus ? '+' : conversion.has_space ? ' ' : '\0';
    Text prefix, body;
    bool is_numeric = true;
    switch (conversion.type) {
      case 's':
      case 'r':
      case 'a':
      case 'c': {
        is_numeric = false;
        ASSIGN_OR_RETURN(body, convert_text(conversion, value));
        break;
      }
      case 'd':
      case 'i':
      case 'u':
      case 'o':
      case 'x':
      case 'X': {
        int64_t number = 0;
        if (value.is_int_like()) {
          number = value.int_value();
        } else if (value.kind() == Kind::kFloat &&
                   (conversion.type == 'd' || conversion.type == 'i' || conversion.type == 'u')) {
          if (!std::isfinite(value.float_value())) return invalid_argument("cannot convert this float to an integer");
          const Value whole = Value::whole_number(value.float_value());
          if (whole.kind() == Kind::kBigInt) {
            std::string digits = whole.as<BigIntObject>().digits;
            const bool is_negative = digits[0] == '-';
            prefix = Text(sign_of(is_negative, spec.sign), false);
            body = Text(digits.substr(is_negative ? 1 : 0), false);
            break;
          }
          number = whole.int_value();
        } else {
          if (value.is_undefined()) return undefined_error(value);
          return invalid_argument(std::string("%") + conversion.type + " format: a real number is required, not " +
                                  type_name(value));
        }
        const int base = conversion.type == 'o' ? 8 : (conversion.type | 0x20) == 'x' ? 16 : 10;
        std::string sign = sign_of(number < 0, spec.sign);
        if (conversion.is_alternate && base != 10) sign += std::string("0") + conversion.type;
        std::string digits = integer_digits(magnitude_of(number), base, conversion.type == 'X');
        if (conversion.precision > static_cast<int64_t>(digits.size())) {
          RETURN_IF_ERROR(runtime_.check_string_size(static_cast<size_t>(conversion.precision)));
          digits.insert(0, static_cast<size_t>(conversion.precision) - digits.size(), '0');
        }
        prefix = Text(sign, false);
        body = Text(digits, false);
        break;
      }
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G': {
        if (!value.is_number()) {
          if (value.is_undefined()) return undefined_error(value);
          return invalid_argument(std::string("must be real number, not ") + type_name(value));
        }
        const double number = value.to_double();
        ASSIGN_OR_RETURN(const std::string digits, float_digits(std::fabs(number), conversion.type,
                                                                conversion.precision, conversion.is_alternate));
        prefix = Text(sign_of(std::signbit(number) && !std::isnan(number), spec.sign), false);
        body = Text(digits, false);
        break;
      }
      default:
        return invalid_argument(std::string("unsupported format character '") + conversion.type + "'");
    }
    if (conversion.is_zero && is_numeric && !conversion.is_left) {
      spec.fill = Text("0", false);
      spec.align = '=';
    }
    ASSIGN_OR_RETURN(const Text padded, pad(runtime_, spec, prefix, body, '>'));
    out_.append(padded);
    return ok_status();
  }

  Result<Text> convert_text(const Conversion& conversion, const Value& value) {
    Text text;
    if (conversion.type == 'c') {
      if (value.is_string() && value.str().num_chars == 1) return value.text();
      if (!value.is_int_like()) return invalid_argument("%c requires int or char");
      if (value.int_value() < 0 || value.int_value() > 0x10FFFF)
        return invalid_argument("%c arg not in range(0x110000)");
      std::string bytes;
      append_utf8(bytes, static_cast<uint32_t>(value.int_value()));
      return Text(std::move(bytes), false);
    }
    if (conversion.type == 'a') return unimplemented("%a is not supported in chat templates");
    if (conversion.type == 's') {
      RETURN_IF_ERROR(append_str(runtime_, text, value));
    } else {
      RETURN_IF_ERROR(append_repr(runtime_, text, value));
    }
    if (conversion.precision < 0) return text;
    size_t end = 0;
    for (int64_t i = 0; i < conversion.precision && end < text.size(); ++i)
      end += code_point_at(text.bytes(), end).num_bytes;
    return text.substr(0, end);
  }

  Runtime& runtime_;
  const Text& format_;
  const std::string_view bytes_;
  const Value& values_;
  Text out_;
  size_t next_ = 0;
};

}  // namespace

Result<Text> format_value(Runtime& runtime, const Value& value, const Text& specification) {
  if (specification.is_empty()) return to_text(runtime, value);
  const bool is_formattable = value.is_string() || value.is_number();
  if (!is_formattable) {
    return invalid_argument(std::string("unsupported format string passed to ") + type_name(value) + ".__format__");
  }
  ASSIGN_OR_RETURN(Specification spec, parse_specification(specification));
  if (value.is_int_like()) return format_integer(runtime, value.int_value(), std::move(spec));
  if (value.kind() == Kind::kFloat) return format_float(runtime, value.float_value(), spec);
  if (spec.type != '\0' && spec.type != 's') {
    return invalid_argument(std::string("Unknown format code '") + spec.type + "' for object of type 'str'");
  }
  if (spec.sign != '\0' || spec.is_alternate || spec.grouping != '\0' || (spec.align == '=' && !spec.is_zero_padded)) {
    return invalid_argument("this format specifier is not allowed for strings");
  }
  if (spec.is_zero_padded && spec.align == '=') spec.align = '<';
  Text text = value.text();
  if (spec.precision >= 0) {
    const size_t length = std::min<size_t>(static_cast<size_t>(spec.precision), value.str().num_chars);
    text = text.substr(0, value.str().offset_of(length));
  }
  return pad(runtime, spec, Text(), text, '<');
}

Result<Text> format_percent(Runtime& runtime, const Text& format, const Value& values) {
  return PercentFormatter(runtime, format, values).run();
}

}  // namespace quire::jinja

// Finds filters by name, and the filters of numbers and of any value. See jinja_filters.h.
#include "text/jinja_filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja_attributes.h"
#include "text/jinja_format.h"
#include "text/jinja_operators.h"
#include "text/jinja_unicode.h"

namespace quire::jinja {
namespace {

Result<Value> default_filter(Runtime&, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound,
                   bind_arguments("default", arguments, {"default_value", "boolean"}, 0));
  const bool replaces_false = !bound[1].is_missing() && is_true(bound[1]);
  if (!input.is_undefined() && !(replaces_false && !is_true(input))) return input;
  return bound[0].is_missing() ? Value::string("", true) : bound[0];
}

Result<Value> abs_filter(Runtime&, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(bind_arguments("abs", arguments, {}, 0).status());
  if (input.kind() == Kind::kFloat) return Value::number(std::fabs(input.float_value()));
  if (input.is_int_like()) return input.int_value() < 0 ? negate(input) : Value::integer(input.int_value());
  if (input.is_undefined()) return undefined_error(input);
  return invalid_argument(std::string("bad operand type for abs(): '") + type_name(input) + "'");
}

// The text of a number as Python's int() and float() accept it: spaces around, single underscores between digits,
// digits of any script.
std::optional<std::string> clean_number(std::string_view bytes) {
  size_t begin = 0, end = bytes.size();
  while (begin < end && is_python_space(code_point_at(bytes, begin).value)) {
    begin += code_point_at(bytes, begin).num_bytes;
  }
  while (end > begin && is_python_space(code_point_at(bytes, previous_offset(bytes, end)).value)) {
    end = previous_offset(bytes, end);
  }
  std::string plain;
  for (size_t i = begin; i < end;) {
    const CodePoint point = code_point_at(bytes, i);
    const int digit = decimal_value(point.value);
    if (digit < 0 && point.value >= 0x80) return std::nullopt;
    plain.push_back(static_cast<char>(digit >= 0 ? '0' + digit : static_cast<int>(point.value)));
    i += point.num_bytes;
  }
  const auto is_alnum = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  std::string out;
  for (size_t i = 0; i < plain.size(); ++i) {
    if (plain[i] != '_') {
      out.push_back(plain[i]);
    } else if (i == 0 || i + 1 >= plain.size() || !is_alnum(plain[i - 1]) || !is_alnum(plain[i + 1])) {
      return std::nullopt;
    }
  }
  if (out.empty()) return std::nullopt;
  return out;
}

std::optional<double> parse_float(std::string_view bytes) {
  std::optional<std::string> text = clean_number(bytes);
  if (!text) return std::nullopt;
  std::string_view digits = *text;
  bool is_negative = false;
  if (digits.starts_with('+') || digits.starts_with('-')) {
    is_negative = digits[0] == '-';
    digits.remove_prefix(1);
  }
  std::string lower(digits);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  double value = 0;
  if (lower == "inf" || lower == "infinity") {
    value = HUGE_VAL;
  } else if (lower == "nan") {
    value = std::nan("");
  } else {
    if (lower.empty() || (lower[0] != '.' && (lower[0] < '0' || lower[0] > '9'))) return std::nullopt;
    const auto [end, code] = std::from_chars(lower.data(), lower.data() + lower.size(), value);
    if (end != lower.data() + lower.size()) return std::nullopt;
    if (code == std::errc::result_out_of_range) {
      // Too large or too small: the exponent's sign tells which, where there is one.
      const size_t exponent = lower.find('e');
      value = exponent != lower.npos && lower[exponent + 1] == '-' ? 0.0 : HUGE_VAL;
    } else if (code != std::errc()) {
      return std::nullopt;
    }
  }
  return is_negative ? -value : value;
}

enum class IntParse { kValue, kNotAnInt, kTooLarge };

IntParse parse_int(std::string_view bytes, int64_t base, int64_t* value) {
  std::optional<std::string> text = clean_number(bytes);
  if (!text) return IntParse::kNotAnInt;
  std::string_view digits = *text;
  const bool is_negative = digits.starts_with('-');
  if (digits.starts_with('+') || digits.starts_with('-')) digits.remove_prefix(1);
  if (digits.size() > 2 && digits[0] == '0') {
    const char kind = static_cast<char>(digits[1] | 0x20);
    const int64_t named_base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
    if (named_base != 0 && (base == 0 || base == named_base)) {
      base = named_base;
      digits.remove_prefix(2);
    }
  }
  if (base == 0) {
    if (digits.size() > 1 && digits[0] == '0' && digits.find_first_not_of('0') != digits.npos)
      return IntParse::kNotAnInt;
    base = 10;
  }
  if (digits.empty() || digits[0] == '-') return IntParse::kNotAnInt;
  const std::string signed_digits = (is_negative ? "-" : "") + std::string(digits);
  const auto [end, code] = std::from_chars(signed_digits.data(), signed_digits.data() + signed_digits.size(), *value,
                                           static_cast<int>(base));
  if (code == std::errc::result_out_of_range) return IntParse::kTooLarge;
  return code == std::errc() && end == signed_digits.data() + signed_digits.size() ? IntParse::kValue
                                                                                   : IntParse::kNotAnInt;
}

Result<Value> int_filter(Runtime&, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, bind_arguments("int", arguments, {"default", "base"}, 0));
  const Value fallback = bound[0].is_missing() ? Value::integer(0) : bound[0];
  if (input.is_undefined()) return undefined_error(input);
  if (input.is_int_like()) return Value::integer(input.int_value());
  if (input.kind() == Kind::kBigInt) return input;
  std::optional<double> number;
  if (input.is_string()) {
    int64_t base = 10;
    if (!bound[1].is_missing()) {
      if (!bound[1].is_int_like()) return fallback;
      base = bound[1].int_value();
    }
    int64_t value = 0;
    if (base == 0 || (base >= 2 && base <= 36)) {
      const IntParse parsed = parse_int(input.bytes(), base, &value);
      if (parsed == IntParse::kValue) return Value::integer(value);
      if (parsed == IntParse::kTooLarge) return invalid_argument("an integer in the chat template exceeds 64 bits");
    }
    number = parse_float(input.bytes());
  } else if (input.kind() == Kind::kFloat) {
    number = input.float_value();
    if (std::isinf(*number)) return invalid_argument("cannot convert float infinity to integer");
  }
  if (!number || std::isnan(*number) || std::isinf(*number)) return fallback;
  return Value::whole_number(*number);
}

Result<Value> float_filter(Runtime&, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, bind_arguments("float", arguments, {"default"}, 0));
  if (input.is_undefined()) return undefined_error(input);
  if (input.is_number()) return Value::number(input.to_double());
  if (input.is_string()) {
    if (const std::optional<double> number = parse_float(input.bytes())) return Value::number(*number);
  }
  return bound[0].is_missing() ? Value::number(0.0) : bound[0];
}

// Rounds half to even on the exact decimal value, as Python's round() does: the digits are printed and read back.
double round_half_even(double value, int64_t precision) {
  if (!std::isfinite(value) || precision > 300) return value;
  if (precision < -308) return std::copysign(0.0, value);
  if (precision >= 0) {
    char buffer[800];
    const auto end =
        std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed, static_cast<int>(precision))
            .ptr;
    double rounded = value;
    std::from_chars(buffer, end, rounded);
    return rounded;
  }
  const double unit = std::pow(10.0, static_cast<double>(-precision));
  return std::nearbyint(value / unit) * unit;
}

Result<Value> round_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, bind_arguments("round", arguments, {"precision", "method"}, 0));
  std::string_view method = "common";
  if (!bound[1].is_missing()) method = bound[1].is_string() ? bound[1].bytes() : "";
  if (method != "common" && method != "ceil" && method != "floor") {
    return invalid_argument("method must be common, ceil or floor");
  }
  if (input.is_undefined()) return undefined_error(input);
  const bool has_none = !bound[0].is_missing() && bound[0].is_none();
  if (!bound[0].is_missing() && !has_none && !bound[0].is_int_like()) {
    return invalid_argument(std::string("'") + type_name(bound[0]) + "' object cannot be interpreted as an integer");
  }
  const int64_t precision = bound[0].is_missing() || has_none ? 0 : bound[0].int_value();
  if (!input.is_number()) {
    return invalid_argument(std::string("type ") + type_name(input) + " doesn't define __round__ method");
  }
  if (method == "common") {
    if (input.is_int_like()) {
      if (precision >= 0) return Value::integer(input.int_value());
      if (precision < -18) return Value::integer(0);
      int64_t unit = 1;
      for (int64_t i = 0; i < -precision; ++i) unit *= 10;
      const int64_t value = input.int_value();
      int64_t quotient = value / unit, rest = std::abs(value % unit);
      if (rest > unit - rest || (rest == unit - rest && quotient % 2 != 0)) quotient += value < 0 ? -1 : 1;
      return apply_binary(runtime, BinaryOperator::kMul, Value::integer(quotient), Value::integer(unit));
    }
    const double value = input.float_value();
    if (has_none) {
      if (!std::isfinite(value)) return invalid_argument("cannot convert this float to an integer");
      return Value::whole_number(std::nearbyint(value));
    }
    return Value::number(round_half_even(value, precision));
  }
  // func(value * 10**precision) / 10**precision, where func gives an integer.
  ASSIGN_OR_RETURN(const Value unit,
                   apply_binary(runtime, BinaryOperator::kPow, Value::integer(10), Value::integer(precision)));
  ASSIGN_OR_RETURN(const Value scaled, apply_binary(runtime, BinaryOperator::kMul, input, unit));
  const double number = scaled.to_double();
  if (!(std::fabs(number) < 9.2e18)) return invalid_argument("a number is too large to be rounded this way");
  const double whole = method == "ceil" ? std::ceil(number) : std::floor(number);
  const int64_t integer = scaled.is_int_like() ? scaled.int_value() : static_cast<int64_t>(whole);
  return apply_binary(runtime, BinaryOperator::kDiv, Value::integer(integer), unit);
}

Result<Value> attr_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, bind_arguments("attr", arguments, {"name"}, 1));
  if (!bound[0].is_string()) return invalid_argument("attribute name must be string");
  ASSIGN_OR_RETURN(std::optional<Value> attribute, find_attribute(runtime, input, bound[0].bytes()));
  if (attribute) return *std::move(attribute);
  return Value::undefined(std::string("'") + type_name(input) + " object' has no attribute '" +
                          std::string(bound[0].bytes()) + "'");
}

Result<Text> separator_text(const Value& value) {
  if (!value.is_string()) return invalid_argument("the separators of tojson must be strings");
  return value.text();
}

Result<Value> tojson_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound,
                   bind_arguments("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0));
  JsonStyle style;
  style.is_ascii_only = !bound[0].is_missing() && is_true(bound[0]);
  style.sorts_keys = !bound[3].is_missing() && is_true(bound[3]);
  const Value& indent = bound[1];
  if (indent.is_string()) {
    style.indent = indent.text();
  } else if (indent.is_int_like()) {
    const int64_t width = std::max<int64_t>(indent.int_value(), 0);
    if (width > 1024) return invalid_argument("tojson: an indent of more than 1024 is not supported");
    style.indent = Text(std::string(static_cast<size_t>(width), ' '), false);
  } else if (!indent.is_missing() && !indent.is_none()) {
    return invalid_argument(std::string("tojson: indent cannot be a ") + type_name(indent));
  }
  style.item_separator = Text(style.indent ? "," : ", ", false);
  style.key_separator = Text(": ", false);
  if (!bound[2].is_missing() && !bound[2].is_none()) {
    ASSIGN_OR_RETURN(const std::vector<Value> separators, collect_items(runtime, bound[2]));
    if (separators.size() != 2) return invalid_argument("tojson: separators are a pair of strings");
    ASSIGN_OR_RETURN(style.item_separator, separator_text(separators[0]));
    ASSIGN_OR_RETURN(style.key_separator, separator_text(separators[1]));
  }
  Text out;
  RETURN_IF_ERROR(append_json(runtime, out, input, style));
  return runtime.make_string(std::move(out));
}

// Filters of jinja2 for web pages or for chance: known, so that a template that does not reach them loads.
template <int kName>
Result<Value> refused_filter(Runtime&, const Value&, const Arguments&) {
  constexpr const char* kNames[] = {"filesizeformat", "pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr"};
  return unimplemented(std::string("the filter '") + kNames[kName] + "' is not supported in chat templates");
}

constexpr FilterRow kGeneralFilters[] = {
    {"abs", abs_filter},           {"attr", attr_filter},           {"d", default_filter},
    {"default", default_filter},   {"float", float_filter},         {"int", int_filter},
    {"round", round_filter},       {"tojson", tojson_filter},       {"filesizeformat", refused_filter<0>},
    {"pprint", refused_filter<1>}, {"random", refused_filter<2>},   {"striptags", refused_filter<3>},
    {"urlize", refused_filter<4>}, {"wordwrap", refused_filter<5>}, {"xmlattr", refused_filter<6>},
};

}  // namespace

const FilterRow* find_filter(std::string_view name) {
  for (const std::span<const FilterRow> table :
       {std::span<const FilterRow>(kGeneralFilters), text_filters(), sequence_filters()}) {
    for (const FilterRow& row : table) {
      if (row.name == name) return &row;
    }
  }
  return nullptr;
}

}  // namespace quire::jinja

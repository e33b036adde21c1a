// str(), repr() and json.dumps. See jinja_format.h.
#include "text/jinja_format.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja_operators.h"
#include "text/jinja_unicode.h"

namespace quire::jinja {
namespace {

constexpr char kHex[] = "0123456789abcdef";

void append_hex(std::string& out, uint32_t value, int num_digits) {
  for (int shift = 4 * (num_digits - 1); shift >= 0; shift -= 4) out.push_back(kHex[value >> shift & 15]);
}

void append_string_repr(Text& out, const Text& text) {
  const std::string_view bytes = text.bytes();
  const bool uses_double = bytes.find('\'') != bytes.npos && bytes.find('"') == bytes.npos;
  const char quote = uses_double ? '"' : '\'';
  out.append(std::string_view(&quote, 1), false);
  std::string piece;
  text.for_each_run(0, text.size(), [&](size_t begin, size_t end, bool is_trusted) {
    piece.clear();
    for (size_t i = begin; i < end;) {
      const CodePoint point = code_point_at(bytes, i);
      const uint32_t c = point.value;
      if (c == static_cast<uint32_t>(quote) || c == '\\') {
        piece.push_back('\\');
        piece.push_back(static_cast<char>(c));
      } else if (c == '\n') {
        piece += "\\n";
      } else if (c == '\r') {
        piece += "\\r";
      } else if (c == '\t') {
        piece += "\\t";
      } else if (is_printable(c)) {
        piece.append(bytes.substr(i, point.num_bytes));
      } else if (c < 0x100) {
        piece += "\\x";
        append_hex(piece, c, 2);
      } else if (c < 0x10000) {
        piece += "\\u";
        append_hex(piece, c, 4);
      } else {
        piece += "\\U";
        append_hex(piece, c, 8);
      }
      i += point.num_bytes;
    }
    out.append(piece, is_trusted);
  });
  out.append(std::string_view(&quote, 1), false);
}

Status append_items(Runtime& runtime, Text& out, const std::vector<Value>& items, const char* open, const char* close) {
  out.append(open, false);
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(", ", false);
    RETURN_IF_ERROR(append_repr(runtime, out, items[i]));
  }
  out.append(close, false);
  return ok_status();
}

Status append_range(Text& out, const RangeObject& range) {
  out.append("range(" + std::to_string(range.start) + ", " + std::to_string(range.stop), false);
  if (range.step != 1) out.append(", " + std::to_string(range.step), false);
  out.append(")", false);
  return ok_status();
}

Status append_namespace(Runtime& runtime, Text& out, const NamespaceObject& object) {
  // A namespace may hold itself; each level prints the one inside it, so the text limit alone would come too late.
  if (object.is_printing) return invalid_argument("a namespace that holds itself cannot be printed");
  object.is_printing = true;
  out.append("<Namespace {", false);
  bool is_first = true;
  Status status;
  for (const auto& [name, value] : object.attributes) {
    if (!is_first) out.append(", ", false);
    is_first = false;
    append_string_repr(out, Text(name, false));
    out.append(": ", false);
    status = append_repr(runtime, out, value);
    if (!status.is_ok()) break;
  }
  object.is_printing = false;
  out.append("}>", false);
  return status;
}

// ---- JSON ----

void append_json_string(Text& out, const Text& text, bool is_ascii_only) {
  const std::string_view bytes = text.bytes();
  out.append("\"", false);
  std::string piece;
  text.for_each_run(0, text.size(), [&](size_t begin, size_t end, bool is_trusted) {
    piece.clear();
    for (size_t i = begin; i < end;) {
      const CodePoint point = code_point_at(bytes, i);
      const uint32_t c = point.value;
      switch (c) {
        case '"':
          piece += "\\\"";
          break;
        case '\\':
          piece += "\\\\";
          break;
        case '\n':
          piece += "\\n";
          break;
        case '\r':
          piece += "\\r";
          break;
        case '\t':
          piece += "\\t";
          break;
        case '\b':
          piece += "\\b";
          break;
        case '\f':
          piece += "\\f";
          break;
        default:
          if (c < 0x20 || (is_ascii_only && c >= 0x7F)) {
            const bool is_pair = c >= 0x10000;
            piece += "\\u";
            append_hex(piece, is_pair ? 0xD800 + ((c - 0x10000) >> 10) : c, 4);
            if (is_pair) {
              piece += "\\u";
              append_hex(piece, 0xDC00 + ((c - 0x10000) & 0x3FF), 4);
            }
          } else {
            piece.append(bytes.substr(i, point.num_bytes));
          }
      }
      i += point.num_bytes;
    }
    out.append(piece, is_trusted);
  });
  out.append("\"", false);
}

std::string json_float(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return float_repr(value);
}

class JsonWriter {
 public:
  JsonWriter(Runtime& runtime, Text& out, const JsonStyle& style) : runtime_(runtime), out_(out), style_(style) {}

  Status write(const Value& value, size_t level) {
    RETURN_IF_ERROR(runtime_.step());
    if (out_.size() > runtime_.limits().max_output_bytes) return runtime_.check_string_size(out_.size());
    switch (value.kind()) {
      case Kind::kNone:
        out_.append("null", false);
        return ok_status();
      case Kind::kBool:
        out_.append(value.int_value() != 0 ? "true" : "false", false);
        return ok_status();
      case Kind::kInt:
        out_.append(std::to_string(value.int_value()), false);
        return ok_status();
      case Kind::kBigInt:
        out_.append(value.as<BigIntObject>().digits, false);
        return ok_status();
      case Kind::kFloat:
        out_.append(json_float(value.float_value()), false);
        return ok_status();
      case Kind::kString:
        RETURN_IF_ERROR(runtime_.touch_bytes(value.text().size()));
        append_json_string(out_, value.text(), style_.is_ascii_only);
        return ok_status();
      case Kind::kList:
      case Kind::kTuple:
        return write_list(value.items(), level);
      case Kind::kDict:
        return write_dict(value.dict_object(), level);
      default:
        return invalid_argument(std::string("Object of type ") + type_name(value) + " is not JSON serializable");
    }
  }

 private:
  void new_line(size_t level) {
    if (!style_.indent) return;
    out_.append("\n", false);
    for (size_t i = 0; i < level; ++i) out_.append(*style_.indent);
  }

  Status write_list(const std::vector<Value>& items, size_t level) {
    if (items.empty()) {
      out_.append("[]", false);
      return ok_status();
    }
    out_.append("[", false);
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_.append(style_.item_separator);
      new_line(level + 1);
      RETURN_IF_ERROR(write(items[i], level + 1));
    }
    new_line(level);
    out_.append("]", false);
    return ok_status();
  }

  Status write_dict(const DictObject& dict, size_t level) {
    if (dict.entries.empty()) {
      out_.append("{}", false);
      return ok_status();
    }
    std::vector<size_t> order(dict.entries.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    if (style_.sorts_keys) {
      std::vector<Value> keys;
      for (const auto& [key, value] : dict.entries) keys.push_back(key);
      ASSIGN_OR_RETURN(order, sorted_order(runtime_, keys, false));
    }
    out_.append("{", false);
    bool is_first = true;
    for (const size_t i : order) {
      const auto& [key, value] = dict.entries[i];
      if (!is_first) out_.append(style_.item_separator);
      is_first = false;
      new_line(level + 1);
      RETURN_IF_ERROR(write_key(key));
      out_.append(style_.key_separator);
      RETURN_IF_ERROR(write(value, level + 1));
    }
    new_line(level);
    out_.append("}", false);
    return ok_status();
  }

  Status write_key(const Value& key) {
    switch (key.kind()) {
      case Kind::kString:
        append_json_string(out_, key.text(), style_.is_ascii_only);
        return ok_status();
      case Kind::kNone:
        out_.append("\"null\"", false);
        return ok_status();
      case Kind::kBool:
        out_.append(key.int_value() != 0 ? "\"true\"" : "\"false\"", false);
        return ok_status();
      case Kind::kInt:
        out_.append('"' + std::to_string(key.int_value()) + '"', false);
        return ok_status();
      case Kind::kBigInt:
        out_.append('"' + key.as<BigIntObject>().digits + '"', false);
        return ok_status();
      case Kind::kFloat:
        out_.append('"' + json_float(key.float_value()) + '"', false);
        return ok_status();
      default:
        return invalid_argument(std::string("keys must be str, int, float, bool or None, not ") + type_name(key));
    }
  }

  Runtime& runtime_;
  Text& out_;
  const JsonStyle& style_;
};

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  // d[.ddd]e[+-]xx: the shortest digits and the exponent, laid out anew.
  std::string text(buffer, end);
  std::string sign;
  if (text[0] == '-') {
    sign = "-";
    text.erase(0, 1);
  }
  const size_t e = text.find('e');
  int exponent = 0;
  const char* exponent_begin = text.data() + e + 1;
  if (*exponent_begin == '+') ++exponent_begin;
  std::from_chars(exponent_begin, text.data() + text.size(), exponent);
  std::string digits = text.substr(0, 1);
  if (e > 2) digits += text.substr(2, e - 2);
  const int num_digits = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    std::string result = sign + digits.substr(0, 1);
    if (num_digits > 1) result += "." + digits.substr(1);
    const int magnitude = std::abs(exponent);
    return result + (exponent < 0 ? "e-" : "e+") + (magnitude < 10 ? "0" : "") + std::to_string(magnitude);
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (num_digits <= exponent + 1) {
    return sign + digits + std::string(static_cast<size_t>(exponent + 1 - num_digits), '0') + ".0";
  }
  const size_t point = static_cast<size_t>(exponent + 1);
  return sign + digits.substr(0, point) + "." + digits.substr(point);
}

Status append_str(Runtime& runtime, Text& out, const Value& value) {
  if (value.is_string()) {
    RETURN_IF_ERROR(runtime.check_string_size(out.size() + value.text().size()));
    RETURN_IF_ERROR(runtime.touch_bytes(value.text().size()));
    out.append(value.text());
    return ok_status();
  }
  if (value.is_undefined()) return ok_status();
  return append_repr(runtime, out, value);
}

Status append_repr(Runtime& runtime, Text& out, const Value& value) {
  RETURN_IF_ERROR(runtime.step());
  if (out.size() > runtime.limits().max_output_bytes) return runtime.check_string_size(out.size());
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
      out.append("Undefined", false);
      return ok_status();
    case Kind::kNone:
      out.append("None", false);
      return ok_status();
    case Kind::kBool:
      out.append(value.int_value() != 0 ? "True" : "False", false);
      return ok_status();
    case Kind::kInt:
      out.append(std::to_string(value.int_value()), false);
      return ok_status();
    case Kind::kBigInt:
      out.append(value.as<BigIntObject>().digits, false);
      return ok_status();
    case Kind::kFloat:
      out.append(float_repr(value.float_value()), false);
      return ok_status();
    case Kind::kString:
      RETURN_IF_ERROR(runtime.check_string_size(out.size() + value.text().size()));
      RETURN_IF_ERROR(runtime.touch_bytes(value.text().size()));
      if (value.str().is_markup) out.append("Markup(", false);
      append_string_repr(out, value.text());
      if (value.str().is_markup) out.append(")", false);
      return ok_status();
    case Kind::kList:
      return append_items(runtime, out, value.items(), "[", "]");
    case Kind::kTuple:
      return append_items(runtime, out, value.items(), "(", value.items().size() == 1 ? ",)" : ")");
    case Kind::kDictKeys:
      return append_items(runtime, out, value.items(), "dict_keys([", "])");
    case Kind::kDictValues:
      return append_items(runtime, out, value.items(), "dict_values([", "])");
    case Kind::kDictItems:
      return append_items(runtime, out, value.items(), "dict_items([", "])");
    case Kind::kDict: {
      out.append("{", false);
      bool is_first = true;
      for (const auto& [key, item] : value.dict_object().entries) {
        if (!is_first) out.append(", ", false);
        is_first = false;
        RETURN_IF_ERROR(append_repr(runtime, out, key));
        out.append(": ", false);
        RETURN_IF_ERROR(append_repr(runtime, out, item));
      }
      out.append("}", false);
      return ok_status();
    }
    case Kind::kRange:
      return append_range(out, value.as<RangeObject>());
    case Kind::kNamespace:
      return append_namespace(runtime, out, value.as<NamespaceObject>());
    default:
      out.append(std::string("<") + type_name(value) + " object>", false);  // Python prints an address here
      return ok_status();
  }
}

Result<Text> to_text(Runtime& runtime, const Value& value) {
  if (value.is_string()) return value.text();
  Text out;
  RETURN_IF_ERROR(append_str(runtime, out, value));
  return out;
}

Text escape_html(const Text& text) {
  Text out;
  const std::string_view bytes = text.bytes();
  text.for_each_run(0, text.size(), [&](size_t begin, size_t end, bool is_trusted) {
    std::string piece;
    for (const char c : bytes.substr(begin, end - begin)) {
      switch (c) {
        case '&':
          piece += "&amp;";
          break;
        case '<':
          piece += "&lt;";
          break;
        case '>':
          piece += "&gt;";
          break;
        case '"':
          piece += "&#34;";
          break;
        case '\'':
          piece += "&#39;";
          break;
        default:
          piece.push_back(c);
      }
    }
    out.append(piece, is_trusted);
  });
  return out;
}

Status append_json(Runtime& runtime, Text& out, const Value& value, const JsonStyle& style) {
  return JsonWriter(runtime, out, style).write(value, 0);
}

}  // namespace quire::jinja

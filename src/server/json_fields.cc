#include "server/json_fields.h"

#include <cmath>

namespace quire {

namespace json = boost::json;

std::string shorten_text(std::string_view text, size_t num_bytes) {
  if (text.size() <= num_bytes) return std::string(text);
  const auto is_continuation = [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; };
  while (num_bytes > 0 && is_continuation(text[num_bytes])) --num_bytes;
  return std::string(text.substr(0, num_bytes));
}

std::string shown_json(const json::value& value) {
  constexpr size_t kLongest = 60;
  // A serializer gives the beginning of a large value without making all of it.
  json::serializer serializer;
  serializer.reset(&value);
  char buffer[256];
  const std::string_view text = serializer.read(buffer, sizeof(buffer));
  return text.size() > kLongest ? shorten_text(text, kLongest) + "..." : std::string(text);
}

Status wrong_field(std::string_view name, std::string_view wanted, const json::value& value) {
  return invalid_argument(std::string(name) + " must be " + std::string(wanted) + ", not " + shown_json(value));
}

Result<json::value> parse_json(std::string_view text) {
  json::parse_options options;
  options.max_depth = kMaxJsonDepth;
  json::stream_parser parser({}, options);
  boost::system::error_code error;
  const size_t num_read = parser.write_some(text.data(), text.size(), error);
  if (!error && num_read == text.size()) parser.finish(error);
  if (!error && num_read < text.size()) {
    if (text.find_first_not_of(" \t\r\n", num_read) != std::string_view::npos) error = json::error::extra_data;
    if (!error) parser.finish(error);
  }
  if (error) {
    if (error == json::error::too_deep) {
      return invalid_argument("the body nests deeper than " + std::to_string(kMaxJsonDepth) + " levels");
    }
    if (text.empty()) return invalid_argument("the body is empty: send a JSON object");
    return invalid_argument("the body is not JSON: " + error.message() + " near byte " + std::to_string(num_read));
  }
  return parser.release();
}

bool read_integer(const json::value& value, int64_t& out) {
  if (value.is_int64()) {
    out = value.get_int64();
    return true;
  }
  if (value.is_double() && std::nearbyint(value.get_double()) == value.get_double() &&
      std::abs(value.get_double()) < 0x1p53) {
    out = static_cast<int64_t>(value.get_double());
    return true;
  }
  return false;
}

bool read_number(const json::value& value, double& out) {
  if (value.is_int64())
    out = static_cast<double>(value.get_int64());
  else if (value.is_uint64())
    out = static_cast<double>(value.get_uint64());
  else if (value.is_double())
    out = value.get_double();
  else
    return false;
  return std::isfinite(out);
}

const json::value* FieldReader::find(std::string_view name) const {
  const json::value* value = object_.if_contains({name.data(), name.size()});
  return value == nullptr || value->is_null() ? nullptr : value;
}

void FieldReader::read_bool(std::string_view name, bool& target) {
  const json::value* value = find(name);
  if (value == nullptr) return;
  if (value->is_bool())
    target = value->get_bool();
  else
    fail_wanted(name, "true or false");
}

void FieldReader::read_string(std::string_view name, std::string& target, size_t most_bytes) {
  const json::value* value = find(name);
  if (value == nullptr) return;
  if (!value->is_string()) {
    fail_wanted(name, "a string");
  } else if (value->get_string().size() > most_bytes) {
    fail(name, invalid_argument(prefix_ + std::string(name) + " has " + std::to_string(value->get_string().size()) +
                                " bytes; it may have " + std::to_string(most_bytes)));
  } else {
    target = std::string(value->get_string());
  }
}

bool FieldReader::read_bounded(std::string_view name, int64_t& number, int64_t low, int64_t high) {
  const json::value* value = find(name);
  if (value == nullptr) return false;
  if (read_integer(*value, number) && number >= low && number <= high) return true;
  fail_wanted(name, "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
  return false;
}

void FieldReader::fail(std::string_view name, Status status) {
  if (!status_.is_ok() || status.is_ok()) return;
  status_ = std::move(status);
  param_ = prefix_ + std::string(name);
}

void FieldReader::fail_wanted(std::string_view name, std::string_view wanted) {
  const json::value* value = object_.if_contains({name.data(), name.size()});
  fail(name, wrong_field(prefix_ + std::string(name), wanted, value == nullptr ? json::value() : *value));
}

}  // namespace quire

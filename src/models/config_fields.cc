#include "models/config_fields.h"

#include <cmath>
#include <sstream>

namespace quire {
namespace {

const boost::json::object kEmptyObject;

std::string shown(const boost::json::value& value) {
  std::string text = boost::json::serialize(value);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

template <typename T>
std::string range_text(const char* kind, ValueRange<T> range) {
  std::ostringstream out;
  out << kind << " between " << range.min << " and " << range.max;
  return out.str();
}

template <typename T>
bool is_inside(T value, ValueRange<T> range) {
  return value >= range.min && value <= range.max;  // false for NaN
}

}  // namespace

const boost::json::value* ConfigFields::find(std::string_view key) const {
  const boost::json::value* value = object_.if_contains(boost::json::string_view(key.data(), key.size()));
  return value == nullptr || value->is_null() ? nullptr : value;
}

void ConfigFields::fail(Status status) const {
  if (status_.is_ok()) status_ = std::move(status);
}

void ConfigFields::fail(std::string_view key, const std::string& expected) const {
  const boost::json::value* value = find(key);
  fail(invalid_argument(where_ + std::string(key) + (value == nullptr ? " is missing" : " is " + shown(*value)) +
                        ", expected " + expected));
}

std::optional<int64_t> ConfigFields::as_integer(const boost::json::value& value) const {
  if (value.is_int64()) return value.get_int64();
  // A number written as 8192.0 is an integer too; beyond 2^53 it would not be exact.
  if (value.is_double() && std::abs(value.get_double()) < 0x1p53 &&
      std::trunc(value.get_double()) == value.get_double()) {
    return static_cast<int64_t>(value.get_double());
  }
  return std::nullopt;
}

int64_t ConfigFields::integer(std::string_view key, ValueRange<int64_t> range,
                              std::optional<int64_t> default_value) const {
  const boost::json::value* value = find(key);
  if (value == nullptr && default_value.has_value()) return *default_value;
  const std::optional<int64_t> number = value == nullptr ? std::nullopt : as_integer(*value);
  if (number.has_value() && is_inside(*number, range)) return *number;
  fail(key, range_text("an integer", range));
  return range.min;
}

double ConfigFields::number(std::string_view key, ValueRange<double> range, std::optional<double> default_value) const {
  const boost::json::value* value = find(key);
  if (value == nullptr && default_value.has_value()) return *default_value;
  if (value != nullptr && value->is_number()) {
    const double number = value->to_number<double>();
    if (is_inside(number, range)) return number;
  }
  fail(key, range_text("a number", range));
  return range.min;
}

bool ConfigFields::boolean(std::string_view key, bool default_value) const {
  const boost::json::value* value = find(key);
  if (value == nullptr) return default_value;
  if (value->is_bool()) return value->get_bool();
  fail(key, "true or false");
  return default_value;
}

std::string ConfigFields::text(std::string_view key, std::string_view default_value) const {
  const boost::json::value* value = find(key);
  if (value == nullptr) return std::string(default_value);
  if (value->is_string()) return std::string(value->get_string());
  fail(key, "a string");
  return std::string(default_value);
}

std::vector<int64_t> ConfigFields::integers(std::string_view key, ValueRange<int64_t> range) const {
  const boost::json::value* value = find(key);
  if (value == nullptr) return {};
  std::vector<int64_t> result;
  const auto add = [&](const boost::json::value& item) {
    const std::optional<int64_t> number = as_integer(item);
    if (number.has_value() && is_inside(*number, range)) {
      result.push_back(*number);
    } else {
      fail(key, range_text("an integer", range) + ", or a list of them");
    }
  };
  if (value->is_array()) {
    for (const boost::json::value& item : value->get_array()) add(item);
  } else {
    add(*value);
  }
  return result;
}

std::vector<float> ConfigFields::numbers(std::string_view key, ValueRange<double> range) const {
  const boost::json::value* value = find(key);
  if (value == nullptr) return {};
  std::vector<float> result;
  if (value->is_array()) {
    for (const boost::json::value& item : value->get_array()) {
      if (!item.is_number() || !is_inside(item.to_number<double>(), range)) {
        fail(key, "a list of numbers " + range_text("each", range));
        return {};
      }
      result.push_back(static_cast<float>(item.to_number<double>()));
    }
  } else {
    fail(key, "a list of numbers");
  }
  return result;
}

std::vector<std::string> ConfigFields::texts(std::string_view key) const {
  const boost::json::value* value = find(key);
  if (value == nullptr) return {};
  std::vector<std::string> result;
  if (!value->is_array()) {
    fail(key, "a list of strings");
    return result;
  }
  for (const boost::json::value& item : value->get_array()) {
    if (!item.is_string()) {
      fail(key, "a list of strings");
      return {};
    }
    result.emplace_back(item.get_string());
  }
  return result;
}

ConfigFields ConfigFields::child(std::string_view key) const {
  const boost::json::value* value = find(key);
  const std::string where = where_ + std::string(key) + ".";
  if (value != nullptr && value->is_object()) return ConfigFields(value->get_object(), where, status_);
  if (value != nullptr) fail(key, "an object");
  return ConfigFields(kEmptyObject, where, status_);
}

Result<boost::json::object> parse_json_object(std::string_view text, std::string_view what) {
  boost::json::error_code error;
  boost::json::value value = boost::json::parse(boost::json::string_view(text.data(), text.size()), error);
  if (error) {
    return invalid_argument(std::string(what) + " is not valid JSON (" + error.message() +
                            "): the file may be damaged or cut off");
  }
  if (!value.is_object()) return invalid_argument(std::string(what) + " must hold a JSON object");
  return std::move(value.get_object());
}

}  // namespace quire

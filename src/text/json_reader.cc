// Over Boost.JSON, whose parser keeps its own stack and stops at a depth.
#include "text/json_reader.h"

#include <boost/json.hpp>

namespace quire {
namespace {

namespace json = boost::json;

constexpr size_t kMaxBytes = size_t{512} * 1024 * 1024;
constexpr size_t kMaxDepth = 64;

const json::value* unwrap(const void* value) {
  return static_cast<const json::value*>(value);
}

Status wrong_type(const std::string& what, std::string_view wanted) {
  return invalid_argument("tokenizer.json: the " + what + " should be " + std::string(wanted));
}

}  // namespace

struct JsonDocument::Impl {
  json::monotonic_resource memory;
  json::value root;
};

JsonDocument::JsonDocument(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument& JsonDocument::operator=(JsonDocument&&) noexcept = default;
JsonDocument::~JsonDocument() = default;

Result<JsonDocument> JsonDocument::parse(std::string_view text, const std::string& name) {
  if (text.size() > kMaxBytes) return invalid_argument(name + " is larger than 512 MiB");
  auto impl = std::make_unique<Impl>();
  json::parse_options options;
  options.max_depth = kMaxDepth;
  boost::system::error_code error;
  impl->root = json::parse({text.data(), text.size()}, error, &impl->memory, options);
  if (error) return invalid_argument(name + " is not valid JSON: " + error.message());
  return JsonDocument(std::move(impl));
}

JsonValue JsonDocument::root() const {
  return JsonValue(&impl_->root);
}

bool JsonValue::is_null() const {
  return value_ == nullptr || unwrap(value_)->is_null();
}
bool JsonValue::is_string() const {
  return value_ != nullptr && unwrap(value_)->is_string();
}
bool JsonValue::is_bool() const {
  return value_ != nullptr && unwrap(value_)->is_bool();
}

std::string_view JsonValue::as_string() const {
  const json::string& text = unwrap(value_)->get_string();
  return {text.data(), text.size()};
}

bool JsonValue::as_bool() const {
  return unwrap(value_)->get_bool();
}

size_t JsonValue::num_members() const {
  return value_ != nullptr && unwrap(value_)->is_object() ? unwrap(value_)->get_object().size() : 0;
}

JsonValue JsonValue::get_or_null(std::string_view key) const {
  if (value_ == nullptr || !unwrap(value_)->is_object()) return {};
  const json::value* member = unwrap(value_)->get_object().if_contains({key.data(), key.size()});
  return member == nullptr || member->is_null() ? JsonValue() : JsonValue(member);
}

bool JsonValue::has(std::string_view key) const {
  return !get_or_null(key).is_null();
}

Result<JsonValue> JsonValue::get(std::string_view key, const std::string& what) const {
  const JsonValue member = get_or_null(key);
  if (member.is_null()) return invalid_argument("tokenizer.json: the " + what + " has no \"" + std::string(key) + "\"");
  return member;
}

Result<std::string> JsonValue::get_string(std::string_view key, const std::string& what) const {
  ASSIGN_OR_RETURN(const JsonValue member, get(key, what));
  if (!member.is_string()) return wrong_type(what + "'s \"" + std::string(key) + "\"", "a text");
  return std::string(member.as_string());
}

Result<int64_t> JsonValue::get_integer(std::string_view key, const std::string& what) const {
  ASSIGN_OR_RETURN(const JsonValue member, get(key, what));
  return member.to_integer(what + "'s \"" + std::string(key) + "\"");
}

Result<bool> JsonValue::get_bool_or(std::string_view key, bool if_absent, const std::string& what) const {
  const JsonValue member = get_or_null(key);
  if (member.is_null()) return if_absent;
  if (!member.is_bool()) return wrong_type(what + "'s \"" + std::string(key) + "\"", "true or false");
  return member.as_bool();
}

Result<double> JsonValue::get_number_or(std::string_view key, double if_absent, const std::string& what) const {
  const JsonValue member = get_or_null(key);
  if (member.is_null()) return if_absent;
  return member.to_number(what + "'s \"" + std::string(key) + "\"");
}

Result<std::vector<JsonValue>> JsonValue::get_array(std::string_view key, const std::string& what) const {
  ASSIGN_OR_RETURN(const JsonValue member, get(key, what));
  return member.to_array(what + "'s \"" + std::string(key) + "\"");
}

Result<int64_t> JsonValue::to_integer(const std::string& what) const {
  if (value_ != nullptr && unwrap(value_)->is_int64()) return unwrap(value_)->get_int64();
  return wrong_type(what, "a whole number");
}

Result<double> JsonValue::to_number(const std::string& what) const {
  if (value_ != nullptr && unwrap(value_)->is_double()) return unwrap(value_)->get_double();
  if (value_ != nullptr && unwrap(value_)->is_int64()) return static_cast<double>(unwrap(value_)->get_int64());
  if (value_ != nullptr && unwrap(value_)->is_uint64()) return static_cast<double>(unwrap(value_)->get_uint64());
  return wrong_type(what, "a number");
}

Result<std::vector<JsonValue>> JsonValue::to_array(const std::string& what) const {
  if (value_ == nullptr || !unwrap(value_)->is_array()) return wrong_type(what, "a list");
  std::vector<JsonValue> out;
  out.reserve(unwrap(value_)->get_array().size());
  for (const json::value& element : unwrap(value_)->get_array()) out.push_back(JsonValue(&element));
  return out;
}

Status JsonValue::for_each_member(const std::string& what,
                                  const std::function<Status(std::string_view, const JsonValue&)>& visit) const {
  if (value_ == nullptr || !unwrap(value_)->is_object()) return wrong_type(what, "an object");
  for (const auto& member : unwrap(value_)->get_object()) {
    RETURN_IF_ERROR(visit({member.key().data(), member.key().size()}, JsonValue(&member.value())));
  }
  return ok_status();
}

}  // namespace quire

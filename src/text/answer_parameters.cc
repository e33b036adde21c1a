#include "text/answer_parameters.h"

#include "text/answer_json_scanner.h"
#include "text/json_reader.h"

namespace quire::answer {
namespace {

// How deep anyOf, allOf and references are followed.
constexpr int kMaxDepth = 8;
constexpr size_t kMaxAlternatives = 1000;

TypeSet type_named(std::string_view name) {
  if (name == "string") return kStringType;
  if (name == "number" || name == "integer") return kNumberType;
  if (name == "boolean") return kBooleanType;
  if (name == "null") return kNullType;
  if (name == "object") return kObjectType;
  if (name == "array") return kArrayType;
  return kAnyType;
}

TypeSet type_of_value(const JsonValue& value) {
  if (value.is_null()) return kNullType;
  if (value.is_string()) return kStringType;
  if (value.is_bool()) return kBooleanType;
  if (value.to_number("").is_ok()) return kNumberType;
  return value.to_array("").is_ok() ? kArrayType : kObjectType;
}

JsonValue follow(const JsonValue& root, std::string_view reference) {
  if (!reference.starts_with("#")) return JsonValue();
  reference.remove_prefix(1);
  JsonValue at = root;
  while (reference.starts_with("/")) {
    reference.remove_prefix(1);
    const size_t end = std::min(reference.find('/'), reference.size());
    at = at.get_or_null(reference.substr(0, end));
    reference.remove_prefix(end);
  }
  return at;
}

TypeSet types_of_schema(const JsonValue& root, const JsonValue& schema, int depth) {
  if (depth > kMaxDepth) return kAnyType;
  TypeSet types = kAnyType;
  const JsonValue type = schema.get_or_null("type");
  if (type.is_string()) {
    types = type_named(type.as_string());
  } else if (const auto list = type.to_array(""); list.is_ok()) {
    types = 0;
    for (const JsonValue& item : list.value())
      if (item.is_string()) types |= type_named(item.as_string());
  }
  if (const auto list = schema.get_or_null("enum").to_array(""); list.is_ok() && !list.value().empty()) {
    TypeSet of_values = 0;
    for (const JsonValue& item : list.value()) of_values |= type_of_value(item);
    types &= of_values;
  }
  if (schema.has("const")) types &= type_of_value(schema.get_or_null("const"));
  for (const char* key : {"anyOf", "oneOf"}) {
    const auto list = schema.get_or_null(key).to_array("");
    if (!list.is_ok() || list.value().size() > kMaxAlternatives) continue;
    TypeSet of_branches = 0;
    for (const JsonValue& branch : list.value()) of_branches |= types_of_schema(root, branch, depth + 1);
    types &= of_branches;
  }
  if (const auto list = schema.get_or_null("allOf").to_array(""); list.is_ok() && list.value().size() <= 16) {
    for (const JsonValue& branch : list.value()) types &= types_of_schema(root, branch, depth + 1);
  }
  if (const JsonValue reference = schema.get_or_null("$ref"); reference.is_string()) {
    types &= types_of_schema(root, follow(root, reference.as_string()), depth + 4);
  }
  if (const JsonValue nullable = schema.get_or_null("nullable"); nullable.is_bool() && nullable.as_bool())
    types |= kNullType;
  return types == 0 ? kAnyType : types;
}

TypeSet type_of_json(std::string_view json) {
  switch (json.front()) {
    case '{':
      return kObjectType;
    case '[':
      return kArrayType;
    case '"':
      return kStringType;
    case 't':
    case 'f':
      return kBooleanType;
    case 'n':
      return kNullType;
    default:
      return kNumberType;
  }
}

}  // namespace

ParameterTypes::ParameterTypes(std::string_view schema_json) {
  const auto document = JsonDocument::parse(schema_json, "schema");
  if (!document.is_ok()) return;
  const JsonValue root = document.value().root();
  const Status status =
      root.get_or_null("properties").for_each_member("", [&](std::string_view key, const JsonValue& value) {
        types_.emplace_back(key, types_of_schema(root, value, 0));
        return ok_status();
      });
  if (!status.is_ok()) types_.clear();
}

TypeSet ParameterTypes::of(std::string_view key) const {
  for (const auto& [name, types] : types_)
    if (name == key) return types;
  return kAnyType;
}

std::string parameter_to_json(std::string_view value, TypeSet types) {
  std::string_view trimmed = value;
  while (!trimmed.empty() && is_json_space(trimmed.back())) trimmed.remove_suffix(1);
  while (!trimmed.empty() && is_json_space(trimmed.front())) trimmed.remove_prefix(1);
  if (types != kStringType && !trimmed.empty()) {
    if (trimmed == "True" && (types & kBooleanType)) return "true";
    if (trimmed == "False" && (types & kBooleanType)) return "false";
    if (trimmed == "None" && (types & kNullType)) return "null";
    // A quoted text stays a text with its quotes where texts are what is asked for.
    if (is_whole_json(trimmed)) {
      const TypeSet type = type_of_json(trimmed);
      if (type != kStringType && (types & type)) return std::string(trimmed);
      if (type == kStringType && !(types & kStringType)) return std::string(trimmed);
    }
  }
  std::string json = "\"";
  append_json_escaped(value, &json);
  return json + "\"";
}

}  // namespace quire::answer

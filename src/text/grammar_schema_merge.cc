#include "text/grammar_schema_merge.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <span>
#include <unordered_set>
#include <utility>

namespace quire::grammar_internal {
namespace {

namespace json = boost::json;

constexpr size_t kMaxParts = 2000;

Status bad(const std::string& what) {
  return invalid_argument("schema: " + what);
}

std::string quoted(std::string_view key) {
  return "\"" + std::string(key) + "\"";
}

std::string_view view(const json::string& text) {
  return {text.data(), text.size()};
}

uint8_t type_named(std::string_view name) {
  static constexpr std::pair<std::string_view, uint8_t> kNames[] = {
      {"null", kNullType},     {"boolean", kBooleanType}, {"integer", kIntegerType}, {"number", kNumberTypes},
      {"string", kStringType}, {"array", kArrayType},     {"object", kObjectType}};
  for (const auto& [known, type] : kNames) {
    if (known == name) return type;
  }
  return 0;
}

// The type of values that a keyword speaks of: what a schema without "type" is about.
uint8_t type_of_keyword(std::string_view key) {
  static constexpr std::pair<std::string_view, uint8_t> kKeywords[] = {{"properties", kObjectType},
                                                                       {"required", kObjectType},
                                                                       {"additionalProperties", kObjectType},
                                                                       {"minProperties", kObjectType},
                                                                       {"maxProperties", kObjectType},
                                                                       {"patternProperties", kObjectType},
                                                                       {"propertyNames", kObjectType},
                                                                       {"items", kArrayType},
                                                                       {"prefixItems", kArrayType},
                                                                       {"minItems", kArrayType},
                                                                       {"maxItems", kArrayType},
                                                                       {"additionalItems", kArrayType},
                                                                       {"uniqueItems", kArrayType},
                                                                       {"minLength", kStringType},
                                                                       {"maxLength", kStringType},
                                                                       {"pattern", kStringType},
                                                                       {"format", kStringType},
                                                                       {"minimum", kNumberTypes},
                                                                       {"maximum", kNumberTypes},
                                                                       {"exclusiveMinimum", kNumberTypes},
                                                                       {"exclusiveMaximum", kNumberTypes},
                                                                       {"multipleOf", kNumberTypes}};
  for (const auto& [known, type] : kKeywords) {
    if (known == key) return type;
  }
  return 0;
}

std::string number_text(const json::value& value) {
  if (value.is_int64()) return std::to_string(value.get_int64());
  if (value.is_uint64()) return std::to_string(value.get_uint64());
  return json::serialize(value);
}

// Values of an enum, to be asked for.
class ConstantSet {
 public:
  ConstantSet(std::span<const json::value* const> values, CompileWork& work) {
    work.spend(2 * values.size());
    values_.reserve(values.size());
    for (const json::value* value : values) values_.insert(value);
  }
  bool contains(const json::value& value) const { return values_.contains(&value); }

 private:
  struct Hash {
    size_t operator()(const json::value* value) const { return std::hash<json::value>()(*value); }
  };
  struct Equal {
    bool operator()(const json::value* a, const json::value* b) const { return *a == *b; }
  };
  std::unordered_set<const json::value*, Hash, Equal> values_;
};

class Merger {
 public:
  Merger(const SchemaDocument& document, const JsonSchemaOptions& options, CompileWork& work)
      : document_(document), options_(options), work_(work) {}

  Result<MergedSchema> merge(const Conjunction& conjunction) {
    for (const SchemaPart& part : conjunction) add_part(part);
    for (size_t i = 0; i < merged_.parts.size(); ++i) {
      if (merged_.parts.size() > kMaxParts) return bad("more than 2000 schemas are joined by \"allOf\" and \"$ref\"");
      RETURN_IF_ERROR(work_.status());
      const json::value& schema = *merged_.parts[i].schema;
      if (schema.is_bool()) {
        merged_.is_never = merged_.is_never || !schema.get_bool();
        continue;
      }
      if (!schema.is_object()) return bad("a schema must be an object, true or false");
      RETURN_IF_ERROR(follow(i, schema.get_object()));
      RETURN_IF_ERROR(add_keywords(schema.get_object()));
    }
    if (!has_type_ && !merged_.constants && implied_types_ != 0) merged_.types &= implied_types_;
    if (merged_.types == 0) merged_.is_never = true;
    return std::move(merged_);
  }

 private:
  void add_part(const SchemaPart& part) {
    work_.spend(8 + merged_.parts.size() / 8);
    auto is_same = [&](const SchemaPart& other) { return other.schema == part.schema; };
    if (std::none_of(merged_.parts.begin(), merged_.parts.end(), is_same)) merged_.parts.push_back(part);
  }

  // References and allOf add parts; a choice is noted.
  Status follow(size_t index, const json::object& schema) {
    const uint8_t done = merged_.parts[index].done;
    if (const json::value* reference = schema.if_contains("$ref"); reference && (done & SchemaPart::kReference) == 0) {
      if (!reference->is_string()) return bad("\"$ref\" must be a string");
      ASSIGN_OR_RETURN(const json::value* target, document_.resolve(view(reference->get_string())));
      merged_.parts[index].done |= SchemaPart::kReference;
      add_part({target, 0});
    }
    if (const json::value* all = schema.if_contains("allOf"); all && (done & SchemaPart::kAllOf) == 0) {
      if (!all->is_array()) return bad("\"allOf\" must be a list of schemas");
      merged_.parts[index].done |= SchemaPart::kAllOf;
      for (const json::value& part : all->get_array()) add_part({&part, 0});
    }
    for (const auto& [key, bit] : {std::pair{"anyOf", SchemaPart::kAnyOf}, std::pair{"oneOf", SchemaPart::kOneOf}}) {
      const json::value* choice = schema.if_contains(key);
      if (choice == nullptr || (done & bit) != 0 || merged_.choice != nullptr) continue;
      if (!choice->is_array() || choice->get_array().empty()) return bad(quoted(key) + " must be a list of schemas");
      merged_.choice = &choice->get_array();
      merged_.choice_part = index;
      merged_.is_exclusive_choice = bit == SchemaPart::kOneOf;
    }
    return ok_status();
  }

  Status add_keywords(const json::object& schema) {
    for (const auto& member : schema) {
      const std::string_view key(member.key().data(), member.key().size());
      const json::value& value = member.value();
      implied_types_ |= type_of_keyword(key);
      work_.spend(8);
      RETURN_IF_ERROR(check_supported(key, value));
      RETURN_IF_ERROR(add_general(key, value, schema));
      RETURN_IF_ERROR(add_number_keyword(key, value, schema));
      RETURN_IF_ERROR(add_size_keyword(key, value));
    }
    return ok_status();
  }

  Status check_supported(std::string_view key, const json::value& value) const {
    static constexpr std::string_view kUnsupported[] = {"not",
                                                        "if",
                                                        "contains",
                                                        "dependentRequired",
                                                        "dependentSchemas",
                                                        "dependencies",
                                                        "unevaluatedProperties",
                                                        "unevaluatedItems",
                                                        "$dynamicRef",
                                                        "$recursiveRef"};
    if (options_.is_lenient ||
        std::find(std::begin(kUnsupported), std::end(kUnsupported), key) == std::end(kUnsupported)) {
      return ok_status();
    }
    const bool says_nothing = (value.is_object() && value.get_object().empty() && key != "not") ||
                              (value.is_bool() && value.get_bool() && key.starts_with("unevaluated"));
    if (says_nothing) return ok_status();
    return unimplemented("schema: the keyword " + quoted(key) + " is not supported; write the schema without it");
  }

  Status add_general(std::string_view key, const json::value& value, const json::object& schema) {
    if (key == "type") return add_type(value, schema);
    if (key == "enum") {
      if (!value.is_array()) return bad("\"enum\" must be a list");
      std::vector<const json::value*> values;
      for (const json::value& constant : value.get_array()) values.push_back(&constant);
      keep_constants(values);
    }
    if (key == "const") keep_constants({&value});
    if (key == "required") {
      if (!value.is_array()) return bad("\"required\" must be a list of names");
      work_.spend(4 * value.get_array().size());
      for (const json::value& name : value.get_array()) {
        if (!name.is_string()) return bad("\"required\" must be a list of names");
        const std::string text(view(name.get_string()));
        if (required_.insert(text).second) merged_.required.push_back(text);
      }
    }
    if (key == "pattern") {
      if (!value.is_string()) return bad("\"pattern\" must be a string");
      add_once(merged_.patterns, view(value.get_string()));
    }
    if (key == "format") {
      if (!value.is_string()) return bad("\"format\" must be a string");
      add_once(merged_.formats, view(value.get_string()));
    }
    if (key == "uniqueItems") merged_.has_unique_items |= value.is_bool() && value.get_bool();
    return ok_status();
  }

  static void add_once(std::vector<std::string>& list, std::string_view text) {
    if (std::find(list.begin(), list.end(), text) == list.end()) list.emplace_back(text);
  }

  Status add_type(const json::value& value, const json::object& schema) {
    uint8_t types = 0;
    auto add = [&](const json::value& name) -> Status {
      const uint8_t type = name.is_string() ? type_named(view(name.get_string())) : 0;
      if (type == 0) {
        return bad("\"type\" is " + json::serialize(name) +
                   "; it must be null, boolean, integer, number, string, array or object, or a list of these");
      }
      types |= type;
      return ok_status();
    };
    if (value.is_array()) {
      for (const json::value& name : value.get_array()) RETURN_IF_ERROR(add(name));
    } else {
      RETURN_IF_ERROR(add(value));
    }
    // OpenAPI 3.0 writes a type that may be null as {"type": ..., "nullable": true}.
    if (const json::value* nullable = schema.if_contains("nullable"); nullable && nullable->is_bool()) {
      if (nullable->get_bool()) types |= kNullType;
    }
    merged_.types &= types;
    has_type_ = true;
    return ok_status();
  }

  void keep_constants(const std::vector<const json::value*>& values) {
    work_.spend(values.size());
    if (!merged_.constants) {
      merged_.constants = values;
      return;
    }
    const ConstantSet others(values, work_);
    work_.spend(8 * merged_.constants->size());
    std::erase_if(*merged_.constants, [&](const json::value* kept) { return !others.contains(*kept); });
  }

  Status add_number_keyword(std::string_view key, const json::value& value, const json::object& schema) {
    const bool is_low = key == "minimum" || key == "exclusiveMinimum";
    const bool is_high = key == "maximum" || key == "exclusiveMaximum";
    if (!is_low && !is_high && key != "multipleOf") return ok_status();
    // Draft 4: "exclusiveMinimum": true beside "minimum".
    if (value.is_bool()) return ok_status();
    const std::optional<Decimal> number = value.is_number() ? Decimal::parse(number_text(value)) : std::nullopt;
    if (!number) return bad(quoted(key) + " must be a number of at most some hundred digits");
    if (key == "multipleOf") {
      if (number->is_negative || number->is_zero()) return bad("\"multipleOf\" must be greater than zero");
      merged_.number.multiples_of.push_back(*number);
      return ok_status();
    }
    const char* exclusive_key = is_low ? "exclusiveMinimum" : "exclusiveMaximum";
    const json::value* exclusive = schema.if_contains(exclusive_key);
    const bool is_exclusive =
        key == exclusive_key || (exclusive != nullptr && exclusive->is_bool() && exclusive->get_bool());
    std::optional<NumberBound>& bound = is_low ? merged_.number.low : merged_.number.high;
    const int order = bound ? compare(*number, bound->value) : 0;
    if (!bound || (is_low ? order > 0 : order < 0) || (order == 0 && is_exclusive)) {
      bound = NumberBound{*number, is_exclusive};
    }
    return ok_status();
  }

  Status add_size_keyword(std::string_view key, const json::value& value) {
    struct Size {
      std::string_view key;
      int64_t* value;
      bool is_minimum;
    };
    const Size sizes[] = {
        {"minLength", &merged_.min_length, true},         {"maxLength", &merged_.max_length, false},
        {"minItems", &merged_.min_items, true},           {"maxItems", &merged_.max_items, false},
        {"minProperties", &merged_.min_properties, true}, {"maxProperties", &merged_.max_properties, false}};
    for (const Size& size : sizes) {
      if (size.key != key) continue;
      double number = -1;
      if (value.is_number()) number = value.to_number<double>();
      if (!(number >= 0) || number != std::floor(number)) return bad(quoted(key) + " must be a whole number from 0");
      const auto count = static_cast<int64_t>(std::min(number, 1e9));
      if (size.is_minimum) {
        *size.value = std::max(*size.value, count);
      } else {
        *size.value = *size.value == -1 ? count : std::min(*size.value, count);
      }
    }
    return ok_status();
  }

  const SchemaDocument& document_;
  const JsonSchemaOptions& options_;
  CompileWork& work_;
  MergedSchema merged_;
  std::set<std::string> required_;
  bool has_type_ = false;
  uint8_t implied_types_ = 0;
};

bool share_a_constant(const MergedSchema& a, const MergedSchema& b, CompileWork& work) {
  if (a.constants->size() == 1 && b.constants->size() == 1) return *a.constants->front() == *b.constants->front();
  const bool is_a_smaller = a.constants->size() < b.constants->size();
  const ConstantSet smaller(*(is_a_smaller ? a : b).constants, work);
  const std::vector<const json::value*>& larger = *(is_a_smaller ? b : a).constants;
  work.spend(larger.size());
  return std::any_of(larger.begin(), larger.end(), [&](const json::value* value) { return smaller.contains(*value); });
}

bool forbids(const MergedSchema& schema, std::string_view name) {
  for (const SchemaPart& part : schema.parts) {
    if (!part.schema->is_object()) continue;
    const json::object& object = part.schema->get_object();
    const json::value* additional = object.if_contains("additionalProperties");
    if (additional == nullptr || !additional->is_bool() || additional->get_bool()) continue;
    if (object.contains("patternProperties")) continue;
    const json::value* properties = object.if_contains("properties");
    if (properties == nullptr || !properties->is_object() || !properties->get_object().contains(name)) return true;
  }
  return false;
}

uint8_t possible_types(const MergedSchema& schema) {
  if (!schema.constants) return schema.types;
  uint8_t types = 0;
  for (const json::value* constant : *schema.constants) types |= types_of_value(*constant);
  return types & schema.types;
}

}  // namespace

uint8_t types_of_value(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return kNullType;
    case json::kind::bool_:
      return kBooleanType;
    case json::kind::int64:
    case json::kind::uint64:
      return kIntegerType;
    case json::kind::double_:
      return value.get_double() == std::floor(value.get_double()) ? kIntegerType : kFractionType;
    case json::kind::string:
      return kStringType;
    case json::kind::array:
      return kArrayType;
    case json::kind::object:
      return kObjectType;
  }
  return 0;
}

Result<MergedSchema> merge_schemas(const SchemaDocument& document, const Conjunction& conjunction,
                                   const JsonSchemaOptions& options, CompileWork& work) {
  return Merger(document, options, work).merge(conjunction);
}

Conjunction with_choice(const MergedSchema& merged, const json::value& choice) {
  Conjunction chosen = merged.parts;
  chosen[merged.choice_part].done |= merged.is_exclusive_choice ? SchemaPart::kOneOf : SchemaPart::kAnyOf;
  const bool is_there =
      std::any_of(chosen.begin(), chosen.end(), [&](const SchemaPart& part) { return part.schema == &choice; });
  if (!is_there) chosen.push_back({&choice, 0});
  return chosen;
}

std::optional<Conjunction> named_property(const MergedSchema& merged, std::string_view name) {
  std::optional<Conjunction> found;
  for (const SchemaPart& part : merged.parts) {
    if (!part.schema->is_object()) continue;
    const json::value* properties = part.schema->get_object().if_contains("properties");
    if (properties == nullptr || !properties->is_object()) continue;
    const json::value* schema = properties->get_object().if_contains(name);
    if (schema == nullptr) continue;
    if (!found) found.emplace();
    found->push_back({schema, 0});
  }
  return found;
}

Result<bool> are_disjoint(const SchemaDocument& document, const MergedSchema& a, const MergedSchema& b,
                          const JsonSchemaOptions& options, CompileWork& work, int depth) {
  constexpr int kMaxDepth = 4;
  RETURN_IF_ERROR(work.status());
  work.spend(8);
  if (a.is_never || b.is_never) return true;
  const auto shared = static_cast<uint8_t>(possible_types(a) & possible_types(b));
  if (shared == 0) return true;
  if (a.constants && b.constants && !share_a_constant(a, b, work)) return true;
  for (const auto& [first, second] : {std::pair{&a, &b}, std::pair{&b, &a}}) {
    if (first->choice == nullptr || depth >= kMaxDepth) continue;
    bool is_apart = true;
    for (const json::value& choice : *first->choice) {
      ASSIGN_OR_RETURN(const MergedSchema chosen, merge_schemas(document, with_choice(*first, choice), options, work));
      ASSIGN_OR_RETURN(const bool one, are_disjoint(document, chosen, *second, options, work, depth + 1));
      is_apart = is_apart && one;
      if (!is_apart) break;
    }
    if (is_apart) return true;
  }
  if (shared != kObjectType || depth >= kMaxDepth) return false;
  for (const auto& [first, second] : {std::pair{&a, &b}, std::pair{&b, &a}}) {
    work.spend(first->required.size() * (4 + second->required.size() / 8));
    for (const std::string& name : first->required) {
      if (forbids(*second, name)) return true;
      const bool is_in_both =
          std::find(second->required.begin(), second->required.end(), name) != second->required.end();
      const std::optional<Conjunction> x = named_property(*first, name);
      const std::optional<Conjunction> y = named_property(*second, name);
      if (!is_in_both || !x || !y) continue;
      ASSIGN_OR_RETURN(const MergedSchema left, merge_schemas(document, *x, options, work));
      ASSIGN_OR_RETURN(const MergedSchema right, merge_schemas(document, *y, options, work));
      ASSIGN_OR_RETURN(const bool is_apart, are_disjoint(document, left, right, options, work, depth + 1));
      if (is_apart) return true;
    }
  }
  return false;
}

}  // namespace quire::grammar_internal

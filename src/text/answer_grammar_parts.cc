#include "text/answer_grammar_parts.h"

#include <boost/json.hpp>
#include <optional>

#include "text/answer_json_scanner.h"
#include "text/answer_parameters.h"

namespace quire::answer {
namespace {

namespace json = boost::json;
using Node = GrammarBuilder::Node;

// Deeper schemas are refused by the grammar too.
constexpr size_t kMaxSchemaDepth = 256;

// The schema of a tool's arguments, which are always an object.
Result<json::object> read_schema(const ToolSpec& tool) {
  if (tool.parameters_schema_json.empty()) return json::object{{"type", "object"}};
  json::parse_options options;
  options.max_depth = kMaxSchemaDepth;
  json::error_code error;
  const json::value value = json::parse(tool.parameters_schema_json, error, {}, options);
  if (error) return invalid_argument("parameters is no JSON schema: " + error.message());
  if (value.is_null()) return json::object{{"type", "object"}};
  if (!value.is_object()) return invalid_argument("parameters must be a JSON schema of type object");
  json::object schema = value.get_object();
  const json::value* type = schema.if_contains("type");
  if (type != nullptr && !(type->is_string() && type->get_string() == "object")) {
    return invalid_argument("parameters must be a JSON schema of type object, as arguments have names");
  }
  schema["type"] = "object";
  return schema;
}

struct Property {
  std::string name;
  std::string schema_json;  // on its own: definitions that it may refer to are copied in
  json::value schema;
  bool is_required = false;
};

std::vector<Property> properties_of(const json::object& schema) {
  std::vector<Property> properties;
  const json::value* members = schema.if_contains("properties");
  if (members == nullptr || !members->is_object()) return properties;
  for (const auto& [name, member] : members->get_object()) {
    Property& property = properties.emplace_back();
    property.name = name;
    property.schema = member;
    json::value whole = member;
    if (whole.is_object()) {
      for (const char* definitions : {"$defs", "definitions"}) {
        const json::value* defined = schema.if_contains(definitions);
        if (defined != nullptr && !whole.get_object().contains(definitions)) whole.get_object()[definitions] = *defined;
      }
    }
    property.schema_json = json::serialize(whole);
    if (const json::value* required = schema.if_contains("required"); required != nullptr && required->is_array()) {
      for (const json::value& item : required->get_array())
        property.is_required |= item.is_string() && item.get_string() == name;
    }
  }
  return properties;
}

bool allows_any_properties(const json::object& schema) {
  const json::value* members = schema.if_contains("properties");
  const json::value* further = schema.if_contains("additionalProperties");
  const bool has_none = members == nullptr || !members->is_object() || members->get_object().empty();
  const bool is_closed = members != nullptr ? further == nullptr || (further->is_bool() && !further->get_bool())
                                            : further != nullptr && further->is_bool() && !further->get_bool();
  return has_none && !is_closed;
}

std::optional<int> get_count(const json::value& schema, std::string_view key) {
  if (!schema.is_object()) return std::nullopt;
  const json::value* value = schema.get_object().if_contains(key);
  if (value == nullptr || !value->is_int64() || value->get_int64() < 0) return std::nullopt;
  return static_cast<int>(std::min<int64_t>(value->get_int64(), 1 << 20));
}

std::string_view pattern_of_format(std::string_view format) {
  if (format == "date") return "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])";
  if (format == "time")
    return "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
  if (format == "date-time") {
    return "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
           "(\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
  }
  if (format == "uuid") return "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}";
  return {};
}

// A value that is written as it is, between tags. Texts with rules of their own are kept free of '<', so that they
// cannot contain the closing tag.
Result<Node> plain_text(GrammarBuilder& builder, const json::value& schema, std::string_view closing_tag) {
  const Node any = builder.text_without({std::string(closing_tag)});
  if (!schema.is_object()) return any;
  const json::object& object = schema.get_object();
  std::vector<Node> choices;
  if (const json::value* list = object.if_contains("enum"); list != nullptr && list->is_array()) {
    for (const json::value& item : list->get_array())
      if (item.is_string()) choices.push_back(builder.literal(item.get_string()));
  }
  if (const json::value* only = object.if_contains("const"); only != nullptr && only->is_string())
    choices.assign(1, builder.literal(only->get_string()));
  if (!choices.empty()) return builder.alternatives(choices);
  const GrammarBuilder::CodePointRange less_than{U'<', U'<'};
  const Node character = builder.character({&less_than, 1}, true);
  if (const json::value* given = object.if_contains("pattern"); given != nullptr && given->is_string()) {
    std::string_view pattern = given->get_string();
    const bool is_open_before = !pattern.starts_with('^');
    const bool is_open_behind = !pattern.ends_with('$') || pattern.ends_with("\\$");
    if (!is_open_before) pattern.remove_prefix(1);
    if (!is_open_behind) pattern.remove_suffix(1);
    ASSIGN_OR_RETURN(const Node match, builder.regex(pattern));
    const Node further = builder.repeat(character, 0);
    return builder.sequence(
        {is_open_before ? further : builder.empty(), match, is_open_behind ? further : builder.empty()});
  }
  if (const json::value* format = object.if_contains("format"); format != nullptr && format->is_string()) {
    const std::string_view pattern = pattern_of_format(format->get_string());
    if (!pattern.empty()) return builder.regex(pattern);
  }
  const auto min_length = get_count(schema, "minLength"), max_length = get_count(schema, "maxLength");
  if (!min_length && !max_length) return any;
  return builder.repeat(character, min_length.value_or(0), max_length.value_or(GrammarBuilder::kNoMaximum));
}

JsonSchemaOptions schema_options(const ToolSpec& tool) {
  JsonSchemaOptions options;
  options.is_lenient = !tool.is_strict;
  return options;
}

}  // namespace

Result<Node> GrammarParts::content(const ContentRule& rule) {
  switch (rule.kind) {
    case ContentRule::Kind::kAny:
      return builder_->any_text();
    case ContentRule::Kind::kJsonObject:
      return builder_->json_object();
    case ContentRule::Kind::kJsonSchema:
      return builder_->json_schema(rule.text);
    case ContentRule::Kind::kRegex:
      return builder_->regex(rule.text);
    case ContentRule::Kind::kEbnf:
      return builder_->ebnf(rule.text);
    case ContentRule::Kind::kChoices: {
      if (rule.choices.empty()) return invalid_argument("guided_choice needs at least one choice");
      std::vector<Node> choices;
      for (const std::string& choice : rule.choices) choices.push_back(builder_->literal(choice));
      return builder_->alternatives(choices);
    }
  }
  return builder_->any_text();
}

Result<Node> GrammarParts::arguments(const ToolSpec& tool) {
  ASSIGN_OR_RETURN(const json::object schema, read_schema(tool));
  // Says nothing but that it is an object.
  if (schema.size() == 1) return builder_->json_object();
  return builder_->json_schema(json::serialize(schema), schema_options(tool));
}

Result<Node> GrammarParts::call_object(const AnswerElement& element, const ToolSpec& tool) {
  ASSIGN_OR_RETURN(const Node object, arguments(tool));
  std::string before = "{\"" + std::string(element.name_key) + "\": \"";
  append_json_escaped(tool.name, &before);
  before += "\", \"" + std::string(element.text) + "\": ";
  return builder_->sequence({builder_->literal(before), object, builder_->literal("}")});
}

Result<Node> GrammarParts::tagged_parameters(const ParameterSyntax& syntax, const ToolSpec& tool) {
  ASSIGN_OR_RETURN(const json::object schema, read_schema(tool));
  const ParameterTypes types(tool.parameters_schema_json);
  const auto parameter = [&](Node key, Node value, bool is_text) {
    std::string_view key_close = syntax.key_close;
    if (!syntax.key_close_text.empty()) key_close = is_text ? syntax.key_close_text : syntax.key_close_json;
    std::string value_open;
    if (!syntax.value_open.empty()) value_open = std::string(syntax.space_between) + std::string(syntax.value_open);
    return builder_->sequence({builder_->special_token(syntax.key_open), key, builder_->special_token(key_close),
                               builder_->literal(value_open), builder_->literal(syntax.space_around_value), value,
                               builder_->literal(syntax.space_around_value),
                               builder_->special_token(syntax.value_close), builder_->literal(syntax.space_between)});
  };
  if (allows_any_properties(schema)) {
    const GrammarBuilder::CodePointRange letters[] = {{U'A', U'Z'}, {U'_', U'_'}, {U'a', U'z'}};
    const Node key = builder_->repeat(builder_->character(letters), 1, 64);
    return builder_->repeat(parameter(key, builder_->text_without({std::string(syntax.value_close)}), true), 0);
  }
  std::vector<Node> parts;
  for (const Property& property : properties_of(schema)) {
    const TypeSet allowed = types.of(property.name);
    const bool is_text = (allowed & kStringType) != 0;
    auto value =
        is_text ? plain_text(*builder_, allowed == kStringType ? property.schema : json::value(), syntax.value_close)
                : builder_->json_schema(property.schema_json, schema_options(tool));
    if (!value.is_ok()) return value.status().with_context("the parameter '" + property.name + "'");
    const Node whole = parameter(builder_->literal(property.name), value.value(), is_text);
    parts.push_back(property.is_required ? whole : builder_->optional(whole));
  }
  return builder_->sequence(parts);
}

Result<Node> GrammarParts::python_call(const ToolSpec& tool) {
  ASSIGN_OR_RETURN(const json::object schema, read_schema(tool));
  const std::vector<Property> properties = properties_of(schema);
  const ParameterTypes types(tool.parameters_schema_json);
  // From the last to the first: what may follow a parameter, if one stands before it already or not.
  Node after_none = builder_->empty(), after_some = builder_->empty();
  for (size_t i = properties.size(); i-- > 0;) {
    const Property& property = properties[i];
    auto value = builder_->json_schema(property.schema_json, schema_options(tool));
    if (!value.is_ok()) return value.status().with_context("the parameter '" + property.name + "'");
    Node written = value.value();
    if (types.of(property.name) == kBooleanType)
      written = builder_->alternatives({builder_->literal("True"), builder_->literal("False")});
    // Rules, so that each is made once and not once for every way to it.
    const Node tail = builder_->declare_rule("parameters behind " + property.name);
    builder_->define_rule(tail, after_some);
    const Node here = builder_->sequence({builder_->literal(property.name + "="), written, tail});
    const Node with_comma = builder_->sequence({builder_->literal(", "), here});
    after_none = property.is_required ? here : builder_->alternatives({here, after_none});
    after_some = property.is_required ? with_comma : builder_->alternatives({with_comma, after_some});
  }
  return builder_->sequence({builder_->literal(tool.name + "("), after_none, builder_->literal(")")});
}

}  // namespace quire::answer

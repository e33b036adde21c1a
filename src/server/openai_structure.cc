// The many ways in which clients ask for an answer of a certain form. See openai_types.h.
#include <array>

#include "server/openai_parsing.h"

namespace quire {

namespace json = boost::json;

namespace {

using Kind = StructureRequest::Kind;

constexpr size_t kMaxChoices = 10'000;

// Takes a schema as an object, as a boolean, or as text that holds one.
void set_schema(FieldReader& reader, std::string_view field, const json::value& value, StructureRequest& structure) {
  if (value.is_string()) {
    structure.text = std::string(value.get_string());
  } else if (value.is_object() || value.is_bool()) {
    structure.text = json::serialize(value);
  } else {
    reader.fail(field, wrong_field(field, "a JSON schema", value));
  }
}

void set_choices(FieldReader& reader, std::string_view field, const json::value& value, StructureRequest& structure) {
  const Status wrong = wrong_field(field, "a list of texts, 1 to " + std::to_string(kMaxChoices), value);
  if (!value.is_array() || value.get_array().empty() || value.get_array().size() > kMaxChoices) {
    reader.fail(field, wrong);
    return;
  }
  for (const json::value& item : value.get_array()) {
    if (!item.is_string()) {
      reader.fail(field, wrong);
      return;
    }
    structure.choices.emplace_back(item.get_string());
  }
}

void set(FieldReader& reader, std::string_view field, Kind kind, const json::value& value,
         StructureRequest& structure) {
  if (structure.kind != Kind::kNone) {
    reader.fail(field, invalid_argument(std::string(field) + " and " + structure.field +
                                        " exclude each other: an answer has one form"));
    return;
  }
  structure.kind = kind;
  structure.field = std::string(field);
  switch (kind) {
    case Kind::kJsonSchema:
      set_schema(reader, field, value, structure);
      break;
    case Kind::kChoice:
      set_choices(reader, field, value, structure);
      break;
    case Kind::kRegex:
    case Kind::kGrammar:
      if (value.is_string())
        structure.text = std::string(value.get_string());
      else
        reader.fail(field, wrong_field(field, "a string", value));
      break;
    case Kind::kJsonObject:
      if (!value.is_bool()) reader.fail(field, wrong_field(field, "true or false", value));
      if (value.is_bool() && !value.get_bool()) structure = {};
      break;
    case Kind::kNone:
      break;
  }
}

// Of response_format: a schema, or without one any object.
void set_object(FieldReader& reader, const json::value* schema, StructureRequest& structure) {
  if (schema == nullptr || schema->is_null()) {
    set(reader, "response_format", Kind::kJsonObject, true, structure);
  } else {
    set(reader, "response_format", Kind::kJsonSchema, *schema, structure);
  }
}

void read_response_format(FieldReader& reader, const json::value& format, StructureRequest& structure) {
  const std::string_view wanted =
      "{\"type\": \"text\"}, {\"type\": \"json_object\"}, which may have a \"schema\", or {\"type\": \"json_schema\", "
      "\"json_schema\": {\"schema\": ...}}";
  const json::value* type = format.is_object() ? format.get_object().if_contains("type") : nullptr;
  if (type == nullptr || !type->is_string()) {
    reader.fail_wanted("response_format", wanted);
    return;
  }
  const std::string_view name = type->get_string();
  if (name == "text") return;
  if (name == "json_object") {
    // Several servers take a schema here; it says more than "an object".
    set_object(reader, format.get_object().if_contains("schema"), structure);
    return;
  }
  if (name != "json_schema") {
    reader.fail_wanted("response_format", wanted);
    return;
  }
  const json::value* described = format.get_object().if_contains("json_schema");
  if (described == nullptr || !described->is_object()) {
    reader.fail_wanted("response_format", wanted);
    return;
  }
  set_object(reader, described->get_object().if_contains("schema"), structure);
}

struct Form {
  std::string_view name;
  Kind kind;
};

constexpr std::array<Form, 4> kGuidedForms = {{{"guided_json", Kind::kJsonSchema},
                                               {"guided_regex", Kind::kRegex},
                                               {"guided_choice", Kind::kChoice},
                                               {"guided_grammar", Kind::kGrammar}}};
constexpr std::array<Form, 5> kStructuredForms = {{{"json", Kind::kJsonSchema},
                                                   {"regex", Kind::kRegex},
                                                   {"choice", Kind::kChoice},
                                                   {"grammar", Kind::kGrammar},
                                                   {"json_object", Kind::kJsonObject}}};

}  // namespace

void read_structure(FieldReader& reader, StructureRequest& structure) {
  constexpr UnsupportedField kUnsupported[] = {
      {"structural_tag", "use response_format, tools or structured_outputs"},
      {"guided_whitespace_pattern", "JSON is written without it"},
  };
  refuse_fields(reader, kUnsupported);
  if (const json::value* format = reader.find("response_format")) read_response_format(reader, *format, structure);
  for (const Form& form : kGuidedForms) {
    if (const json::value* value = reader.find(form.name)) set(reader, form.name, form.kind, *value, structure);
  }
  const json::value* outputs = reader.find("structured_outputs");
  if (outputs == nullptr) return;
  if (!outputs->is_object()) {
    reader.fail_wanted("structured_outputs", "an object with json, regex, choice, grammar or json_object");
    return;
  }
  for (const Form& form : kStructuredForms) {
    const json::value* value = outputs->get_object().if_contains({form.name.data(), form.name.size()});
    if (value == nullptr || value->is_null()) continue;
    set(reader, "structured_outputs." + std::string(form.name), form.kind, *value, structure);
  }
  const json::value* tag = outputs->get_object().if_contains("structural_tag");
  if (tag != nullptr && !tag->is_null()) {
    reader.fail("structured_outputs", invalid_argument("structured_outputs.structural_tag is not supported: use json, "
                                                       "regex, choice or grammar, or tools"));
  }
}

}  // namespace quire

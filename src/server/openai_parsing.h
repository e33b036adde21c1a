// What the readers of the API's bodies share. Only for server/openai_*.cc.
#pragma once

#include <boost/json.hpp>

#include "server/json_fields.h"
#include "server/openai_types.h"

namespace quire {

// Reads the body as an object.
Result<boost::json::object> parse_body(std::string_view body);

// The fields of GenerationFields, sampling fields but those in `without_sampling` included.
void read_generation_fields(FieldReader& reader, const boost::json::object& body, const ApiLimits& limits,
                            std::span<const std::string_view> without_sampling, GenerationFields& fields);

// response_format, guided_json and its kin, structured_outputs: at most one of them.
void read_structure(FieldReader& reader, StructureRequest& structure);

// "prompt" of completions, "input" of embeddings: a text, ids, or a list of texts or of ids.
void read_prompts(FieldReader& reader, std::string_view name, const ApiLimits& limits,
                  std::vector<PromptInput>& prompts);

// The fields of ChatRequest that go into the template, and tools.
void read_conversation(FieldReader& reader, const ApiLimits& limits, ChatRequest& request);
void read_tools(FieldReader& reader, const ApiLimits& limits, ChatRequest& request);

// Refuses fields that would change the answer and are not supported.
struct UnsupportedField {
  std::string_view name;
  std::string_view advice;
  bool is_fine_if_false = true;  // false, 0, "" and empty lists change nothing
};
void refuse_fields(FieldReader& reader, std::span<const UnsupportedField> fields);

inline ApiError error_of(const FieldReader& reader) {
  return {reader.status(), reader.param(), {}};
}

}  // namespace quire

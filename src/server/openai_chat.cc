// Conversations and tools of chat requests, brought into the form that chat templates read. See openai_types.h.
#include "server/openai_parsing.h"

namespace quire {

namespace json = boost::json;

namespace {

std::string at(std::string_view list, size_t index, std::string_view field = {}) {
  std::string name = std::string(list) + "[" + std::to_string(index) + "]";
  if (!field.empty()) name += "." + std::string(field);
  return name;
}

// Templates read strings: parts of text are joined by line ends.
Status read_content_parts(const std::string& name, const json::array& parts, std::string& content) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const json::value& part = parts[i];
    if (part.is_string()) {
      if (i > 0) content += '\n';
      content += part.get_string();
      continue;
    }
    const json::object* object = part.if_object();
    const json::value* type = object != nullptr ? object->if_contains("type") : nullptr;
    if (type == nullptr || !type->is_string()) return wrong_field(at(name, i), "an object with a \"type\"", part);
    const std::string_view kind = type->get_string();
    const bool is_text = kind == "text" || kind == "input_text" || kind == "output_text" || kind == "refusal";
    if (!is_text) {
      return unimplemented(at(name, i) + " is of type " + shown_json(*type) +
                           ": this model reads text only, no images, sound or files");
    }
    const json::value* text = object->if_contains(kind == "refusal" ? "refusal" : "text");
    if (text == nullptr || !text->is_string()) return wrong_field(at(name, i), "a part with a \"text\"", part);
    if (i > 0) content += '\n';
    content += text->get_string();
  }
  return ok_status();
}

// There is one type of tools, which clients may leave out.
bool is_of_type_function(const json::object& tool_or_call) {
  const json::value* type = tool_or_call.if_contains("type");
  return type == nullptr || (type->is_string() && type->get_string() == "function");
}

// The client's record of a call that the model made: templates want its arguments as an object.
Status read_tool_calls(const std::string& name, json::value& calls) {
  if (!calls.is_array()) return wrong_field(name, "a list of tool calls", calls);
  json::array& list = calls.get_array();
  for (size_t i = 0; i < list.size(); ++i) {
    json::object* call = list[i].if_object();
    json::value* function = call != nullptr ? call->if_contains("function") : nullptr;
    json::value* function_name =
        function != nullptr && function->is_object() ? function->get_object().if_contains("name") : nullptr;
    if (function_name == nullptr || !function_name->is_string() || !is_of_type_function(*call)) {
      return wrong_field(at(name, i), "a call of type \"function\" with a function that has a name", list[i]);
    }
    if (const json::value* id = call->if_contains("id"); id != nullptr && !id->is_string()) {
      return wrong_field(at(name, i) + ".id", "a string", *id);
    }
    json::value& arguments = function->get_object()["arguments"];
    if (arguments.is_null()) arguments = json::object();
    if (!arguments.is_string()) continue;
    if (arguments.get_string().empty()) {
      arguments = json::object();
      continue;
    }
    Result<json::value> parsed = parse_json(arguments.get_string());
    // Models write broken JSON at times; then the template gets the text.
    if (parsed.is_ok()) arguments = std::move(parsed).value();
  }
  return ok_status();
}

Status read_message(const std::string& name, json::object& message) {
  const json::value* given_role = message.if_contains("role");
  if (given_role == nullptr || !given_role->is_string() || given_role->get_string().empty()) {
    return invalid_argument(name + " has no role: \"system\", \"user\", \"assistant\" or \"tool\"");
  }
  const bool is_assistant = given_role->get_string() == "assistant";
  if (json::value* calls = message.if_contains("tool_calls")) {
    if (calls->is_null() || (calls->is_array() && calls->get_array().empty())) {
      message.erase("tool_calls");
    } else {
      RETURN_IF_ERROR(read_tool_calls(name + ".tool_calls", *calls));
    }
  }
  for (const std::string_view field : {"name", "tool_call_id", "reasoning_content"}) {
    const json::value* text = message.if_contains(field);
    if (text != nullptr && !text->is_null() && !text->is_string()) {
      return wrong_field(name + "." + std::string(field), "a string", *text);
    }
  }
  json::value& content = message["content"];
  if (content.is_array()) {
    std::string text;
    RETURN_IF_ERROR(read_content_parts(name + ".content", content.get_array(), text));
    content = text;
  } else if (content.is_null()) {
    if (!is_assistant) return invalid_argument(name + " has no content");
    content = "";
  } else if (!content.is_string()) {
    return wrong_field(name + ".content", "a string or a list of text parts", content);
  }
  return ok_status();
}

}  // namespace

void read_conversation(FieldReader& reader, const ApiLimits& limits, ChatRequest& request) {
  const json::value* messages = reader.find("messages");
  if (messages == nullptr || !messages->is_array() || messages->get_array().empty() ||
      messages->get_array().size() > limits.max_messages) {
    reader.fail_wanted("messages", "a list of 1 to " + std::to_string(limits.max_messages) + " messages");
    return;
  }
  json::array read;
  read.reserve(messages->get_array().size());
  for (size_t i = 0; i < messages->get_array().size(); ++i) {
    const json::value& message = messages->get_array()[i];
    const std::string name = at("messages", i);
    if (!message.is_object()) {
      reader.fail("messages", wrong_field(name, "an object with a role and a content", message));
      return;
    }
    json::object copy = message.get_object();
    const Status status = read_message(name, copy);
    if (!status.is_ok()) {
      reader.fail("messages", status);
      return;
    }
    read.push_back(std::move(copy));
  }
  request.conversation["messages"] = std::move(read);

  bool adds_prompt = true;
  bool continues = false;
  reader.read_bool("add_generation_prompt", adds_prompt);
  reader.read_bool("continue_final_message", continues);
  if (continues && adds_prompt && reader.find("add_generation_prompt") != nullptr) {
    reader.fail("continue_final_message",
                invalid_argument("continue_final_message and add_generation_prompt exclude each other"));
  }
  request.conversation["add_generation_prompt"] = adds_prompt && !continues;
  request.conversation["continue_final_message"] = continues;
  for (const std::string_view name : {"documents", "chat_template_kwargs"}) {
    if (const json::value* value = reader.find(name)) {
      if (name == "documents" ? !value->is_array() : !value->is_object()) {
        reader.fail_wanted(name, name == "documents" ? "a list" : "an object");
      }
      request.conversation[{name.data(), name.size()}] = *value;
    }
  }
  // OpenAI's own field for thinking models; templates that know it read it as a variable.
  std::string effort;
  reader.read_string("reasoning_effort", effort, limits.max_name_bytes);
  if (!effort.empty()) {
    json::value& kwargs = request.conversation["chat_template_kwargs"];
    if (!kwargs.is_object()) kwargs = json::object();
    if (!kwargs.get_object().contains("reasoning_effort")) kwargs.get_object()["reasoning_effort"] = effort;
  }
}

void read_tools(FieldReader& reader, const ApiLimits& limits, ChatRequest& request) {
  reader.read_bool("parallel_tool_calls", request.has_parallel_tool_calls);
  const json::value* tools = reader.find("tools");
  if (tools != nullptr && (!tools->is_array() || tools->get_array().size() > limits.max_tools)) {
    reader.fail_wanted("tools", "a list of at most " + std::to_string(limits.max_tools) + " functions");
    return;
  }
  if (tools != nullptr) {
    for (size_t i = 0; i < tools->get_array().size(); ++i) {
      const json::value& tool = tools->get_array()[i];
      const json::object* object = tool.if_object();
      const json::value* function = object != nullptr ? object->if_contains("function") : nullptr;
      if (function == nullptr || !function->is_object() || !is_of_type_function(*object)) {
        reader.fail("tools", wrong_field(at("tools", i), "{\"type\": \"function\", \"function\": {...}}", tool));
        return;
      }
      FieldReader inner(function->get_object(), at("tools", i, "function."));
      ToolDefinition definition;
      definition.parameters_json = "{}";
      inner.read_string("name", definition.name, limits.max_name_bytes);
      if (definition.name.empty()) inner.fail_wanted("name", "a string that is not empty");
      inner.read_bool("strict", definition.is_strict);
      if (const json::value* parameters = inner.find("parameters")) {
        if (!parameters->is_object()) inner.fail_wanted("parameters", "a JSON schema");
        definition.parameters_json = json::serialize(*parameters);
      }
      reader.fail("tools", inner.status());
      for (const ToolDefinition& earlier : request.tools) {
        if (earlier.name == definition.name) {
          reader.fail("tools", invalid_argument("tools has two functions of the name " + definition.name));
        }
      }
      request.tools.push_back(std::move(definition));
    }
  }
  using Kind = ToolChoiceRequest::Kind;
  request.tool_choice.kind = request.tools.empty() ? Kind::kNone : Kind::kAuto;
  if (const json::value* choice = reader.find("tool_choice")) {
    const std::string_view wanted =
        "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": ...}}";
    if (choice->is_string() && choice->get_string() == "none") {
      request.tool_choice.kind = Kind::kNone;
    } else if (choice->is_string() && choice->get_string() == "auto") {
    } else if (choice->is_string() && choice->get_string() == "required") {
      request.tool_choice.kind = Kind::kRequired;
    } else if (choice->is_object()) {
      const json::value* function = choice->get_object().if_contains("function");
      const json::value* name =
          function != nullptr && function->is_object() ? function->get_object().if_contains("name") : nullptr;
      if (name == nullptr || !name->is_string()) {
        reader.fail_wanted("tool_choice", wanted);
        return;
      }
      request.tool_choice = {Kind::kNamed, std::string(name->get_string())};
      bool is_known = false;
      for (const ToolDefinition& tool : request.tools) is_known = is_known || tool.name == request.tool_choice.name;
      if (!is_known) {
        reader.fail("tool_choice",
                    invalid_argument("tool_choice names " + shown_json(*name) + ", which tools has not"));
      }
    } else {
      reader.fail_wanted("tool_choice", wanted);
    }
    if (request.tools.empty() && request.tool_choice.kind == Kind::kRequired) {
      reader.fail("tool_choice", invalid_argument("tool_choice asks for a call, but there are no tools"));
    }
  }
  // A model that may not call should not read of tools.
  if (tools != nullptr && request.tool_choice.kind != Kind::kNone) request.conversation["tools"] = *tools;
}

}  // namespace quire

#include "text/answer_messages.h"

#include <algorithm>

namespace quire {
namespace {

using jinja::Value;
using Entries = std::vector<std::pair<std::string, Value>>;

Entries entries_of(const Value& dict) {
  Entries entries;
  for (const auto& [key, value] : dict.dict_object().entries)
    if (key.is_string()) entries.emplace_back(key.bytes(), value);
  return entries;
}

Value* find(Entries& entries, std::string_view key) {
  for (auto& [name, value] : entries)
    if (name == key) return &value;
  return nullptr;
}

void set(Entries& entries, std::string_view key, Value value) {
  if (Value* present = find(entries, key)) {
    *present = std::move(value);
  } else {
    entries.emplace_back(key, std::move(value));
  }
}

void erase_key(Entries& entries, std::string_view key) {
  std::erase_if(entries, [&](const auto& entry) { return entry.first == key; });
}

std::string text_of(const Value* value) {
  return value != nullptr && value->is_string() ? std::string(value->bytes()) : std::string();
}

bool is_list(const Value* value) {
  return value != nullptr && value->kind() == jinja::Kind::kList;
}

// As the templates' own tojson writes it.
Result<std::string> to_json(const Value& value) {
  ASSIGN_OR_RETURN(const auto writer, ChatTemplate::create("{{ value | tojson }}"));
  TemplateInput input;
  input.variables.emplace_back("value", value);
  ASSIGN_OR_RETURN(RenderedPrompt prompt, writer->render(input));
  return std::move(prompt.text);
}

// --- Ids and arguments ---

std::string nine_letters(const std::string& id) {
  const auto is_letter = [](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  };
  if (id.size() == 9 && std::all_of(id.begin(), id.end(), is_letter)) return id;
  // FNV-1a: the same id gives the same letters in the call and in its result.
  uint64_t hash = 14695981039346656037u;
  for (const char byte : id) hash = (hash ^ static_cast<unsigned char>(byte)) * 1099511628211u;
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  std::string letters;
  for (int i = 0; i < 9; ++i) {
    letters += kLetters[hash % kLetters.size()];
    hash /= kLetters.size();
  }
  return letters;
}

Result<Value> convert_arguments(const Value& arguments, bool wants_text) {
  if (wants_text) {
    if (arguments.is_string()) return arguments.bytes().empty() ? Value::string("{}") : arguments;
    ASSIGN_OR_RETURN(std::string text, to_json(arguments));
    return Value::string(std::move(text));
  }
  if (!arguments.is_string()) return arguments;
  if (arguments.bytes().find_first_not_of(" \n\r\t") == std::string_view::npos) return Value::dict({});
  // What a model wrote may be broken, and it is to see that: then the text stays.
  const Result<Value> object = jinja::from_json(arguments.bytes());
  return object.is_ok() && object.value().is_dict() ? object.value() : arguments;
}

// --- Calls as text, for templates that do not show them ---

std::string value_text(const Value& value) {
  if (value.is_string()) return std::string(value.bytes());
  const Result<std::string> json = to_json(value);
  return json.is_ok() ? json.value() : std::string();
}

std::string parameters_text(const ParameterSyntax& syntax, const Value& arguments) {
  std::string text;
  for (const auto& [key, value] : entries_of(arguments)) {
    const std::string_view key_close = syntax.key_close_text.empty() ? syntax.key_close
                                       : value.is_string()           ? syntax.key_close_text
                                                                     : syntax.key_close_json;
    text.append(syntax.key_open).append(key).append(key_close);
    if (!syntax.value_open.empty()) text.append(syntax.space_between).append(syntax.value_open);
    text.append(syntax.space_around_value).append(value_text(value)).append(syntax.space_around_value);
    text.append(syntax.value_close).append(syntax.space_between);
  }
  return text;
}

std::string python_text(const std::string& name, const Value& arguments) {
  std::string text = name + "(";
  for (const auto& [key, value] : entries_of(arguments)) {
    const Result<std::string> json = to_json(value);
    text += (text.back() == '(' ? "" : ", ") + key + "=" + (json.is_ok() ? json.value() : "None");
  }
  return text + ")";
}

struct ToldCall {
  std::string name;
  Value arguments;
};

std::string elements_text(const ToolSyntax& syntax, std::span<const AnswerElement> elements, const ToldCall& call,
                          size_t call_index) {
  using Kind = AnswerElement::Kind;
  const Value object = call.arguments.is_dict() ? call.arguments : Value::dict({});
  std::string text;
  for (const AnswerElement& element : elements) {
    if (element.is_not_written) continue;
    switch (element.kind) {
      case Kind::kText:
      case Kind::kSpace:
        text += element.text;
        break;
      case Kind::kName:
        text += call.name;
        break;
      case Kind::kNumber:
        text += std::to_string(call_index);
        break;
      case Kind::kCallId:
        text += nine_letters(call.name + std::to_string(call_index));
        break;
      case Kind::kCallObject:
        text += "{\"" + std::string(element.name_key) + "\": " + jinja::json_quote(call.name) + ", \"" +
                std::string(element.text) + "\": " + value_text(call.arguments) + "}";
        break;
      case Kind::kArguments:
        text += value_text(call.arguments);
        break;
      case Kind::kParameters:
        text += parameters_text(syntax.parameters, object);
        break;
      case Kind::kPythonCall:
        text += python_text(call.name, object);
        break;
    }
  }
  return text;
}

std::string calls_text(const ToolSyntax& syntax, const std::vector<ToldCall>& calls) {
  const ToldCall none{"", Value::dict({})};
  std::string text = elements_text(syntax, syntax.opening, none, 0);
  const bool has_lines = syntax.opening.empty() && syntax.separator.empty();
  for (size_t i = 0; i < calls.size(); ++i) {
    if (i > 0) text += has_lines ? "\n" : elements_text(syntax, syntax.separator, none, i);
    text += elements_text(syntax, syntax.call, calls[i], i);
  }
  return text + elements_text(syntax, syntax.closing, none, 0);
}

// --- One conversation ---

struct Preparer {
  const TemplateTraits& traits;
  const ToolSyntax& syntax;
  std::vector<std::pair<std::string, std::string>> names_by_id;  // of the calls so far
  std::string instructions;                                      // on tools, still to be told

  Result<Value> join_parts(const Value& parts) const {
    std::string text;
    bool is_first = true;
    for (const Value& part : parts.items()) {
      const Value* type = part.is_dict() ? part.dict_object().find("type") : nullptr;
      const Value* part_text = part.is_dict() ? part.dict_object().find("text") : nullptr;
      if (part.is_string()) part_text = &part;
      if (part_text == nullptr || !part_text->is_string()) {
        return unimplemented("content parts of type '" + text_of(type) +
                             "' are not supported: this model's chat template takes text only");
      }
      if (!is_first) text += '\n';
      is_first = false;
      text += part_text->bytes();
    }
    return Value::string(std::move(text));
  }

  Result<Value> convert_call(const Value& call) {
    if (!call.is_dict()) return invalid_argument("tool_calls must be objects with a function");
    Entries entries = entries_of(call);
    Value* function = find(entries, "function");
    if (function == nullptr || !function->is_dict()) {
      return invalid_argument("tool_calls must be objects with a function");
    }
    Entries inner = entries_of(*function);
    Value* arguments = find(inner, "arguments");
    const Value given = arguments == nullptr || arguments->is_none() ? Value::dict({}) : *arguments;
    ASSIGN_OR_RETURN(Value converted, convert_arguments(given, traits.wants_text_arguments));
    set(inner, "arguments", std::move(converted));
    if (const std::string id = text_of(find(entries, "id")); !id.empty()) {
      names_by_id.emplace_back(id, text_of(find(inner, "name")));
      if (traits.wants_nine_letter_ids) set(entries, "id", Value::string(nine_letters(id)));
    }
    if (find(entries, "type") == nullptr) set(entries, "type", Value::string("function"));
    set(entries, "function", Value::dict(std::move(inner)));
    return Value::dict(std::move(entries));
  }

  // As the model would have written them.
  Result<std::string> tell_calls(const std::vector<Value>& calls) const {
    std::vector<ToldCall> told;
    for (const Value& call : calls) {
      const Value& function = *call.dict_object().find("function");
      ASSIGN_OR_RETURN(Value arguments, convert_arguments(*function.dict_object().find("arguments"), false));
      told.push_back({text_of(function.dict_object().find("name")), std::move(arguments)});
    }
    return calls_text(syntax, told);
  }

  Status convert_assistant(Entries& message) {
    Value* calls = find(message, "tool_calls");
    const bool has_calls = is_list(calls) && !calls->items().empty();
    if (has_calls) {
      std::vector<Value> converted;
      for (const Value& call : calls->items()) {
        ASSIGN_OR_RETURN(Value one, convert_call(call));
        converted.push_back(std::move(one));
      }
      Value* content = find(message, "content");
      if (content == nullptr || content->is_none() || (content->is_string() && content->bytes().empty())) {
        const bool is_null = content == nullptr || content->is_none();
        set(message, "content",
            traits.wants_null_content || (is_null && !traits.wants_no_null_content) ? Value::none()
                                                                                    : Value::string(""));
      }
      if (traits.shows_calls) {
        set(message, "tool_calls", Value::list(std::move(converted)));
      } else {
        ASSIGN_OR_RETURN(const std::string told, tell_calls(converted));
        const std::string before = text_of(find(message, "content"));
        set(message, "content", Value::string(before.empty() ? told : before + "\n" + told));
        erase_key(message, "tool_calls");
      }
    } else {
      erase_key(message, "tool_calls");
    }
    convert_thoughts(message, has_calls);
    return ok_status();
  }

  void convert_thoughts(Entries& message, bool has_calls) const {
    constexpr std::string_view kFields[] = {"reasoning_content", "reasoning", "thinking"};
    std::string thoughts;
    for (const std::string_view field : kFields)
      if (thoughts.empty()) thoughts = text_of(find(message, field));
    if (thoughts.empty()) return;
    for (const std::string_view field : kFields) erase_key(message, field);
    if (has_calls && traits.refuses_content_with_thoughts && !text_of(find(message, "content")).empty()) return;
    for (const std::string& field : traits.thought_fields) set(message, field, Value::string(thoughts));
  }

  void convert_result(Entries& message) const {
    const std::string id = text_of(find(message, "tool_call_id"));
    std::string name = text_of(find(message, "name"));
    for (const auto& [call_id, call_name] : names_by_id)
      if (name.empty() && call_id == id) name = call_name;
    if (!name.empty()) set(message, "name", Value::string(name));
    if (!id.empty() && traits.wants_nine_letter_ids) set(message, "tool_call_id", Value::string(nine_letters(id)));
    if (find(message, "content") == nullptr) set(message, "content", Value::string(""));
    if (traits.knows_tool_role) return;
    set(message, "role", Value::string("user"));
    set(message, "content",
        Value::string("Result of " + (name.empty() ? "the call" : name) + ": " + text_of(find(message, "content"))));
    erase_key(message, "tool_call_id");
    erase_key(message, "name");
  }

  Result<Value> convert(const Value& message) {
    if (!message.is_dict()) return message;
    Entries entries = entries_of(message);
    // Clients send every field they know of; a null says that it is not there.
    std::erase_if(entries, [](const auto& entry) { return entry.second.is_none() && entry.first != "content"; });
    const std::string role = text_of(find(entries, "role"));
    if (const Value* content = find(entries, "content"); is_list(content) && traits.wants_text_content) {
      ASSIGN_OR_RETURN(Value text, join_parts(*content));
      set(entries, "content", std::move(text));
    }
    if (role == "developer" && !traits.knows_developer) set(entries, "role", Value::string("system"));
    if (role == "assistant") RETURN_IF_ERROR(convert_assistant(entries));
    if (role == "tool") convert_result(entries);
    const std::string now = text_of(find(entries, "role"));
    const bool takes_instructions = now == (traits.knows_system ? "system" : "user");
    if (!instructions.empty() && takes_instructions) {
      const Value* content = find(entries, "content");
      const std::string text = text_of(content);
      if (content == nullptr || content->is_string()) {
        set(entries, "content",
            Value::string(now == "system" ? text + (text.empty() ? "" : "\n\n") + instructions
                                          : instructions + "\n\n" + text));
        instructions.clear();
      }
    }
    return Value::dict(std::move(entries));
  }
};

Result<std::string> tell_tools(const ToolSyntax& syntax, const std::vector<Value>& tools) {
  std::string text = "You can call these functions:\n";
  for (const Value& tool : tools) {
    const Value* function = tool.is_dict() ? tool.dict_object().find("function") : nullptr;
    ASSIGN_OR_RETURN(const std::string line, to_json(function != nullptr ? *function : tool));
    text += line + "\n";
  }
  const ToldCall example{"function_name", Value::dict({{"argument_name", Value::string("value")}})};
  return text + "To call one, answer with nothing but the call, in this form:\n" + calls_text(syntax, {example}) +
         "\nYou will be told the result. If no call is needed, answer as usual.";
}

Value convert_tool(const Value& tool) {
  if (!tool.is_dict()) return tool;
  Entries entries = entries_of(tool);
  Value* function = find(entries, "function");
  if (function == nullptr || !function->is_dict()) return tool;
  Entries inner = entries_of(*function);
  std::erase_if(inner, [](const auto& entry) { return entry.second.is_none(); });
  if (find(inner, "description") == nullptr) set(inner, "description", Value::string(""));
  if (find(inner, "parameters") == nullptr) {
    set(inner, "parameters", Value::dict({{"type", Value::string("object")}, {"properties", Value::dict({})}}));
  }
  set(entries, "function", Value::dict(std::move(inner)));
  return Value::dict(std::move(entries));
}

// --- Probing ---

class Prober {
 public:
  Prober(const ChatTemplate& chat_template, const std::vector<std::pair<std::string, std::string>>& trusted_strings)
      : template_(chat_template), trusted_(trusted_strings) {}

  void use_tool_list() { wants_tool_list_ = true; }

  // The prompt of these messages; empty where it cannot be rendered.
  std::string render(const std::string& messages, bool has_tools = false, bool has_empty_list = false) const {
    TemplateInput input;
    input.trusted_strings = trusted_;
    const auto list = jinja::from_json("[" + messages + "]");
    const auto tools = jinja::from_json(
        R"([{"type": "function", "function": {"name": "probe_tool", "description": "probe", "parameters": )"
        R"({"type": "object", "properties": {"probe_key": {"type": "string", "description": "probe"}}, "required": ["probe_key"]}}}])");
    if (!list.is_ok() || !tools.is_ok()) return {};
    input.variables.emplace_back("messages", trust_known_roles(list.value()));
    input.variables.emplace_back("tools", has_tools                            ? tools.value()
                                          : has_empty_list || wants_tool_list_ ? Value::list({})
                                                                               : Value::none());
    input.variables.emplace_back("documents", Value::none());
    input.variables.emplace_back("add_generation_prompt", Value::boolean(true));
    const auto prompt = template_.render(input);
    return prompt.is_ok() ? prompt.value().text : std::string();
  }

 private:
  const ChatTemplate& template_;
  const std::vector<std::pair<std::string, std::string>>& trusted_;
  bool wants_tool_list_ = false;
};

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

std::string call_message(const std::string& arguments, const std::string& content = "\"\"",
                         const std::string& id = "abcDEF123", const std::string& further = "") {
  return R"({"role": "user", "content": "probe"}, {"role": "assistant", "content": )" + content + further +
         R"(, "tool_calls": [{"id": ")" + id +
         R"(", "type": "function", "function": {"name": "probe_tool", "arguments": )" + arguments + "}}]}";
}

std::string result_message(const std::string& id = "abcDEF123") {
  return R"(, {"role": "tool", "name": "probe_tool", "tool_call_id": ")" + id + R"(", "content": "PROBERESULT"})";
}

bool reads_field(std::string_view source, const std::string& field) {
  for (const std::string& way : {"." + field, "'" + field + "'", "\"" + field + "\""}) {
    for (size_t at = source.find(way); at != std::string_view::npos; at = source.find(way, at + 1)) {
      const char behind = at + way.size() < source.size() ? source[at + way.size()] : ' ';
      if (behind != '_' && !(behind >= 'a' && behind <= 'z')) return true;  // not ".reasoning_content" for ".reasoning"
    }
  }
  return false;
}

// --- Order of messages ---

std::string role_of(const Value& message) {
  return message.is_dict() ? text_of(message.dict_object().find("role")) : std::string();
}

// An assistant's message with several calls as several messages, each followed by its result.
std::vector<Value> with_one_call_each(const std::vector<Value>& messages) {
  std::vector<Value> split;
  for (size_t i = 0; i < messages.size(); ++i) {
    const Value* calls = role_of(messages[i]) == "assistant" ? messages[i].dict_object().find("tool_calls") : nullptr;
    if (!is_list(calls) || calls->items().size() < 2) {
      split.push_back(messages[i]);
      continue;
    }
    std::vector<Value> results;
    while (i + results.size() + 1 < messages.size() && role_of(messages[i + results.size() + 1]) == "tool")
      results.push_back(messages[i + results.size() + 1]);
    std::vector<bool> is_used(results.size());
    for (size_t c = 0; c < calls->items().size(); ++c) {
      const Value& call = calls->items()[c];
      Entries message = entries_of(messages[i]);
      set(message, "tool_calls", Value::list({call}));
      if (c > 0) {
        // What was said and thought before the calls is told once.
        set(message, "content", Value::none());
        for (const char* field : {"reasoning_content", "reasoning", "thinking"}) erase_key(message, field);
      }
      split.push_back(Value::dict(std::move(message)));
      const std::string id = call.is_dict() ? text_of(call.dict_object().find("id")) : std::string();
      for (size_t r = 0; r < results.size(); ++r) {
        if (is_used[r] || text_of(results[r].dict_object().find("tool_call_id")) != id) continue;
        is_used[r] = true;
        split.push_back(results[r]);
        break;
      }
    }
    for (size_t r = 0; r < results.size(); ++r)
      if (!is_used[r]) split.push_back(results[r]);
    i += results.size();
  }
  return split;
}

// Results that are told as a user's words, in one message: most templates want users and assistants to alternate.
void append_message(std::vector<Value>& messages, Value message, bool is_told_result) {
  if (is_told_result && !messages.empty() && role_of(messages.back()) == "user") {
    Entries last = entries_of(messages.back());
    const Value* before = find(last, "content");
    if (before != nullptr && before->is_string()) {
      const std::string text = std::string(before->bytes()) + "\n" + text_of(message.dict_object().find("content"));
      set(last, "content", Value::string(text));
      messages.back() = Value::dict(std::move(last));
      return;
    }
  }
  messages.push_back(std::move(message));
}

}  // namespace

TemplateTraits TemplateTraits::probe(const ChatTemplate& chat_template, std::string_view source,
                                     const std::vector<std::pair<std::string, std::string>>& trusted_strings) {
  Prober prober(chat_template, trusted_strings);
  const std::string user = R"({"role": "user", "content": "PROBEUSER"})";
  TemplateTraits traits;
  traits.wants_tool_list = prober.render(user).empty() && !prober.render(user, false, true).empty();
  if (traits.wants_tool_list) prober.use_tool_list();
  traits.shows_tools = has(prober.render(user, true), "probe_tool");

  // A template may want to see the result, or may not know results at all; may want no content, or a text.
  const std::string object = R"({"probe_argument": "PROBEVALUE"})";
  const std::string text = R"("{\"probe_argument\": \"PROBEVALUE\"}")";
  std::string content = "\"\"";
  const auto shows = [&](const std::string& arguments, bool is_text) {
    for (const char* given : {"\"\"", "null"}) {
      for (const std::string& result : {result_message(), std::string()}) {
        const std::string prompt = prober.render(call_message(arguments, given) + result, true);
        if (!has(prompt, "probe_argument") || !has(prompt, "PROBEVALUE")) continue;
        if (is_text ? has(prompt, "\\\"probe_argument\\\"") : has(prompt, "'probe_argument'")) continue;
        content = given;
        return true;
      }
    }
    return false;
  };
  const bool shows_objects = shows(object, false), shows_texts = !shows_objects && shows(text, true);
  traits.shows_calls = shows_objects || shows_texts;
  traits.wants_text_arguments = shows_texts;
  traits.wants_null_content = traits.shows_calls && content == "null";
  const std::string& arguments = shows_texts ? text : object;
  const std::string calls = prober.render(call_message(arguments, content) + result_message(), true);
  traits.knows_tool_role = has(calls, "PROBERESULT");
  if (!calls.empty()) {
    const std::string with_null = prober.render(call_message(arguments, "null") + result_message(), true);
    traits.wants_no_null_content = with_null.empty() || (has(with_null, "None") && !has(calls, "None"));
    const std::string other_id = "call_0123456789abcdef";
    traits.wants_nine_letter_ids =
        prober.render(call_message(arguments, content, other_id) + result_message(other_id), true).empty();
    const std::string thoughts = R"(, "thinking": "probe", "reasoning_content": "probe")";
    traits.refuses_content_with_thoughts =
        prober.render(call_message(arguments, "\"probe\"", "abcDEF123", thoughts) + result_message(), true).empty() &&
        !prober.render(call_message(arguments, "\"probe\"") + result_message(), true).empty();
    std::string two = call_message(arguments, content);
    two.replace(two.rfind("]}"), 2,
                R"(, {"id": "abcDEF124", "type": "function", "function": {"name": "probe_second", "arguments": )" +
                    arguments + "}}]}");
    traits.takes_one_call =
        traits.shows_calls &&
        !has(prober.render(two + result_message() + result_message("abcDEF124"), true), "probe_second");
  }
  traits.knows_system = has(prober.render(R"({"role": "system", "content": "PROBESYSTEM"}, )" + user), "PROBESYSTEM");
  traits.knows_developer =
      has(prober.render(R"({"role": "developer", "content": "PROBEDEVELOPER"}, )" + user), "PROBEDEVELOPER");
  const std::string parts = prober.render(R"({"role": "user", "content": [{"type": "text", "text": "PROBEPART"}]})");
  traits.wants_text_content = !has(parts, "PROBEPART") || has(parts, "'type'") || has(parts, "\"type\"");
  for (const char* field : {"reasoning_content", "thinking", "reasoning"})
    if (reads_field(source, field)) traits.thought_fields.emplace_back(field);
  return traits;
}

Result<ToolConversation> prepare_conversation(const TemplateTraits& traits, const ToolSyntax* syntax,
                                              const Value& messages, const Value& tools) {
  if (!is_list(&messages)) return invalid_argument("messages must be a list");
  // The channels of harmony cannot be told; its templates show everything.
  if (syntax == nullptr || syntax->is_harmony) syntax = &tool_syntaxes().back();
  ToolConversation conversation;
  Preparer preparer{traits, *syntax, {}, {}};
  conversation.tools = traits.wants_tool_list ? Value::list({}) : Value::none();
  if (is_list(&tools) && !tools.items().empty()) {
    std::vector<Value> converted;
    for (const Value& tool : tools.items()) converted.push_back(convert_tool(tool));
    if (traits.shows_tools) {
      conversation.tools = Value::list(std::move(converted));
    } else {
      ASSIGN_OR_RETURN(preparer.instructions, tell_tools(*syntax, converted));
    }
  }
  const bool has_system = std::any_of(messages.items().begin(), messages.items().end(), [&](const Value& message) {
    const std::string role = role_of(message);
    return role == "system" || (role == "developer" && !traits.knows_developer);
  });
  std::vector<Value> converted;
  if (!preparer.instructions.empty() && traits.knows_system && !has_system) {
    converted.push_back(
        Value::dict({{"role", Value::string("system")}, {"content", Value::string(std::move(preparer.instructions))}}));
    preparer.instructions.clear();
  }
  for (const Value& message : traits.takes_one_call ? with_one_call_each(messages.items()) : messages.items()) {
    const bool is_told_result = role_of(message) == "tool" && !traits.knows_tool_role;
    ASSIGN_OR_RETURN(Value one, preparer.convert(message));
    append_message(converted, std::move(one), is_told_result);
  }
  conversation.messages = Value::list(std::move(converted));
  return conversation;
}

}  // namespace quire

// A small program around prepare_conversation for tools/goldens/compare_tool_messages.py: for the template in a file,
// and each line of stdin, a JSON object with "messages" and "tools" in OpenAI's form, one line with what the template
// is given and what it renders. Not installed.
#include <fstream>
#include <iostream>
#include <sstream>

#include "text/answer_messages.h"

namespace {

using quire::jinja::Value;

std::string to_json(const Value& value) {
  const auto writer = quire::ChatTemplate::create("{{ value | tojson }}");
  quire::TemplateInput input;
  input.variables.emplace_back("value", value);
  return writer.value()->render(input).value().text;
}

Value traits_of(const quire::TemplateTraits& traits) {
  std::string fields;
  for (const std::string& field : traits.thought_fields) fields += (fields.empty() ? "" : ",") + field;
  return Value::dict({{"shows_tools", Value::boolean(traits.shows_tools)},
                      {"shows_calls", Value::boolean(traits.shows_calls)},
                      {"wants_text_arguments", Value::boolean(traits.wants_text_arguments)},
                      {"wants_text_content", Value::boolean(traits.wants_text_content)},
                      {"wants_no_null_content", Value::boolean(traits.wants_no_null_content)},
                      {"wants_null_content", Value::boolean(traits.wants_null_content)},
                      {"wants_tool_list", Value::boolean(traits.wants_tool_list)},
                      {"takes_one_call", Value::boolean(traits.takes_one_call)},
                      {"wants_nine_letter_ids", Value::boolean(traits.wants_nine_letter_ids)},
                      {"knows_system", Value::boolean(traits.knows_system)},
                      {"knows_developer", Value::boolean(traits.knows_developer)},
                      {"knows_tool_role", Value::boolean(traits.knows_tool_role)},
                      {"refuses_content_with_thoughts", Value::boolean(traits.refuses_content_with_thoughts)},
                      {"thought_fields", Value::string(fields)}});
}

std::string answer_line(const quire::ChatTemplate& chat_template, const quire::TemplateTraits& traits,
                        const std::string& line, const quire::TemplateInput& defaults) {
  const auto object = quire::jinja::from_json(line);
  if (!object.is_ok() || !object.value().is_dict()) return "{\"error\": \"bad line\"}";
  const Value* messages = object.value().dict_object().find("messages");
  const Value* tools = object.value().dict_object().find("tools");
  const auto prepared = quire::prepare_conversation(traits, nullptr, messages == nullptr ? Value::none() : *messages,
                                                    tools == nullptr ? Value::none() : *tools);
  if (!prepared.is_ok()) return "{\"error\": " + quire::jinja::json_quote(prepared.status().message()) + "}";
  quire::TemplateInput input = defaults;
  input.variables.emplace_back("messages", quire::trust_known_roles(prepared.value().messages));
  input.variables.emplace_back("tools", prepared.value().tools);
  input.variables.emplace_back("documents", Value::none());
  input.variables.emplace_back("add_generation_prompt", Value::boolean(true));
  const auto prompt = chat_template.render(input);
  return "{\"messages\": " + to_json(prepared.value().messages) + ", \"tools\": " + to_json(prepared.value().tools) +
         ", \"traits\": " + to_json(traits_of(traits)) +
         (prompt.is_ok() ? ", \"prompt\": " + quire::jinja::json_quote(prompt.value().text)
                         : ", \"render_error\": " + quire::jinja::json_quote(prompt.status().message())) +
         "}";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: quire_prepare_messages FILE.jinja, lines of JSON on stdin\n";
    return 2;
  }
  std::ifstream file(argv[1], std::ios::binary);
  std::stringstream source;
  source << file.rdbuf();
  const auto parsed = quire::ChatTemplate::create(source.str());
  if (!parsed.is_ok()) {
    std::cerr << parsed.status().message() << "\n";
    return 1;
  }
  quire::TemplateInput defaults;
  defaults.now_seconds = quire::parse_local_time("2026-11-29T12:00:00").value();
  defaults.trusted_strings = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  const auto traits = quire::TemplateTraits::probe(*parsed.value(), source.str(), defaults.trusted_strings);
  std::string line;
  while (std::getline(std::cin, line)) std::cout << answer_line(*parsed.value(), traits, line, defaults) << std::endl;
  return 0;
}

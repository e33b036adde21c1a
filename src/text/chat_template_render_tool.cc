// A small program around ChatTemplate for the differential scripts of tools/goldens: renders the lines of stdin by the
// template in a file. With --cases every line is {"template": "...", "variables": {...}}. Not installed.
#include <fstream>
#include <iostream>
#include <sstream>

#include "text/chat_template.h"

namespace {

std::string render_case(const std::string& line, const quire::TemplateInput& defaults) {
  const auto object = quire::jinja::from_json(line);
  if (!object.is_ok() || !object.value().is_dict()) return "{\"error\": \"bad case\"}";
  const quire::jinja::Value* source = object.value().dict_object().find("template");
  const quire::jinja::Value* variables = object.value().dict_object().find("variables");
  if (source == nullptr || !source->is_string() || variables == nullptr || !variables->is_dict())
    return "{\"error\": \"bad case\"}";
  const auto parsed = quire::ChatTemplate::create(source->bytes());
  if (!parsed.is_ok()) return "{\"error\": " + quire::jinja::json_quote(parsed.status().message()) + "}";
  quire::TemplateInput input = defaults;
  for (const auto& [key, value] : variables->dict_object().entries) input.variables.emplace_back(key.bytes(), value);
  const auto prompt = parsed.value()->render(input);
  if (!prompt.is_ok()) return "{\"error\": " + quire::jinja::json_quote(prompt.status().message()) + "}";
  return quire::jinja::json_quote(prompt.value().text);
}

}  // namespace

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  quire::TemplateInput defaults;
  defaults.now_seconds = quire::parse_local_time("2026-11-29T12:00:00").value();
  std::string line;
  if (argc == 2 && std::string_view(argv[1]) == "--cases") {
    while (std::getline(std::cin, line)) std::cout << render_case(line, defaults) << std::endl;
    return 0;
  }
  if (argc != 2) {
    std::cerr << "usage: quire_render_template FILE.jinja | --cases, lines of JSON on stdin\n";
    return 2;
  }
  std::ifstream file(argv[1], std::ios::binary);
  std::stringstream source;
  source << file.rdbuf();
  const auto parsed = quire::ChatTemplate::create(source.str());
  while (std::getline(std::cin, line)) {
    if (parsed.is_ok()) {
      std::cout << quire::render_json_line(*parsed.value(), line, defaults) << std::endl;
    } else {
      std::cout << "{\"error\": " << quire::jinja::json_quote(parsed.status().message()) << "}" << std::endl;
    }
  }
  return 0;
}

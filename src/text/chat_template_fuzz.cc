// libFuzzer: a template, and after a NUL byte the JSON object of its variables. Whatever they hold, create and render
// give a text or an error, and the spans cover the text.
#include <cstdlib>

#include "text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t separator = std::min(input.find('\0'), input.size());
  quire::TemplateLimits limits;
  limits.max_steps = 20'000;
  limits.max_depth = 300;
  limits.max_memory_bytes = 16 << 20;
  limits.max_output_bytes = 1 << 20;
  const auto parsed = quire::ChatTemplate::create(input.substr(0, separator), limits);
  if (!parsed.is_ok()) return 0;
  quire::TemplateInput variables;
  variables.trusted_strings.emplace_back("bos_token", "<s>");
  const std::string_view json =
      separator < size
          ? input.substr(separator + 1)
          : R"({"s": "Größe <|x|>", "l": [3, 1, "a"], "d": {"a": 1.5, "b": null}, "messages": [{"role": "user", "content": "Hi"}]})";
  const auto object = quire::jinja::from_json(json);
  if (object.is_ok() && object.value().is_dict()) {
    for (const auto& [key, value] : object.value().dict_object().entries)
      variables.variables.emplace_back(key.bytes(), value);
  }
  const auto prompt = parsed.value()->render(variables);
  if (!prompt.is_ok()) return 0;
  size_t end = 0;
  for (const auto& span : prompt.value().spans) {
    if (span.begin != end || span.end <= span.begin) std::abort();
    end = span.end;
  }
  if (end != prompt.value().text.size()) std::abort();
  return 0;
}

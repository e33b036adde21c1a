// Ties the parts of the interpreter together. See chat_template.h.
#include "text/chat_template.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <unordered_map>

#include "text/jinja_interpreter.h"
#include "text/jinja_parser.h"
#include "text/jinja_scopes.h"

namespace quire {

using jinja::Value;

struct ChatTemplate::Impl {
  std::unique_ptr<jinja::TemplateTree> tree;
  TemplateLimits limits;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::~ChatTemplate() = default;

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::create(std::string_view source, const TemplateLimits& limits) {
  if (source.size() > limits.max_source_bytes) {
    return resource_exhausted("the chat template is longer than " + std::to_string(limits.max_source_bytes) + " bytes");
  }
  if (!jinja::is_valid_utf8(source)) return invalid_argument("the chat template is not UTF-8 text");
  auto impl = std::make_unique<Impl>();
  impl->limits = limits;
  Result<std::unique_ptr<jinja::TemplateTree>> tree = jinja::parse_template(source);
  if (!tree.is_ok()) return tree.status().with_context("chat template");
  impl->tree = std::move(tree).value();
  if (Status status = jinja::resolve_scopes(*impl->tree); !status.is_ok()) return status.with_context("chat template");
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(std::move(impl)));
}

Result<RenderedPrompt> ChatTemplate::render(const TemplateInput& input) const {
  const TemplateLimits& limits = impl_->limits;
  jinja::Runtime runtime({.max_steps = limits.max_steps,
                          .max_memory_bytes = limits.max_memory_bytes,
                          .max_output_bytes = limits.max_output_bytes,
                          .max_range_items = limits.max_range_items},
                         input.now_seconds);
  std::unordered_map<std::string_view, Value> variables;
  for (const auto& [name, text] : input.trusted_strings) variables.insert_or_assign(name, Value::string(text, true));
  for (const auto& [name, value] : input.variables) {
    if (value.depth() > jinja::kMaxValueDepth) return resource_exhausted("the input '" + name + "' nests too deeply");
    variables.insert_or_assign(name, value);
  }
  Result<jinja::Text> text = jinja::interpret(*impl_->tree, runtime, limits.max_depth, variables);
  if (!text.is_ok()) return text.status().with_context("chat template");
  RenderedPrompt prompt;
  text.value().for_each_run(0, text.value().size(), [&](size_t begin, size_t end, bool is_trusted) {
    prompt.spans.push_back({begin, end, is_trusted});
  });
  prompt.text = std::move(text.value()).take_bytes();
  return prompt;
}

Value trust_known_roles(const Value& messages) {
  constexpr std::array<std::string_view, 9> kRoles = {"system",   "developer", "user",          "assistant", "tool",
                                                      "function", "ipython",   "tool_response", "model"};
  if (messages.kind() != jinja::Kind::kList) return messages;
  std::vector<Value> result = messages.items();
  for (Value& message : result) {
    if (!message.is_dict()) continue;
    const Value* role = message.dict_object().find("role");
    if (role == nullptr || !role->is_string()) continue;
    if (std::find(kRoles.begin(), kRoles.end(), role->bytes()) == kRoles.end()) continue;
    std::vector<std::pair<std::string, Value>> entries;
    bool has_only_names = true;
    for (const auto& [key, value] : message.dict_object().entries) {
      has_only_names = has_only_names && key.is_string();
      if (!has_only_names) break;
      const bool is_role = key.bytes() == "role";
      entries.emplace_back(key.bytes(), is_role ? Value::string(std::string(value.bytes()), true) : value);
    }
    if (has_only_names) message = Value::dict(std::move(entries));
  }
  return Value::list(std::move(result));
}

namespace {

Result<std::string> render_line(const ChatTemplate& chat_template, std::string_view line,
                                const TemplateInput& defaults) {
  ASSIGN_OR_RETURN(const Value object, jinja::from_json(line));
  if (!object.is_dict()) return invalid_argument("a line is a JSON object with \"messages\"");
  TemplateInput input = defaults;
  input.variables.emplace_back("tools", Value::none());
  input.variables.emplace_back("documents", Value::none());
  input.variables.emplace_back("add_generation_prompt", Value::boolean(false));
  for (const auto& [key, value] : object.dict_object().entries) {
    input.variables.emplace_back(key.bytes(), key.bytes() == "messages" ? trust_known_roles(value) : value);
  }
  ASSIGN_OR_RETURN(const RenderedPrompt prompt, chat_template.render(input));
  return jinja::json_quote(prompt.text);
}

}  // namespace

std::string render_json_line(const ChatTemplate& chat_template, std::string_view line, const TemplateInput& defaults) {
  const Result<std::string> rendered = render_line(chat_template, line, defaults);
  if (rendered.is_ok()) return rendered.value();
  return "{\"error\": " + jinja::json_quote(rendered.status().message()) + "}";
}

Result<int64_t> parse_local_time(std::string_view text) {
  // YYYY-MM-DD[(T| )HH:MM[:SS]]
  std::array<int, 6> fields = {0, 1, 1, 0, 0, 0};
  constexpr std::array<size_t, 6> kBegins = {0, 5, 8, 11, 14, 17}, kSizes = {4, 2, 2, 2, 2, 2};
  const Status error = invalid_argument("'" + std::string(text) + "' is not a time; write it as 2026-11-29T12:00:00");
  if (text.size() != 10 && text.size() != 16 && text.size() != 19) return error;
  constexpr std::string_view kPattern = "0000-00-00T00:00:00";
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_digit = text[i] >= '0' && text[i] <= '9';
    const bool matches =
        kPattern[i] == '0' ? is_digit : text[i] == kPattern[i] || (kPattern[i] == 'T' && text[i] == ' ');
    if (!matches) return error;
  }
  for (size_t i = 0; i < fields.size() && kBegins[i] < text.size(); ++i) {
    std::from_chars(text.data() + kBegins[i], text.data() + kBegins[i] + kSizes[i], fields[i]);
  }
  using namespace std::chrono;
  const year_month_day date{year{fields[0]}, month{static_cast<unsigned>(fields[1])},
                            day{static_cast<unsigned>(fields[2])}};
  if (!date.ok() || fields[3] > 23 || fields[4] > 59 || fields[5] > 59) return error;
  const seconds of_day = hours(fields[3]) + minutes(fields[4]) + seconds(fields[5]);
  return static_cast<int64_t>((sys_days(date).time_since_epoch() + of_day).count());
}

}  // namespace quire

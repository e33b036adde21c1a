#include "server/text_frontend.h"

#include <algorithm>
#include <ctime>

#include "text/utf8.h"

namespace quire {

namespace json = boost::json;

namespace {

// What is not text has no tokens of its own: an answer to something else would be worse than none.
Status check_utf8(std::string_view text) {
  if (is_valid_utf8(text)) return ok_status();
  return invalid_argument("the prompt is not UTF-8: convert it first (iconv -f ITS_ENCODING -t UTF-8)");
}

Result<jinja::Value> to_template_value(const json::value& value) {
  const std::string text = json::serialize(value);
  RETURN_IF_ERROR(check_utf8(text));
  return jinja::from_json(text);
}

// Cuts what the template writes behind the last message's content.
Status end_with_last_message(const json::array& messages, RenderedPrompt& prompt) {
  const json::value* content =
      messages.back().is_object() ? messages.back().get_object().if_contains("content") : nullptr;
  if (content == nullptr || !content->is_string()) {
    return invalid_argument("continue_final_message: the last message has no text to go on with");
  }
  // Templates may trim what they write.
  std::string_view text = content->get_string();
  size_t begin = prompt.text.rfind(text);
  if (begin == std::string::npos) {
    const size_t last = text.find_last_not_of(" \t\r\n");
    text = text.substr(0, last == std::string_view::npos ? 0 : last + 1);
    text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
    begin = prompt.text.rfind(text);
  }
  if (text.empty() || begin == std::string::npos) {
    return invalid_argument("continue_final_message: the chat template does not show the last message's text as it is");
  }
  const size_t end = begin + text.size();
  prompt.text.resize(end);
  while (!prompt.spans.empty() && prompt.spans.back().begin >= end) prompt.spans.pop_back();
  if (!prompt.spans.empty()) prompt.spans.back().end = std::min(prompt.spans.back().end, end);
  return ok_status();
}

}  // namespace

std::vector<std::pair<std::string, std::string>> special_token_strings(const Tokenizer& tokenizer) {
  std::vector<std::pair<std::string, std::string>> strings;
  const std::pair<const char*, int32_t> specials[] = {{"bos_token", tokenizer.bos_id()},
                                                      {"eos_token", tokenizer.eos_id()},
                                                      {"pad_token", tokenizer.padding_id()},
                                                      {"unk_token", tokenizer.unknown_id()}};
  for (const auto& [name, id] : specials) {
    if (id >= 0) strings.emplace_back(name, std::string(tokenizer.piece(id)));
  }
  return strings;
}

int64_t local_now_seconds() {
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  if (localtime_r(&now, &local) == nullptr) return static_cast<int64_t>(now);
  return static_cast<int64_t>(now) + local.tm_gmtoff;
}

Result<std::unique_ptr<TextFrontend>> TextFrontend::create(std::unique_ptr<Tokenizer> tokenizer,
                                                           const std::optional<std::string>& chat_template,
                                                           const Parsers& parsers) {
  std::unique_ptr<TextFrontend> frontend(new TextFrontend());
  frontend->tokenizer_ = std::move(tokenizer);
  if (chat_template.has_value()) {
    auto parsed = ChatTemplate::create(*chat_template);
    if (!parsed.is_ok()) return parsed.status().with_context("the chat template");
    frontend->template_ = std::move(parsed).value();
    frontend->traits_ =
        TemplateTraits::probe(*frontend->template_, *chat_template, special_token_strings(*frontend->tokenizer_));
  }
  ASSIGN_OR_RETURN(frontend->answer_format_, AnswerFormat::create(parsers.tools, parsers.reasoning,
                                                                  chat_template.value_or(""), *frontend->tokenizer_));
  return frontend;
}

Result<std::vector<int32_t>> TextFrontend::encode_text(std::string_view text) const {
  RETURN_IF_ERROR(check_utf8(text));
  return tokenizer_->encode(text);
}

Result<RenderedPrompt> TextFrontend::render_chat(const json::object& conversation) const {
  if (template_ == nullptr) {
    return invalid_argument(
        "this model has no chat template: give one with --chat-template FILE, or send a plain prompt");
  }
  const json::value* messages = conversation.if_contains("messages");
  if (messages == nullptr || !messages->is_array() || messages->get_array().empty()) {
    return invalid_argument("messages must be a list with at least one message");
  }
  TemplateInput input;
  input.now_seconds = local_now_seconds();
  ASSIGN_OR_RETURN(const jinja::Value message_values, to_template_value(*messages));
  json::object variables{{"tools", nullptr}, {"documents", nullptr}, {"add_generation_prompt", true}};
  for (auto& [key, value] : variables) {
    if (const json::value* given = conversation.if_contains(key)) value = *given;
  }
  if (const json::value* further = conversation.if_contains("chat_template_kwargs");
      further != nullptr && !further->is_null()) {
    if (!further->is_object()) return invalid_argument("chat_template_kwargs must be an object");
    for (const auto& [key, value] : further->get_object()) {
      if (key == "messages") return invalid_argument("chat_template_kwargs may not have the key messages");
      variables[key] = value;
    }
  }
  ASSIGN_OR_RETURN(const jinja::Value tool_values, to_template_value(variables["tools"]));
  ASSIGN_OR_RETURN(ToolConversation prepared,
                   prepare_conversation(traits_, answer_format_.tools(), message_values, tool_values));
  input.variables.emplace_back("messages", trust_known_roles(prepared.messages));
  input.variables.emplace_back("tools", std::move(prepared.tools));
  for (const auto& [key, value] : variables) {
    if (key == "tools") continue;
    ASSIGN_OR_RETURN(jinja::Value variable, to_template_value(value));
    input.variables.emplace_back(std::string(key), std::move(variable));
  }
  input.trusted_strings = special_token_strings(*tokenizer_);
  ASSIGN_OR_RETURN(RenderedPrompt prompt, template_->render(input));
  const json::value* continues = conversation.if_contains("continue_final_message");
  if (continues != nullptr && continues->is_bool() && continues->get_bool()) {
    RETURN_IF_ERROR(end_with_last_message(messages->get_array(), prompt));
  }
  return prompt;
}

Result<std::vector<int32_t>> TextFrontend::encode_chat(const json::object& conversation) const {
  ASSIGN_OR_RETURN(const RenderedPrompt prompt, render_chat(conversation));
  return encode_rendered(prompt);
}

Result<std::vector<int32_t>> TextFrontend::encode_rendered(const RenderedPrompt& prompt) const {
  std::vector<TextSpan> spans;
  spans.reserve(prompt.spans.size());
  for (const RenderedPrompt::Span& span : prompt.spans) {
    spans.push_back({std::string_view(prompt.text).substr(span.begin, span.end - span.begin), span.is_from_template});
  }
  EncodeOptions options;
  options.keeps_single_bos = true;
  return tokenizer_->encode(spans, options);
}

}  // namespace quire

#include "server/text_frontend.h"

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

}  // namespace

int64_t local_now_seconds() {
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  if (localtime_r(&now, &local) == nullptr) return static_cast<int64_t>(now);
  return static_cast<int64_t>(now) + local.tm_gmtoff;
}

Result<std::unique_ptr<TextFrontend>> TextFrontend::create(std::unique_ptr<Tokenizer> tokenizer,
                                                           const std::optional<std::string>& chat_template) {
  std::unique_ptr<TextFrontend> frontend(new TextFrontend());
  frontend->tokenizer_ = std::move(tokenizer);
  if (chat_template.has_value()) {
    auto parsed = ChatTemplate::create(*chat_template);
    if (!parsed.is_ok()) return parsed.status().with_context("the chat template");
    frontend->template_ = std::move(parsed).value();
  }
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
  input.variables.emplace_back("messages", trust_known_roles(message_values));
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
  for (const auto& [key, value] : variables) {
    ASSIGN_OR_RETURN(jinja::Value variable, to_template_value(value));
    input.variables.emplace_back(std::string(key), std::move(variable));
  }
  const std::pair<const char*, int32_t> specials[] = {{"bos_token", tokenizer_->bos_id()},
                                                      {"eos_token", tokenizer_->eos_id()},
                                                      {"pad_token", tokenizer_->padding_id()},
                                                      {"unk_token", tokenizer_->unknown_id()}};
  for (const auto& [name, id] : specials) {
    if (id >= 0) input.trusted_strings.emplace_back(name, std::string(tokenizer_->piece(id)));
  }
  return template_->render(input);
}

Result<std::vector<int32_t>> TextFrontend::encode_chat(const json::object& conversation) const {
  ASSIGN_OR_RETURN(const RenderedPrompt prompt, render_chat(conversation));
  std::vector<TextSpan> spans;
  spans.reserve(prompt.spans.size());
  for (const RenderedPrompt::Span& span : prompt.spans) {
    spans.push_back({std::string_view(prompt.text).substr(span.begin, span.end - span.begin), span.is_from_template});
  }
  EncodeOptions options;
  options.keeps_single_bos = true;
  return tokenizer_->encode(spans, options);
}

Result<ChoiceText> ChoiceText::create(const Tokenizer& tokenizer, const std::vector<std::string>& stop_strings) {
  DecodeOptions options;
  options.is_at_start = false;  // an answer goes on where the prompt ended
  ASSIGN_OR_RETURN(StopStringMatcher matcher, StopStringMatcher::create(stop_strings));
  return ChoiceText(Detokenizer(tokenizer, options), std::move(matcher));
}

bool ChoiceText::add(int32_t token_id, std::string& out) {
  return matcher_.add(detokenizer_.add(token_id), out);
}

void ChoiceText::finish(std::string& out) {
  if (!matcher_.add(detokenizer_.finish(), out)) matcher_.finish(out);
}

}  // namespace quire

// The text side of one model: turns prompts and conversations into token ids, and token ids of an answer into text. The
// engine speaks ids only; this is what stands between it and people. Immutable after creation, for any number of
// threads.
#pragma once

#include <boost/json.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "text/answer_format.h"
#include "text/answer_messages.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace quire {

class TextFrontend {
 public:
  // How the model writes tool calls and thinking: names of formats, "auto" (found out) or "none".
  struct Parsers {
    std::string tools = "auto";
    std::string reasoning = "auto";
  };
  // `chat_template` is Jinja source; none: conversations are refused, plain prompts work.
  static Result<std::unique_ptr<TextFrontend>> create(std::unique_ptr<Tokenizer> tokenizer,
                                                      const std::optional<std::string>& chat_template,
                                                      const Parsers& parsers);
  static Result<std::unique_ptr<TextFrontend>> create(std::unique_ptr<Tokenizer> tokenizer,
                                                      const std::optional<std::string>& chat_template) {
    return create(std::move(tokenizer), chat_template, Parsers());
  }

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  bool has_chat_template() const { return template_ != nullptr; }
  const AnswerFormat& answer_format() const { return answer_format_; }
  const TemplateTraits& template_traits() const { return traits_; }

  // A raw prompt: special tokens in it are recognised, BOS is put in front where the model asks for it.
  Result<std::vector<int32_t>> encode_text(std::string_view text) const;

  // A conversation: {"messages": [...], "tools": [...], ...}; further keys of `chat_template_kwargs` are template
  // variables. Text of messages and tools cannot become special tokens. BOS stands in front exactly once.
  Result<std::vector<int32_t>> encode_chat(const boost::json::object& conversation) const;

  // The two steps of it. "continue_final_message": the text ends with the last message's content, for the model to go
  // on with.
  Result<RenderedPrompt> render_chat(const boost::json::object& conversation) const;
  Result<std::vector<int32_t>> encode_rendered(const RenderedPrompt& prompt) const;

 private:
  TextFrontend() = default;

  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> template_;
  TemplateTraits traits_;  // what the template wants of conversations with tools
  AnswerFormat answer_format_{nullptr, nullptr};
};

// bos_token, eos_token and their kin: texts of the vocabulary's own that templates write.
std::vector<std::pair<std::string, std::string>> special_token_strings(const Tokenizer& tokenizer);

// Seconds since 1970 of the local wall clock: what templates that write today's date ask for.
int64_t local_now_seconds();

}  // namespace quire

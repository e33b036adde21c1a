// Collects the events of one request of `quire generate` and `quire chat` into text, token ids and log-probabilities,
// and writes them as the JSON line of commands.md. Fed on the engine's thread, which is the main thread.
#pragma once

#include <boost/json.hpp>
#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/answer_text.h"
#include "server/sampling_fields.h"

namespace quire::app {

struct AnswerChoice {
  AnswerText builder;
  std::string text;
  std::vector<int32_t> token_ids;
  std::vector<TokenLogprobs> logprobs;
  FinishReason finish_reason = FinishReason::kNone;
};

class Answer final : public EventSink {
 public:
  // Called with each new piece of text of a choice.
  using OnText = std::function<void(int choice_index, const std::string& piece)>;

  static Result<std::shared_ptr<Answer>> create(Engine& engine, const Tokenizer& tokenizer,
                                                std::vector<int32_t> prompt_ids, const SamplingOptions& sampling,
                                                OnText on_text);

  void on_event(const TokenEvent& event) override;

  bool is_finished() const { return num_unfinished_ == 0; }
  const Status& error() const { return error_; }  // of the choice that failed first
  const std::vector<AnswerChoice>& choices() const { return choices_; }
  int64_t num_prompt_tokens() const { return static_cast<int64_t>(prompt_ids_.size()); }
  int64_t num_completion_tokens() const;
  int64_t num_cached_tokens() const { return num_cached_tokens_; }

  // {"index": ..., "prompt_token_ids": ..., "choices": ..., "usage": ...}
  boost::json::object to_json(int64_t index) const;

 private:
  Answer() = default;

  Engine* engine_ = nullptr;
  std::vector<int32_t> prompt_ids_;
  OnText on_text_;
  bool has_logprobs_ = false;
  bool has_prompt_logprobs_ = false;
  std::vector<AnswerChoice> choices_;
  std::vector<TokenLogprobs> prompt_logprobs_;
  int num_unfinished_ = 0;
  int64_t num_cached_tokens_ = 0;
  Status error_;
};

}  // namespace quire::app

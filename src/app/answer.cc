#include "app/answer.h"

#include "server/openai_responses.h"

namespace quire::app {

namespace json = boost::json;

namespace {

json::value logprobs_to_json(const TokenLogprobs& entry) {
  json::array top;
  for (const TokenLogprob& candidate : entry.top) {
    top.push_back(json::object{{"token_id", candidate.token_id}, {"logprob", finite_logprob(candidate.logprob)}});
  }
  return json::object{{"token_id", entry.token_id},
                      {"logprob", finite_logprob(entry.logprob)},
                      {"rank", entry.rank},
                      {"top", std::move(top)}};
}

}  // namespace

Result<std::shared_ptr<Answer>> Answer::create(Engine& engine, const Tokenizer& tokenizer,
                                               std::vector<int32_t> prompt_ids, const SamplingOptions& sampling,
                                               OnText on_text) {
  std::shared_ptr<Answer> answer(new Answer());
  answer->engine_ = &engine;
  answer->on_text_ = std::move(on_text);
  answer->has_logprobs_ = sampling.params.num_logprobs >= 0;
  answer->has_prompt_logprobs_ = sampling.params.num_prompt_logprobs >= 0;
  answer->num_unfinished_ = sampling.params.n;
  const std::string echoed = sampling.has_echo ? tokenizer.decode(prompt_ids) : std::string();
  answer->prompt_ids_ = std::move(prompt_ids);
  for (int i = 0; i < sampling.params.n; ++i) {
    ASSIGN_OR_RETURN(AnswerText builder, AnswerText::create(tokenizer, {.stop_strings = sampling.stop}));
    answer->choices_.push_back({std::move(builder), echoed, {}, {}, FinishReason::kNone});
    if (!echoed.empty() && answer->on_text_) answer->on_text_(i, echoed);
  }
  return answer;
}

void Answer::on_event(const TokenEvent& event) {
  AnswerChoice& choice = choices_[static_cast<size_t>(event.choice_index)];
  if (choice.finish_reason != FinishReason::kNone) return;
  num_cached_tokens_ = event.num_cached_tokens;
  if (!event.prompt_logprobs.empty()) {
    prompt_logprobs_.assign(event.prompt_logprobs.begin(), event.prompt_logprobs.end());
  }

  AnswerPiece added;
  bool has_stop_string = false;
  for (size_t i = 0; i < event.token_ids.size() && !has_stop_string; ++i) {
    const int32_t id = event.token_ids[i];
    choice.token_ids.push_back(id);
    if (!event.logprobs.empty()) choice.logprobs.push_back(event.logprobs[i]);
    // The token that stopped the answer is counted, but it is not text.
    const bool is_stop_token = event.stop_token_id.has_value() && i + 1 == event.token_ids.size();
    if (!is_stop_token) has_stop_string = choice.builder.add(id, nullptr, added);
  }
  const bool is_last = event.finish_reason != FinishReason::kNone;
  if (is_last && !has_stop_string) choice.builder.finish(added);
  const std::string piece = added.joined();
  choice.text += piece;
  if (!piece.empty() && on_text_) on_text_(event.choice_index, piece);

  if (has_stop_string || is_last) {
    choice.finish_reason = has_stop_string ? FinishReason::kStop : event.finish_reason;
    --num_unfinished_;
    if (event.finish_reason == FinishReason::kError && error_.is_ok()) error_ = event.error;
  }
  if (has_stop_string && !is_last) engine_->stop_choice(event.request_id, event.choice_index);
}

int64_t Answer::num_completion_tokens() const {
  int64_t count = 0;
  for (const AnswerChoice& choice : choices_) count += static_cast<int64_t>(choice.token_ids.size());
  return count;
}

json::object Answer::to_json(int64_t index) const {
  json::array choices;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const AnswerChoice& choice = choices_[i];
    json::value logprobs = nullptr;
    if (has_logprobs_) {
      json::array entries;
      for (const TokenLogprobs& entry : choice.logprobs) entries.push_back(logprobs_to_json(entry));
      logprobs = std::move(entries);
    }
    choices.push_back(json::object{{"index", i},
                                   {"text", choice.text},
                                   {"token_ids", json::value_from(choice.token_ids)},
                                   {"finish_reason", finish_reason_name(choice.finish_reason)},
                                   {"logprobs", std::move(logprobs)}});
  }
  json::value prompt_logprobs = nullptr;
  if (has_prompt_logprobs_) {
    json::array entries{nullptr};  // nothing comes before the first token
    for (const TokenLogprobs& entry : prompt_logprobs_) entries.push_back(logprobs_to_json(entry));
    prompt_logprobs = std::move(entries);
  }
  return {{"index", index},
          {"prompt_token_ids", json::value_from(prompt_ids_)},
          {"prompt_logprobs", std::move(prompt_logprobs)},
          {"choices", std::move(choices)},
          {"usage", json::object{{"prompt_tokens", num_prompt_tokens()},
                                 {"completion_tokens", num_completion_tokens()},
                                 {"cached_tokens", num_cached_tokens_}}}};
}

}  // namespace quire::app

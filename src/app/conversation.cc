#include "app/conversation.h"

#include <chrono>

namespace quire::app {

namespace json = boost::json;

Result<Reply> Conversation::answer(const std::string& user_text, const std::function<void(const std::string&)>& on_text,
                                   const std::function<bool()>& is_stopped) {
  turns_.push_back(json::object{{"role", "user"}, {"content", user_text}});
  Result<Reply> reply = answer_last_turn(on_text, is_stopped);
  if (!reply.is_ok()) turns_.pop_back();
  return reply;
}

Result<Reply> Conversation::regenerate(const std::function<void(const std::string&)>& on_text,
                                       const std::function<bool()>& is_stopped) {
  if (turns_.empty()) return invalid_argument("there is no answer yet to generate anew");
  const json::value last_answer = turns_.back();
  turns_.pop_back();
  Result<Reply> reply = answer_last_turn(on_text, is_stopped);
  if (!reply.is_ok()) turns_.push_back(last_answer);
  return reply;
}

Result<Reply> Conversation::answer_last_turn(const std::function<void(const std::string&)>& on_text,
                                             const std::function<bool()>& is_stopped) {
  ASSIGN_OR_RETURN(std::vector<int32_t> ids, session_.text->encode_chat(to_json()));
  Engine& engine = *session_.engine;
  SamplingOptions sampling = sampling_;
  const int64_t room = engine.limits().max_model_len - static_cast<int64_t>(ids.size());
  if (room <= 0) {
    return resource_exhausted("the conversation has " + std::to_string(ids.size()) +
                              " tokens and fills the context of " + std::to_string(engine.limits().max_model_len) +
                              ": /reset starts a new one");
  }
  sampling.params.max_tokens = std::min(sampling.params.max_tokens, room);

  const auto begin = std::chrono::steady_clock::now();
  Request request = Request::from_tokens(ids, sampling.params, nullptr);
  RETURN_IF_ERROR(validate_request(request, engine.limits()));
  ASSIGN_OR_RETURN(const std::shared_ptr<Answer> answer,
                   Answer::create(engine, session_.text->tokenizer(), std::move(ids), sampling,
                                  [&](int, const std::string& piece) { on_text(piece); }));
  request.sink = answer;
  ASSIGN_OR_RETURN(const RequestId id, engine.add_request(std::move(request)));
  while (engine.has_work()) {
    if (is_stopped()) engine.abort(id);
    RETURN_IF_ERROR(engine.step());
  }
  RETURN_IF_ERROR(answer->error());

  Reply reply;
  reply.text = answer->choices()[0].text;
  reply.finish_reason = answer->choices()[0].finish_reason;
  reply.num_prompt_tokens = answer->num_prompt_tokens();
  reply.num_cached_tokens = answer->num_cached_tokens();
  reply.num_completion_tokens = answer->num_completion_tokens();
  reply.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  turns_.push_back(json::object{{"role", "assistant"}, {"content", reply.text}});
  return reply;
}

json::object Conversation::to_json() const {
  json::array messages;
  if (!system_.empty()) messages.push_back(json::object{{"role", "system"}, {"content", system_}});
  messages.insert(messages.end(), turns_.begin(), turns_.end());
  return {{"messages", std::move(messages)}};
}

}  // namespace quire::app

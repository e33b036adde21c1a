// A conversation and the engine that continues it: turns in, streamed answers out. Pages of earlier turns are found
// again by the engine's prefix cache. Knows nothing of terminals; `quire chat` puts one around it. Main thread.
#pragma once

#include <boost/json.hpp>
#include <functional>
#include <string>

#include "app/answer.h"
#include "app/model_session.h"
#include "server/sampling_fields.h"

namespace quire::app {

struct Reply {
  std::string text;
  FinishReason finish_reason = FinishReason::kNone;
  int64_t num_prompt_tokens = 0;
  int64_t num_cached_tokens = 0;
  int64_t num_completion_tokens = 0;
  double seconds = 0.0;
};

class Conversation {
 public:
  Conversation(ModelSession& session, SamplingOptions sampling) : session_(session), sampling_(std::move(sampling)) {}

  // An empty text takes the system message away. It holds from the next answer on.
  void set_system(const std::string& text) { system_ = text; }
  const std::string& system() const { return system_; }
  void reset() { turns_.clear(); }
  bool is_empty() const { return turns_.empty(); }

  // Adds the user's turn and answers it. `on_text` gets the pieces; the answer ends early once `is_stopped` returns
  // true. On an error the turn is taken back, so that the conversation stays as it was.
  Result<Reply> answer(const std::string& user_text, const std::function<void(const std::string&)>& on_text,
                       const std::function<bool()>& is_stopped);

  // Answers the last user turn anew.
  Result<Reply> regenerate(const std::function<void(const std::string&)>& on_text,
                           const std::function<bool()>& is_stopped);

  // {"messages": [...]}, system message included: what `generate --prompts` and the API take.
  boost::json::object to_json() const;

 private:
  Result<Reply> answer_last_turn(const std::function<void(const std::string&)>& on_text,
                                 const std::function<bool()>& is_stopped);

  ModelSession& session_;
  SamplingOptions sampling_;
  std::string system_;
  boost::json::array turns_;  // user and assistant in turn
};

}  // namespace quire::app

// An engine without a model, for tests of the API's handlers: keeps what was submitted and says what the test wants it
// to say. Events are given on the test's thread, as if it were the engine's.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "server/engine_client.h"

namespace quire::testing {

class ScriptedEngine final : public EngineClient {
 public:
  ScriptedEngine();

  Result<RequestId> submit(Request request) override;
  void abort(RequestId request_id, AbortReason reason) override;
  void stop_choice(RequestId request_id, int choice_index) override;
  const RequestLimits& limits() const override { return limits_; }

  // What submit answers from now on; ok: it takes requests.
  void refuse_with(Status status);

  // Waits for the request with this id: 1, 2, … in the order of submission. Null: none came in time.
  const Request* wait_for(RequestId request_id);

  struct Event {
    std::vector<int32_t> token_ids = {};
    std::vector<TokenLogprobs> logprobs = {};
    FinishReason finish_reason = FinishReason::kNone;
    std::optional<int32_t> stop_token_id = {};
    Status error = {};
    int choice_index = 0;
    std::vector<TokenLogprobs> prompt_logprobs = {};
    std::vector<float> embedding = {};
    int num_cached_tokens = 0;
  };
  void tell(RequestId request_id, const Event& event);

  bool wait_until_aborted(RequestId request_id);
  bool wait_until_stopped(RequestId request_id, int choice_index);
  size_t num_submitted() const;

  RequestLimits limits_;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, Request> requests_;
  std::vector<RequestId> aborted_;
  std::vector<std::pair<RequestId, int>> stopped_;
  Status refusal_;
};

}  // namespace quire::testing

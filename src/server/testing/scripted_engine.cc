#include "server/testing/scripted_engine.h"

#include <algorithm>
#include <chrono>

namespace quire::testing {

namespace {
constexpr std::chrono::seconds kPatience(20);
}

ScriptedEngine::ScriptedEngine() {
  limits_.vocab_size = 1000;
  limits_.max_model_len = 100;
}

Result<RequestId> ScriptedEngine::submit(Request request) {
  const std::lock_guard lock(mutex_);
  if (!refusal_.is_ok()) return refusal_;
  const RequestId id = requests_.size() + 1;
  requests_.emplace(id, std::move(request));
  changed_.notify_all();
  return id;
}

void ScriptedEngine::abort(RequestId request_id, AbortReason) {
  const std::lock_guard lock(mutex_);
  aborted_.push_back(request_id);
  changed_.notify_all();
}

void ScriptedEngine::stop_choice(RequestId request_id, int choice_index) {
  const std::lock_guard lock(mutex_);
  stopped_.emplace_back(request_id, choice_index);
  changed_.notify_all();
}

void ScriptedEngine::refuse_with(Status status) {
  const std::lock_guard lock(mutex_);
  refusal_ = std::move(status);
}

const Request* ScriptedEngine::wait_for(RequestId request_id) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kPatience, [&] { return requests_.contains(request_id); })) return nullptr;
  return &requests_.at(request_id);
}

void ScriptedEngine::tell(RequestId request_id, const Event& event) {
  const Request* request = wait_for(request_id);
  CHECK(request != nullptr);
  TokenEvent told;
  told.request_id = request_id;
  told.choice_index = event.choice_index;
  told.token_ids = event.token_ids;
  told.logprobs = event.logprobs;
  told.finish_reason = event.finish_reason;
  told.stop_token_id = event.stop_token_id;
  told.error = event.error;
  told.num_prompt_tokens = static_cast<int>(request->num_prompt_tokens());
  told.num_cached_tokens = event.num_cached_tokens;
  told.prompt_logprobs = event.prompt_logprobs;
  told.embedding = event.embedding;
  told.times.first_scheduled = told.times.first_token = told.times.last_token = Clock::now();
  request->sink->on_event(told);
}

bool ScriptedEngine::wait_until_aborted(RequestId request_id) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience,
                           [&] { return std::find(aborted_.begin(), aborted_.end(), request_id) != aborted_.end(); });
}

bool ScriptedEngine::wait_until_stopped(RequestId request_id, int choice_index) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience, [&] {
    return std::find(stopped_.begin(), stopped_.end(), std::pair(request_id, choice_index)) != stopped_.end();
  });
}

size_t ScriptedEngine::num_submitted() const {
  const std::lock_guard lock(mutex_);
  return requests_.size();
}

}  // namespace quire::testing

#include "server/testing/fake_exchange.h"

#include "base/check.h"

namespace quire::testing {

FakeExchange::FakeExchange(HttpRequest request, int64_t key_id) : request_(std::move(request)), key_id_(key_id) {}

std::shared_ptr<FakeExchange> FakeExchange::post(const std::string& path, const std::string& body, int64_t key_id) {
  HttpRequest request;
  request.method = "POST";
  request.path = path;
  request.headers = {{"Content-Type", "application/json"}};
  request.body = body;
  request.peer = "test";
  return std::make_shared<FakeExchange>(std::move(request), key_id);
}

void FakeExchange::respond(HttpResponse response) {
  const std::lock_guard lock(mutex_);
  CHECK(!is_ended_ && !has_begun_);
  response_ = std::move(response);
  is_ended_ = true;
  changed_.notify_all();
}

void FakeExchange::begin_events() {
  const std::lock_guard lock(mutex_);
  CHECK(!is_ended_ && !has_begun_);
  has_begun_ = true;
}

void FakeExchange::send_event(std::string_view data) {
  const std::lock_guard lock(mutex_);
  CHECK(has_begun_ && !is_ended_);
  events_.emplace_back(data);
  changed_.notify_all();
}

void FakeExchange::end_events() {
  const std::lock_guard lock(mutex_);
  CHECK(has_begun_ && !is_ended_);
  is_ended_ = true;
  changed_.notify_all();
}

size_t FakeExchange::num_unsent_bytes() const {
  const std::lock_guard lock(mutex_);
  return num_unsent_bytes_;
}

void FakeExchange::on_closed(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!is_closed_) {
      on_closed_ = std::move(callback);
      return;
    }
    if (is_ended_) return;
  }
  callback();
}

bool FakeExchange::is_closed() const {
  const std::lock_guard lock(mutex_);
  return is_closed_;
}

void FakeExchange::set_facts(AnswerFacts facts) {
  const std::lock_guard lock(mutex_);
  facts_ = std::move(facts);
}

bool FakeExchange::wait_until_ended(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [this] { return is_ended_; });
}

bool FakeExchange::wait_for_events(size_t count, std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [&] { return events_.size() >= count; });
}

void FakeExchange::close() {
  std::function<void()> callback;
  {
    const std::lock_guard lock(mutex_);
    if (is_closed_) return;
    is_closed_ = true;
    if (!is_ended_) callback = std::move(on_closed_);
    on_closed_ = nullptr;
  }
  if (callback) callback();
}

void FakeExchange::set_unsent_bytes(size_t num_bytes) {
  const std::lock_guard lock(mutex_);
  num_unsent_bytes_ = num_bytes;
}

bool FakeExchange::is_ended() const {
  const std::lock_guard lock(mutex_);
  return is_ended_;
}

bool FakeExchange::has_events() const {
  const std::lock_guard lock(mutex_);
  return has_begun_;
}

HttpResponse FakeExchange::response() const {
  const std::lock_guard lock(mutex_);
  return response_;
}

std::vector<std::string> FakeExchange::events() const {
  const std::lock_guard lock(mutex_);
  return events_;
}

AnswerFacts FakeExchange::facts() const {
  const std::lock_guard lock(mutex_);
  return facts_;
}

}  // namespace quire::testing

#include "server/http_exchange_state.h"

#include "base/check.h"
#include "server/api_error.h"
#include "server/http_text.h"

namespace quire {

HttpExchangeState::HttpExchangeState(std::shared_ptr<HttpConnection> connection,
                                     std::shared_ptr<HttpConnectionContext> context, HttpRequest the_request,
                                     std::string the_request_id, int64_t the_key_id)
    : request(std::move(the_request)),
      request_id(std::move(the_request_id)),
      key_id(the_key_id),
      connection_(std::move(connection)),
      context_(std::move(context)) {}

HttpExchangeState::~HttpExchangeState() {
  context_->num_buffered_body_bytes.fetch_sub(static_cast<int64_t>(request.body.size()), std::memory_order_relaxed);
}

// Posting under the mutex, and never once is_dead_ is set, makes sure that no task comes after the connection's end: a
// server that stops must not be left with tasks that nobody runs.
void HttpExchangeState::request_pump() {
  if (is_pump_posted_ || is_dead_) return;
  const std::shared_ptr<HttpConnection> connection = connection_.lock();
  if (connection == nullptr) return;
  is_pump_posted_ = true;
  connection->post([connection] { connection->pump(); });
}

void HttpExchangeState::respond(HttpResponse response) {
  std::function<void()> forgotten;  // destroyed after the lock: it may own the handle
  const std::lock_guard lock(mutex_);
  CHECK(phase_ == Phase::kWaiting);
  phase_ = Phase::kEnded;
  forgotten.swap(on_closed_);
  if (is_dead_) return;
  output_.response = std::move(response);
  output_.is_end = true;
  request_pump();
}

void HttpExchangeState::begin_events() {
  const std::lock_guard lock(mutex_);
  CHECK(phase_ == Phase::kWaiting);
  phase_ = Phase::kStreaming;
  if (is_dead_) return;
  output_.begins_stream = true;
  request_pump();
}

void HttpExchangeState::send_event(std::string_view data) {
  const std::lock_guard lock(mutex_);
  CHECK(phase_ == Phase::kStreaming);
  if (is_dead_ || is_over_limit()) return;
  const size_t num_before = output_.events.size();
  append_event(output_.events, data);
  const size_t num_added = output_.events.size() - num_before;
  const size_t num_now = num_unsent.fetch_add(num_added, std::memory_order_relaxed) + num_added;
  if (num_now > context_->limits.max_unsent_event_bytes) {
    is_over_limit_.store(true, std::memory_order_relaxed);
    is_pump_posted_ = false;  // an earlier one may have found a write under way; this one drops the connection
  }
  request_pump();
}

void HttpExchangeState::end_events() {
  std::function<void()> forgotten;
  const std::lock_guard lock(mutex_);
  CHECK(phase_ == Phase::kStreaming);
  phase_ = Phase::kEnded;
  forgotten.swap(on_closed_);
  if (is_dead_) return;
  output_.is_end = true;
  request_pump();
}

void HttpExchangeState::on_closed(std::function<void()> callback) {
  std::function<void()> replaced;
  {
    const std::lock_guard lock(mutex_);
    if (phase_ == Phase::kEnded) return;
    if (!has_left_) {
      replaced = std::move(on_closed_);
      on_closed_ = std::move(callback);
      return;
    }
  }
  callback();
}

bool HttpExchangeState::is_closed() const {
  const std::lock_guard lock(mutex_);
  return has_left_;
}

void HttpExchangeState::set_facts(AnswerFacts facts) {
  const std::lock_guard lock(mutex_);
  facts_ = std::move(facts);
}

AnswerFacts HttpExchangeState::facts() const {
  const std::lock_guard lock(mutex_);
  return facts_;
}

void HttpExchangeState::let_go() {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kEnded) return;
  const bool was_streaming = phase_ == Phase::kStreaming;
  phase_ = Phase::kEnded;
  if (is_dead_) return;
  if (has_left_) {  // nobody waits for this one
    output_.is_end = true;
    output_.is_given_up = true;
    return request_pump();
  }
  const Status status = internal_error("the server gave up this request without an answer");
  if (was_streaming) {
    append_event(output_.events, error_json(status));
  } else {
    output_.response = error_response(status);
  }
  output_.is_end = true;
  request_pump();
}

HttpOutput HttpExchangeState::take_output() {
  const std::lock_guard lock(mutex_);
  is_pump_posted_ = false;
  HttpOutput taken = std::move(output_);
  output_ = HttpOutput{};
  return taken;
}

void HttpExchangeState::on_sent(size_t num_event_bytes) {
  num_unsent.fetch_sub(num_event_bytes, std::memory_order_relaxed);
}

void HttpExchangeState::client_left(bool is_final) {
  std::function<void()> callback;
  {
    const std::lock_guard lock(mutex_);
    if (is_final) {
      is_dead_ = true;
      output_ = HttpOutput{};
    }
    if (!has_left_ && phase_ != Phase::kEnded) callback = std::move(on_closed_);
    on_closed_ = nullptr;
    has_left_ = true;
  }
  if (callback) callback();
}

namespace {

class ExchangeHandle : public HttpExchange {
 public:
  explicit ExchangeHandle(std::shared_ptr<HttpExchangeState> state) : state_(std::move(state)) {}
  ~ExchangeHandle() override { state_->let_go(); }

  const HttpRequest& request() const override { return state_->request; }
  const std::string& request_id() const override { return state_->request_id; }
  int64_t key_id() const override { return state_->key_id; }
  void respond(HttpResponse response) override { state_->respond(std::move(response)); }
  void begin_events() override { state_->begin_events(); }
  void send_event(std::string_view data) override { state_->send_event(data); }
  void end_events() override { state_->end_events(); }
  size_t num_unsent_bytes() const override { return state_->num_unsent.load(std::memory_order_relaxed); }
  void on_closed(std::function<void()> callback) override { state_->on_closed(std::move(callback)); }
  bool is_closed() const override { return state_->is_closed(); }
  void set_facts(AnswerFacts facts) override { state_->set_facts(std::move(facts)); }

 private:
  const std::shared_ptr<HttpExchangeState> state_;
};

}  // namespace

std::shared_ptr<HttpExchange> make_exchange_handle(std::shared_ptr<HttpExchangeState> state) {
  return std::make_shared<ExchangeHandle>(std::move(state));
}

}  // namespace quire

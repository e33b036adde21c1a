#include "app/run_batch_exchange.h"

#include <algorithm>

namespace quire::app {

namespace {

class BatchExchange final : public HttpExchange {
 public:
  BatchExchange(BatchCall call, BatchAnswers* answers)
      : request_id_("batch_req_" + std::to_string(call.line_number)), answers_(answers) {
    answer_.line_number = call.line_number;
    answer_.custom_id = std::move(call.custom_id);
    answer_.request_id = request_id_;
    answer_.num_request_bytes = call.body.size();
    request_.method = "POST";
    request_.path = std::move(call.url);
    request_.headers = {{"Content-Type", "application/json"}};
    request_.body = std::move(call.body);
  }

  ~BatchExchange() override {
    if (!has_ended_)
      end(500,
          R"({"error":{"message":"the request was given up without an answer","type":"server_error","param":null,"code":null}})");
  }

  const HttpRequest& request() const override { return request_; }
  const std::string& request_id() const override { return request_id_; }
  int64_t key_id() const override { return 0; }

  void respond(HttpResponse response) override { end(response.status, std::move(response.body)); }
  // Streams are refused before they come here: batches have whole answers.
  void begin_events() override {}
  void send_event(std::string_view) override {}
  void end_events() override {
    end(500, R"({"error":{"message":"a batch cannot stream","type":"server_error","param":null,"code":null}})");
  }
  size_t num_unsent_bytes() const override { return 0; }
  void on_closed(std::function<void()>) override {}
  bool is_closed() const override { return false; }

  void set_facts(AnswerFacts facts) override {
    const std::lock_guard lock(mutex_);
    answer_.num_prompt_tokens = std::max<int64_t>(0, facts.num_prompt_tokens);
    answer_.num_generated_tokens = std::max<int64_t>(0, facts.num_generated_tokens);
  }

 private:
  void end(int status, std::string body) {
    const std::lock_guard lock(mutex_);
    if (has_ended_) return;
    has_ended_ = true;
    answer_.status = status;
    answer_.body = std::move(body);
    answers_->add(std::move(answer_));
  }

  const std::string request_id_;
  HttpRequest request_;
  BatchAnswers* answers_;
  std::mutex mutex_;
  bool has_ended_ = false;
  BatchAnswer answer_;
};

}  // namespace

void BatchAnswers::add(BatchAnswer answer) {
  const std::lock_guard lock(mutex_);
  answers_.push_back(std::move(answer));
  arrived_.notify_one();
}

BatchAnswer BatchAnswers::take() {
  std::unique_lock lock(mutex_);
  arrived_.wait(lock, [&] { return !answers_.empty(); });
  BatchAnswer answer = std::move(answers_.front());
  answers_.pop_front();
  return answer;
}

bool BatchAnswers::try_take(BatchAnswer* answer) {
  const std::lock_guard lock(mutex_);
  if (answers_.empty()) return false;
  *answer = std::move(answers_.front());
  answers_.pop_front();
  return true;
}

std::shared_ptr<HttpExchange> make_batch_exchange(BatchCall call, BatchAnswers* answers) {
  return std::make_shared<BatchExchange>(std::move(call), answers);
}

}  // namespace quire::app

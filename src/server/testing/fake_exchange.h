// An exchange without a socket, for tests of handlers: keeps what was answered, lets the test close the client's side,
// and waits for answers that come from other threads. Checks the protocol: one answer, events only between begin and
// end.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "server/http_exchange.h"

namespace quire::testing {

class FakeExchange : public HttpExchange {
 public:
  explicit FakeExchange(HttpRequest request, int64_t key_id = 0);
  // POST of a JSON body.
  static std::shared_ptr<FakeExchange> post(const std::string& path, const std::string& body, int64_t key_id = 0);

  const HttpRequest& request() const override { return request_; }
  const std::string& request_id() const override { return request_id_; }
  int64_t key_id() const override { return key_id_; }
  void respond(HttpResponse response) override;
  void begin_events() override;
  void send_event(std::string_view data) override;
  void end_events() override;
  size_t num_unsent_bytes() const override;
  void on_closed(std::function<void()> callback) override;
  bool is_closed() const override;
  void set_facts(AnswerFacts facts) override;

  // The test's side. False: the time is over.
  bool wait_until_ended(std::chrono::milliseconds limit = std::chrono::seconds(20));
  bool wait_for_events(size_t count, std::chrono::milliseconds limit = std::chrono::seconds(20));
  void close();                             // the client goes away: calls on_closed on this thread
  void set_unsent_bytes(size_t num_bytes);  // a slow reader
  bool is_ended() const;
  bool has_events() const;  // begin_events was called
  HttpResponse response() const;
  std::vector<std::string> events() const;
  AnswerFacts facts() const;

 private:
  const HttpRequest request_;
  const std::string request_id_ = "req-test";
  const int64_t key_id_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool has_begun_ = false;
  bool is_ended_ = false;
  bool is_closed_ = false;
  HttpResponse response_;
  std::vector<std::string> events_;
  std::function<void()> on_closed_;
  size_t num_unsent_bytes_ = 0;
  AnswerFacts facts_;
};

}  // namespace quire::testing

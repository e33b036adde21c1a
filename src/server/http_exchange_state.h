// One request under way, shared by its connection (on the strand) and the handle that the handler holds (any thread).
// The handle puts output in; the connection takes it out. Private to http_connection.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "server/http_connection.h"

namespace quire {

// What the connection takes out to write.
struct HttpOutput {
  std::optional<HttpResponse> response;
  bool begins_stream = false;
  std::string events;  // as they go over the wire, without chunk framing
  bool is_end = false;
  bool is_given_up = false;  // it ends because the client has left
};

class HttpExchangeState : public std::enable_shared_from_this<HttpExchangeState> {
 public:
  HttpExchangeState(std::shared_ptr<HttpConnection> connection, std::shared_ptr<HttpConnectionContext> context,
                    HttpRequest request, std::string request_id, int64_t key_id);
  ~HttpExchangeState();

  // The handle's side.
  void respond(HttpResponse response);
  void begin_events();
  void send_event(std::string_view data);
  void end_events();
  void on_closed(std::function<void()> callback);
  void set_facts(AnswerFacts facts);
  void let_go();  // the last handle is gone
  bool is_closed() const;

  // The connection's side.
  HttpOutput take_output();
  void on_sent(size_t num_event_bytes);
  // The client has gone: tells the handler, unless it has ended its answer. `is_final`: nothing can be written any
  // more.
  void client_left(bool is_final);
  AnswerFacts facts() const;
  bool is_over_limit() const { return is_over_limit_.load(std::memory_order_relaxed); }

  const HttpRequest request;
  const std::string request_id;
  const int64_t key_id;
  std::atomic<size_t> num_unsent = 0;

 private:
  enum class Phase : uint8_t { kWaiting, kStreaming, kEnded };

  void request_pump();  // with the mutex held

  const std::weak_ptr<HttpConnection> connection_;
  const std::shared_ptr<HttpConnectionContext> context_;
  std::atomic<bool> is_over_limit_ = false;
  mutable std::mutex mutex_;
  Phase phase_ = Phase::kWaiting;
  bool has_left_ = false;  // the handler was or would have been told
  bool is_dead_ = false;   // the connection takes nothing any more
  bool is_pump_posted_ = false;
  HttpOutput output_;
  std::function<void()> on_closed_;
  AnswerFacts facts_;
};

// The handler's HttpExchange.
std::shared_ptr<HttpExchange> make_exchange_handle(std::shared_ptr<HttpExchangeState> state);

}  // namespace quire

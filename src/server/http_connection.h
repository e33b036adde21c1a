// The protocol of one connection: requests one after another (pipelined ones wait), the answer of each, timeouts,
// limits, and noticing that the client has gone. Knows neither sockets (http_transport) nor what is served
// (HttpFrontDoor). All of it runs on the connection's strand but what HttpExchange promises to any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/http_exchange.h"
#include "server/http_request_reader.h"
#include "server/http_server.h"
#include "server/http_transport.h"

namespace quire {

// What the connections of a server share.
struct HttpConnectionContext {
  HttpConnectionContext(const HttpLimits& the_limits, HttpFrontDoor& door);

  const HttpLimits limits;
  HttpFrontDoor& front_door;
  std::atomic<bool> is_stopping = false;
  std::atomic<int64_t> num_buffered_body_bytes = 0;
  std::atomic<uint64_t> next_request_number = 0;
  const uint64_t id_seed;
};

class HttpExchangeState;

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  // `context` is shared with requests whose bodies are still held when the server has gone.
  HttpConnection(std::shared_ptr<HttpConnectionContext> context, std::shared_ptr<HttpTransport> transport);
  ~HttpConnection();

  // On the strand.
  void start();
  void begin_stop();                 // ends between requests, or after the answer that is under way
  void abandon(const char* reason);  // closes at once; a request under way learns that its client has gone
  bool is_closed() const { return phase_ == Phase::kClosed; }

  void post(std::function<void()> task) { transport_->post(std::move(task)); }  // any thread
  void pump();                                                                  // writes what the exchange has to say

 private:
  enum class Phase : uint8_t { kReading, kAnswering, kClosed };
  using TimePoint = HttpTransport::TimePoint;

  void read_more();
  void on_read(TransportStatus status, size_t num_bytes);
  void on_peer_end();
  void process();
  void on_head();
  void dispatch();
  // `reason` for the log; null: that of the status.
  void refuse(HttpResponse response, bool keeps_alive, const char* reason = nullptr);
  void refuse_unreadable();
  std::string make_head(const HttpResponse& response, bool is_stream);
  void take_output();
  void write(std::string bytes);
  void write_next();
  void on_written(TransportStatus status, size_t num_bytes);
  void finish_answer();
  void next_request();
  void close_after_answer();
  void release(const char* reason);
  std::string make_request_id(std::string_view from_client);
  void set_read_deadline();
  void update_alarm();
  void on_alarm();

  const std::shared_ptr<HttpConnectionContext> context_;
  const std::shared_ptr<HttpTransport> transport_;
  Phase phase_ = Phase::kReading;

  // Reading. buffer_[begin_, end_) has come and is not consumed yet.
  std::vector<char> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  bool is_reading_ = false;
  bool has_peer_ended_ = false;
  bool is_first_request_ = true;
  std::unique_ptr<HttpRequestReader> reader_;
  TimePoint request_began_;  // its first byte came, or it became due
  TimePoint body_began_;

  // The request that is being answered.
  std::string request_id_;
  Admission admission_;
  bool keeps_alive_ = false;
  bool is_head_request_ = false;
  bool is_http11_ = true;
  bool is_chunked_ = false;
  std::shared_ptr<HttpExchangeState> exchange_;
  std::shared_ptr<HttpConnection>
      own_;                      // once the client has left and nothing is read: keeps this until the request ends
  HttpRequest refused_request_;  // of refusals: what there is no exchange for
  HttpOutcome outcome_;
  TimePoint answer_began_;

  // Writing.
  std::deque<std::string> to_write_;
  size_t num_written_of_first_ = 0;
  bool is_writing_ = false;       // from the decision to write until all is written
  bool has_write_begun_ = false;  // the first of to_write_ is the transport's
  bool has_all_output_ = false;   // what is in to_write_ ends the answer
  size_t num_event_bytes_in_flight_ = 0;

  TimePoint read_deadline_ = TimePoint::max();
  TimePoint write_deadline_ = TimePoint::max();
  TimePoint alarm_ = TimePoint::max();
};

}  // namespace quire

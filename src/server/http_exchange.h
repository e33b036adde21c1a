// One HTTP request and its answer, as handlers see them: no sockets, no threads of their own. The server implements
// HttpExchange; tests use the fake one in server/testing. Handlers (server/completions and its kin) are called on a
// server thread and must not block there: they hand over and answer later, from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire {

struct HttpRequest {
  std::string method;                                        // as sent: "GET"
  std::string path;                                          // percent-decoded; begins with '/'
  std::string query;                                         // what follows '?', as sent
  std::string path_argument;                                 // what the route's {…} matched
  std::vector<std::pair<std::string, std::string>> headers;  // as sent, in order
  std::string body;
  std::string peer;  // address of the client

  // The first header of that name, whatever its case; empty: there is none.
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> headers = {};  // besides those the server writes itself
  std::string body = {};
  std::string content_type = "application/json";  // empty: none is sent
};

// What a handler tells the access log about an answer. Fields that do not apply stay as they are.
struct AnswerFacts {
  std::string model;
  int64_t num_prompt_tokens = -1;
  int64_t num_cached_tokens = -1;
  int64_t num_generated_tokens = -1;
  double queue_seconds = -1.0;
  double first_token_seconds = -1.0;
  std::string finish_reason;  // "stop", "length", "abort", …
  std::string error;          // why it failed, for the log
};

// Held by shared_ptr. Every method may be called from any thread, also after the client has gone (then nothing
// happens). An exchange that is let go of without an answer gives the client a 500: every request gets one.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual const HttpRequest& request() const = 0;
  // The client's X-Request-Id where it is sane, else one made here; echoed in the answer and logged.
  virtual const std::string& request_id() const = 0;
  // Which API key was shown: 1, 2, … in the order of the file; 0: the server asks for none.
  virtual int64_t key_id() const = 0;

  // The whole answer, once; or a stream of events: begin (200, text/event-stream), events, end.
  virtual void respond(HttpResponse response) = 0;
  virtual void begin_events() = 0;
  virtual void send_event(std::string_view data) = 0;  // "data: …\n\n"; a line end in `data` starts a further data line
  virtual void end_events() = 0;

  // What was given to send_event and has not reached the client's socket yet. Over the server's limit it drops the
  // connection.
  virtual size_t num_unsent_bytes() const = 0;

  // The client went away, or was dropped, before respond or end_events was called. Called at most once, on a server
  // thread; at once if it has gone already. A later callback replaces an earlier one.
  virtual void on_closed(std::function<void()> callback) = 0;
  virtual bool is_closed() const = 0;

  // For the access log; the last call counts. Before the answer ends.
  virtual void set_facts(AnswerFacts facts) = 0;
};

using RouteHandler = std::function<void(std::shared_ptr<HttpExchange> exchange)>;

}  // namespace quire

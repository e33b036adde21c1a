// An HTTP/1.1 server over TCP or a Unix socket, with TLS if asked for. It knows nothing of models, routes or keys: what
// a request may do is asked of its HttpFrontDoor once the head is there, before the body is read. A few threads of its
// own carry all connections. Reading goes on while an answer is made, so that a client that leaves is noticed at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "server/http_exchange.h"

namespace quire {

struct HttpLimits {
  size_t max_head_bytes = 32 << 10;                      // request line and headers: 431
  size_t max_head_fields = 256;                          // 431
  size_t max_body_bytes = 32 << 20;                      // 413
  int64_t max_buffered_body_bytes = int64_t{512} << 20;  // of all connections together: 503
  size_t max_pipelined_bytes = 64 << 10;                 // read ahead while an answer is made
  size_t max_unsent_event_bytes = 4 << 20;               // a reader slower than that is dropped
  int max_connections = 4096;
  std::chrono::milliseconds idle_timeout{75'000};  // between requests
  std::chrono::milliseconds head_timeout{10'000};  // from the first byte, or from the beginning of the connection
  std::chrono::milliseconds body_timeout{30'000};  // the whole body, and a second for each min_body_bytes_per_second
  int64_t min_body_bytes_per_second = 16 << 10;
  std::chrono::milliseconds write_timeout{60'000};  // without any progress
  std::chrono::milliseconds linger_timeout{2'000};  // for the client to read an answer after which we close
};

// How a request ended, for logs and counters.
struct HttpOutcome {
  int status = 0;             // 0: there was none to send
  const char* reason = "ok";  // "ok", "bad_request", "refused", "failed", "client_closed", "slow_reader", …
  int64_t num_body_bytes_in = 0;
  int64_t num_bytes_out = 0;
  bool is_stream = false;
  double seconds = 0.0;  // from the end of the head to the end of the answer
  double first_byte_seconds = -1.0;
};

// What the front door says of a request of which only the head is known.
struct Admission {
  std::optional<HttpResponse> refusal;  // answered at once; the body is not read
  RouteHandler handler;                 // else: called when the body is there
  size_t max_body_bytes = 0;            // 0: HttpLimits'
  int64_t key_id = 0;
  std::string path_argument;
  // Put on the answer, whoever makes it: CORS, traceparent, ….
  std::vector<std::pair<std::string, std::string>> headers;
};

// Called on the server's threads, several at a time. Must not block.
class HttpFrontDoor {
 public:
  virtual ~HttpFrontDoor() = default;
  virtual Admission admit(const HttpRequest& head, const std::string& request_id) = 0;
  // Of every request that was read as far as its method and path, and of those that could not be read (empty method).
  virtual void on_finished(const HttpRequest& head, const std::string& request_id, int64_t key_id,
                           const HttpOutcome& outcome, const AnswerFacts& facts) = 0;
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // a name, an IPv4 or IPv6 address, or unix:/path
  int port = 8000;                 // 0: any free one
  int num_threads = 2;
  std::string tls_certificate_file;  // PEM, with its chain; both or neither
  std::string tls_key_file;
  HttpLimits limits;
};

struct HttpServerStats {
  int num_connections = 0;
  int64_t num_accepted = 0;
  int64_t num_refused = 0;  // over max_connections
  int64_t num_buffered_body_bytes = 0;
};

class HttpServer {
 public:
  // Binds, listens and serves from now on. `front_door` outlives the server.
  static Result<std::unique_ptr<HttpServer>> create(const HttpServerOptions& options, HttpFrontDoor& front_door);
  ~HttpServer();  // closes what is left
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;             // 0 for a Unix socket
  std::string address() const;  // "http://127.0.0.1:8000", "https://[::1]:8000", "unix:/run/quire.sock"
  HttpServerStats stats() const;

  // Stops accepting, closes idle connections, lets answers that are being made end, then closes theirs. False: some
  // still ran when the time was over; they are cut off by the destructor.
  void begin_stop();
  bool wait_until_stopped(std::chrono::milliseconds limit);

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

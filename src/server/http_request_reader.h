// Bytes → one HTTP/1.1 request, as they come: no sockets, no clock. Stops once the head is there, so that its reader
// can decide about the body. Bounded in all it keeps. The grammar is Boost.Beast's; what is stricter stands here: one
// Host, a path that can be decoded, no transfer coding but chunked. Used by http_connection on a server thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/http_exchange.h"
#include "server/http_server.h"

namespace quire {

class HttpRequestReader {
 public:
  enum class State : uint8_t {
    kHead,    // wants more of the head
    kDecide,  // the head is there, a body will follow: call begin_body, or give up
    kBody,    // wants more of the body
    kDone,    // the request is whole
    kFailed,  // error_status() and error_message() say how; the connection is of no use any more
  };

  explicit HttpRequestReader(const HttpLimits& limits);
  ~HttpRequestReader();

  // Takes bytes as far as the state lets it; gives how many. What is left must be given again, with what follows.
  size_t feed(std::string_view bytes);

  // In kDecide. `charge` is asked before each growth of the body (false: 503).
  void begin_body(size_t max_bytes, std::function<bool(size_t num_bytes)> charge);

  State state() const;
  int error_status() const;  // 400, 413, 431, 501, 503, 505
  const std::string& error_message() const;

  // From kDecide or kDone on; the body when done.
  HttpRequest& request();
  bool is_keep_alive() const;
  bool is_http11() const;
  bool expects_continue() const;
  bool has_unknown_expectation() const;
  std::optional<uint64_t> content_length() const;
  bool has_started() const;  // a byte of the request has come

 private:
  class Parser;
  std::unique_ptr<Parser> parser_;
};

}  // namespace quire

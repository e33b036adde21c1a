// A socket that the HTTP client writes to and reads from, with or without TLS: every wait has a limit and can be
// cancelled. It knows nothing of HTTP. Belongs to one thread at a time.
#pragma once

#include <openssl/ssl.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "server/http_client.h"

struct addrinfo;

namespace quire {

class HttpSocket {
 public:
  HttpSocket(std::chrono::milliseconds idle_timeout, const std::atomic<bool>* is_cancelled)
      : timeout_(idle_timeout), is_cancelled_(is_cancelled) {}
  ~HttpSocket();
  HttpSocket(const HttpSocket&) = delete;
  HttpSocket& operator=(const HttpSocket&) = delete;

  // Tries the addresses of the name in turn.
  Status connect(const std::string& host, uint16_t port);
  // Speaks TLS from now on. The certificate must be valid, trusted and made out to `host`.
  Status start_tls(SSL_CTX* context, const std::string& host);

  Status write(std::string_view bytes);
  // At least one byte; 0: the peer has closed.
  Result<size_t> read(char* buffer, size_t size);

  // For a connection that was idle: bytes or an end that nobody asked for.
  bool is_stale() const;
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }
  HttpFailure failure() const { return failure_; }

 private:
  Status wait(short events);
  Status fail(HttpFailure failure, std::string message);
  Status connect_address(const ::addrinfo& address);
  Status send_all(std::string_view bytes);
  Result<size_t> receive(char* buffer, size_t size);
  Status flush_tls();
  Result<bool> fill_tls();  // false: the peer has closed
  std::string tls_error() const;

  struct FreeSsl {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };

  std::chrono::milliseconds timeout_;
  const std::atomic<bool>* is_cancelled_;
  int socket_ = -1;
  std::unique_ptr<SSL, FreeSsl> ssl_;  // over memory: its bytes go through this socket's own reads and writes
  std::string peer_;
  HttpFailure failure_ = HttpFailure::kNone;
};

}  // namespace quire

#include "server/http_client_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace quire {

namespace {

std::string system_error(int error) {
  return std::strerror(error);
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};

}  // namespace

HttpSocket::~HttpSocket() {
  if (ssl_ != nullptr && failure_ == HttpFailure::kNone) {
    SSL_shutdown(ssl_.get());
    char bytes[256];
    const int num_bytes = BIO_read(SSL_get_wbio(ssl_.get()), bytes, sizeof bytes);
    // The farewell goes out if it can go at once.
    if (num_bytes > 0) (void)!::send(socket_, bytes, static_cast<size_t>(num_bytes), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  if (socket_ >= 0) ::close(socket_);
}

Status HttpSocket::fail(HttpFailure failure, std::string message) {
  failure_ = failure;
  if (failure == HttpFailure::kCancelled) return cancelled(std::move(message));
  return unavailable(std::move(message));
}

Status HttpSocket::wait(short events) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + timeout_;
  constexpr std::chrono::milliseconds kLook{200};  // how often a cancellation is looked for
  while (true) {
    if (is_cancelled_ != nullptr && is_cancelled_->load()) return fail(HttpFailure::kCancelled, "cancelled");
    auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) {
      return fail(HttpFailure::kTimeout,
                  "no answer from " + peer_ + " for " +
                      std::to_string(static_cast<double>(timeout_.count()) / 1000.0).substr(0, 5) + " s");
    }
    if (is_cancelled_ != nullptr) left = std::min(left, kLook);
    pollfd entry{socket_, events, 0};
    const int num_ready = ::poll(&entry, 1, static_cast<int>(std::min<int64_t>(left.count(), 1 << 30)));
    if (num_ready > 0) return ok_status();
    if (num_ready < 0 && errno != EINTR) return fail(HttpFailure::kClosed, "poll: " + system_error(errno));
  }
}

Status HttpSocket::connect(const std::string& host, uint16_t port) {
  peer_ = host + ":" + std::to_string(port);
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error != 0) {
    return fail(HttpFailure::kResolve, "the host name '" + host + "' cannot be resolved: " + ::gai_strerror(error) +
                                           ". Check the name, the network and the proxy settings");
  }
  const std::unique_ptr<addrinfo, FreeAddresses> addresses(list);
  Status status = ok_status();
  for (const addrinfo* address = list; address != nullptr; address = address->ai_next) {
    status = connect_address(*address);
    if (status.is_ok()) {
      failure_ = HttpFailure::kNone;
      return status;
    }
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
    if (failure_ == HttpFailure::kCancelled) break;
  }
  return status;
}

Status HttpSocket::connect_address(const addrinfo& address) {
  socket_ = ::socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol);
  if (socket_ < 0) return fail(HttpFailure::kConnect, "no socket can be opened: " + system_error(errno));
  const int on = 1;
  ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(socket_, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  int error = 0;
  if (::connect(socket_, address.ai_addr, address.ai_addrlen) != 0) {
    error = errno;
    if (error == EINPROGRESS) {
      RETURN_IF_ERROR(wait(POLLOUT));
      socklen_t size = sizeof error;
      ::getsockopt(socket_, SOL_SOCKET, SO_ERROR, &error, &size);
    }
  }
  if (error != 0) return fail(HttpFailure::kConnect, "cannot connect to " + peer_ + ": " + system_error(error));
  return ok_status();
}

std::string HttpSocket::tls_error() const {
  const long verdict = SSL_get_verify_result(ssl_.get());
  if (verdict != X509_V_OK) return std::string("its certificate is refused: ") + X509_verify_cert_error_string(verdict);
  std::array<char, 256> text{};
  ERR_error_string_n(ERR_peek_last_error(), text.data(), text.size());
  return text.data();
}

Status HttpSocket::start_tls(SSL_CTX* context, const std::string& host) {
  ERR_clear_error();
  ssl_.reset(SSL_new(context));
  if (ssl_ == nullptr) return fail(HttpFailure::kTls, "TLS cannot be set up");
  SSL_set_bio(ssl_.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
  std::array<unsigned char, sizeof(in6_addr)> binary{};
  const bool is_address =
      ::inet_pton(AF_INET, host.c_str(), binary.data()) == 1 || ::inet_pton(AF_INET6, host.c_str(), binary.data()) == 1;
  if (is_address) {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_.get()), host.c_str());
  } else {
    // What the macro SSL_set_tlsext_host_name does, without its old-style casts.
    SSL_ctrl(ssl_.get(), SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name, const_cast<char*>(host.c_str()));
    SSL_set1_host(ssl_.get(), host.c_str());
  }
  SSL_set_verify(ssl_.get(), SSL_VERIFY_PEER, nullptr);
  SSL_set_connect_state(ssl_.get());
  while (true) {
    const int result = SSL_do_handshake(ssl_.get());
    const int reason = SSL_get_error(ssl_.get(), result);
    std::string error = result == 1 || reason == SSL_ERROR_WANT_READ ? "" : tls_error();
    const Status flushed = flush_tls();  // also the alert that tells the peer why
    if (!error.empty()) return fail(HttpFailure::kTls, "no TLS with " + peer_ + ": " + error);
    RETURN_IF_ERROR(flushed);
    if (result == 1) return ok_status();
    ASSIGN_OR_RETURN(const bool is_open, fill_tls());
    if (!is_open) return fail(HttpFailure::kTls, "no TLS with " + peer_ + ": it closed the connection");
  }
}

Status HttpSocket::flush_tls() {
  std::array<char, 16384> bytes;
  while (true) {
    const int num_bytes = BIO_read(SSL_get_wbio(ssl_.get()), bytes.data(), static_cast<int>(bytes.size()));
    if (num_bytes <= 0) return ok_status();
    RETURN_IF_ERROR(send_all({bytes.data(), static_cast<size_t>(num_bytes)}));
  }
}

Result<bool> HttpSocket::fill_tls() {
  std::array<char, 32768> bytes;
  ASSIGN_OR_RETURN(const size_t num_bytes, receive(bytes.data(), bytes.size()));
  if (num_bytes == 0) return false;
  if (BIO_write(SSL_get_rbio(ssl_.get()), bytes.data(), static_cast<int>(num_bytes)) != static_cast<int>(num_bytes))
    return fail(HttpFailure::kTls, "TLS with " + peer_ + ": out of memory");
  return true;
}

Status HttpSocket::send_all(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t num_sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (num_sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(num_sent));
    } else if (num_sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      RETURN_IF_ERROR(wait(POLLOUT));
    } else if (errno != EINTR) {
      return fail(HttpFailure::kClosed,
                  peer_ + " closed the connection while it was written to: " + system_error(errno));
    }
  }
  return ok_status();
}

Result<size_t> HttpSocket::receive(char* buffer, size_t size) {
  while (true) {
    const ssize_t num_bytes = ::recv(socket_, buffer, size, 0);
    if (num_bytes >= 0) return static_cast<size_t>(num_bytes);
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      RETURN_IF_ERROR(wait(POLLIN));
    } else if (errno != EINTR) {
      return fail(HttpFailure::kClosed, peer_ + " broke the connection off: " + system_error(errno));
    }
  }
}

Status HttpSocket::write(std::string_view bytes) {
  if (ssl_ == nullptr) return send_all(bytes);
  constexpr size_t kPiece = 16384;
  while (!bytes.empty()) {
    ERR_clear_error();
    const std::string_view piece = bytes.substr(0, kPiece);
    const int num_written = SSL_write(ssl_.get(), piece.data(), static_cast<int>(piece.size()));
    if (num_written <= 0) return fail(HttpFailure::kTls, "TLS with " + peer_ + ": " + tls_error());
    bytes.remove_prefix(static_cast<size_t>(num_written));
    RETURN_IF_ERROR(flush_tls());
  }
  return ok_status();
}

Result<size_t> HttpSocket::read(char* buffer, size_t size) {
  if (ssl_ == nullptr) return receive(buffer, size);
  while (true) {
    ERR_clear_error();
    const int num_bytes = SSL_read(ssl_.get(), buffer, static_cast<int>(std::min<size_t>(size, 1 << 20)));
    if (num_bytes > 0) return static_cast<size_t>(num_bytes);
    const int reason = SSL_get_error(ssl_.get(), num_bytes);
    if (reason == SSL_ERROR_ZERO_RETURN) return size_t{0};
    if (reason != SSL_ERROR_WANT_READ) return fail(HttpFailure::kTls, "TLS with " + peer_ + ": " + tls_error());
    RETURN_IF_ERROR(flush_tls());  // answers to the peer's own messages
    ASSIGN_OR_RETURN(const bool is_open, fill_tls());
    // An end without a farewell may be an attacker's cut: only a message that says its own length survives it.
    if (!is_open) return size_t{0};
  }
}

bool HttpSocket::is_stale() const {
  if (ssl_ != nullptr && SSL_pending(ssl_.get()) > 0) return true;
  pollfd entry{socket_, POLLIN, 0};
  if (::poll(&entry, 1, 0) == 0) return false;
  // TLS 1.3 servers send session tickets after the handshake: bytes alone are no end there.
  if (ssl_ == nullptr) return true;
  char byte = 0;
  return ::recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0;
}

}  // namespace quire

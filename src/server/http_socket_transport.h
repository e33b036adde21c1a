// A connection's transport over a socket, plain or TLS, and what the transports of one server share. For http_server
// alone, which accepts the sockets. All of a transport runs on its strand but post().
#pragma once

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "server/http_connection.h"
#include "server/http_transport.h"

namespace quire {

// One strand a connection. Errors come as codes; nothing here throws but for want of memory.
using HttpStrand = boost::asio::strand<boost::asio::io_context::executor_type>;
using HttpSocket = boost::asio::basic_stream_socket<boost::asio::generic::stream_protocol, HttpStrand>;
using HttpTlsStream = boost::asio::ssl::stream<HttpSocket>;
using HttpTimer = boost::asio::basic_waitable_timer<std::chrono::steady_clock,
                                                    boost::asio::wait_traits<std::chrono::steady_clock>, HttpStrand>;

// What connections share with their server and may outlive it by.
struct HttpServerCore {
  HttpServerCore(const HttpLimits& limits, HttpFrontDoor& front_door)
      : context(std::make_shared<HttpConnectionContext>(limits, front_door)) {}

  boost::asio::io_context io;
  const std::shared_ptr<HttpConnectionContext> context;
  std::optional<boost::asio::ssl::context> tls;

  std::mutex mutex;
  std::condition_variable became_empty;
  // What lives, by transport. A connection may have gone before its transport has closed.
  struct Live {
    std::weak_ptr<HttpConnection> connection;
    std::weak_ptr<HttpTransport> transport;
  };
  std::unordered_map<const HttpTransport*, Live> connections;
  int64_t num_accepted = 0;
  int64_t num_refused = 0;

  void forget(const HttpTransport* transport) {
    const std::lock_guard lock(mutex);
    connections.erase(transport);
    if (connections.empty()) became_empty.notify_all();
  }
};

template <typename Stream>
class HttpSocketTransport : public HttpTransport, public std::enable_shared_from_this<HttpSocketTransport<Stream>> {
 public:
  static constexpr bool kIsTls = std::is_same_v<Stream, HttpTlsStream>;

  template <typename... Arguments>
  HttpSocketTransport(std::shared_ptr<HttpServerCore> core, std::string peer, Arguments&&... arguments)
      : core_(std::move(core)),
        peer_(std::move(peer)),
        stream_(std::forward<Arguments>(arguments)...),
        timer_(socket().get_executor()) {}
  ~HttpSocketTransport() override { core_->forget(this); }

  // Calls `ready` once bytes may flow.
  void begin(std::function<void()> ready) {
    if constexpr (kIsTls) {
      wait_until(now() + core_->context->limits.head_timeout, [weak = this->weak_from_this()] {
        if (const auto self = weak.lock()) self->close();
      });
      stream_.async_handshake(
          boost::asio::ssl::stream_base::server,
          [self = this->shared_from_this(), ready = std::move(ready)](const boost::system::error_code& error) {
            if (self->is_over_) return;
            if (error) return self->close();
            self->timer_.cancel();
            ready();
          });
    } else {
      ready();
    }
  }

  void read_some(std::span<char> buffer, Done done) override {
    is_reading_ = true;
    stream_.async_read_some(boost::asio::buffer(buffer.data(), buffer.size()),
                            [self = this->shared_from_this(), done = std::move(done)](
                                const boost::system::error_code& error, size_t num_bytes) {
                              self->is_reading_ = false;
                              if (self->is_over_) return self->go_on_finishing(error);
                              done(status_of(error), num_bytes);
                            });
  }

  void write_some(std::span<const char> bytes, Done done) override {
    stream_.async_write_some(boost::asio::buffer(bytes.data(), bytes.size()),
                             [self = this->shared_from_this(), done = std::move(done)](
                                 const boost::system::error_code& error, size_t num_bytes) {
                               if (!self->is_over_) done(status_of(error), num_bytes);
                             });
  }

  void wait_until(TimePoint time, std::function<void()> alarm) override {
    timer_.expires_at(time);
    // The weak pointer: an alarm far away does not keep a closed connection.
    timer_.async_wait(
        [weak = this->weak_from_this(), alarm = std::move(alarm)](const boost::system::error_code& error) {
          if (error) return;
          if (const auto self = weak.lock()) alarm();
        });
  }

  TimePoint now() const override { return std::chrono::steady_clock::now(); }

  void finish(std::chrono::milliseconds limit) override {
    if (is_over_) return;
    is_over_ = true;
    wait_until(now() + limit, [weak = this->weak_from_this()] {
      if (const auto self = weak.lock()) self->close_socket();
    });
    is_finishing_ = true;
    // A read may be under way: of TLS it has to end first, of a plain socket it is the first that discards.
    if constexpr (kIsTls) {
      boost::system::error_code ignored;
      socket().cancel(ignored);
    } else {
      boost::system::error_code ignored;
      socket().shutdown(boost::asio::socket_base::shutdown_send, ignored);
    }
    if (!is_reading_) go_on_finishing({});
  }

  void close() override {
    is_over_ = true;
    is_finishing_ = false;
    close_socket();
  }

  void post(std::function<void()> task) override { boost::asio::post(socket().get_executor(), std::move(task)); }
  const std::string& peer() const override { return peer_; }

  HttpSocket& socket() {
    if constexpr (kIsTls) {
      return stream_.next_layer();
    } else {
      return stream_;
    }
  }

 private:
  static TransportStatus status_of(const boost::system::error_code& error) {
    if (!error) return TransportStatus::kOk;
    if (error == boost::asio::error::eof) return TransportStatus::kEnd;
    if constexpr (kIsTls) {
      if (error == boost::asio::ssl::error::stream_truncated) return TransportStatus::kEnd;
    }
    return TransportStatus::kFailed;
  }

  // After a read that ended with `error`. Past the end of a socket nothing may be read again: asio would wait for ever.
  void go_on_finishing(const boost::system::error_code& error) {
    if (!is_finishing_) return;
    if constexpr (kIsTls) {
      const bool is_at_end =
          error && error != boost::asio::error::operation_aborted && error != boost::asio::error::eof;
      if (!has_said_goodbye_ && !is_at_end) {
        has_said_goodbye_ = true;
        stream_.async_shutdown([self = this->shared_from_this()](const boost::system::error_code& outcome) {
          boost::system::error_code ignored;
          self->socket().shutdown(boost::asio::socket_base::shutdown_send, ignored);
          const bool has_peer_gone =
              outcome == boost::asio::error::eof || outcome == boost::asio::ssl::error::stream_truncated;
          has_peer_gone ? self->close_socket() : self->go_on_finishing({});
        });
        return;
      }
    }
    if (error) return close_socket();
    socket().async_read_some(boost::asio::buffer(discarded_),
                             [self = this->shared_from_this()](const boost::system::error_code& outcome, size_t) {
                               self->go_on_finishing(outcome);
                             });
  }

  void close_socket() {
    is_finishing_ = false;
    timer_.cancel();
    boost::system::error_code ignored;
    socket().close(ignored);
  }

  const std::shared_ptr<HttpServerCore> core_;
  const std::string peer_;
  Stream stream_;
  HttpTimer timer_;
  bool is_reading_ = false;
  bool is_over_ = false;  // the connection has no more to do with it
  bool is_finishing_ = false;
  bool has_said_goodbye_ = false;
  std::array<char, 4096> discarded_;
};

}  // namespace quire

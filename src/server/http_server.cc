#include "server/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/strand.hpp>
#include <cstring>
#include <mutex>
#include <thread>

#include "server/http_socket_transport.h"

namespace quire {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

using Strand = HttpStrand;
using Socket = HttpSocket;
using TlsStream = HttpTlsStream;
using Timer = HttpTimer;
using Core = HttpServerCore;
using Acceptor = asio::basic_socket_acceptor<asio::generic::stream_protocol, Strand>;

constexpr std::string_view kUnixPrefix = "unix:";
constexpr int kBacklog = 1024;
constexpr std::chrono::milliseconds kAcceptPause{100};

std::string describe_address(const sockaddr* address, size_t length, bool has_port) {
  char text[INET6_ADDRSTRLEN] = "";
  if (length >= sizeof(sockaddr_in) && address->sa_family == AF_INET) {
    sockaddr_in ipv4;
    std::memcpy(&ipv4, address, sizeof(ipv4));
    ::inet_ntop(AF_INET, &ipv4.sin_addr, text, sizeof(text));
    return has_port ? std::string(text) + ':' + std::to_string(ntohs(ipv4.sin_port)) : text;
  }
  if (length >= sizeof(sockaddr_in6) && address->sa_family == AF_INET6) {
    sockaddr_in6 ipv6;
    std::memcpy(&ipv6, address, sizeof(ipv6));
    ::inet_ntop(AF_INET6, &ipv6.sin6_addr, text, sizeof(text));
    return has_port ? '[' + std::string(text) + "]:" + std::to_string(ntohs(ipv6.sin6_port)) : text;
  }
  return "unix";
}

Status in_use_or(const error_code& error, const std::string& what) {
  if (error == asio::error::address_in_use) {
    return unavailable(what + " is in use by another program: stop that one, or choose another --port");
  }
  if (error == asio::error::access_denied) {
    return unavailable("no permission to listen on " + what + ": ports under 1024 need root; choose another --port");
  }
  return unavailable("cannot listen on " + what + ": " + error.message() + "; check --host and --port");
}

}  // namespace

struct HttpServer::Impl {
  Impl(const HttpServerOptions& server_options, HttpFrontDoor& front_door)
      : options(server_options), core(std::make_shared<Core>(server_options.limits, front_door)) {}

  Status load_tls();
  Status listen();
  Status listen_on(const asio::generic::stream_protocol::endpoint& endpoint, const std::string& what);
  Status listen_on_unix(const std::string& path);
  void accept_from(Acceptor& acceptor);
  void welcome(Socket socket);
  template <typename Transport>
  void serve(const std::shared_ptr<Transport>& transport);
  void close_acceptors();
  // Calls action(transport, connection or null) for each, on its strand.
  template <typename Action>
  void for_each_live(Action action);

  HttpServerOptions options;
  std::shared_ptr<Core> core;
  std::vector<std::unique_ptr<Acceptor>> acceptors;
  int port = 0;
  std::string unix_path;
  std::string address;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work;
  std::vector<std::thread> threads;
};

Status HttpServer::Impl::load_tls() {
  if (options.tls_certificate_file.empty() && options.tls_key_file.empty()) return ok_status();
  if (options.tls_certificate_file.empty() || options.tls_key_file.empty()) {
    return invalid_argument("TLS needs both --tls-cert and --tls-key");
  }
  asio::ssl::context& tls = core->tls.emplace(asio::ssl::context::tls_server);
  error_code error;
  tls.set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_tlsv1 |
                      asio::ssl::context::no_tlsv1_1 | asio::ssl::context::no_compression,
                  error);
  ::SSL_CTX_set_options(tls.native_handle(), SSL_OP_NO_RENEGOTIATION);
  if (error) return internal_error("OpenSSL: " + error.message());
  tls.use_certificate_chain_file(options.tls_certificate_file, error);
  if (error) {
    return invalid_argument("cannot use the certificate " + options.tls_certificate_file + ": " + error.message() +
                            "; --tls-cert takes a PEM file, the server's certificate first, then its chain");
  }
  tls.use_private_key_file(options.tls_key_file, asio::ssl::context::pem, error);
  if (error) {
    return invalid_argument("cannot use the key " + options.tls_key_file + ": " + error.message() +
                            "; --tls-key takes the PEM file of the certificate's private key, without a password");
  }
  // Clients that would rather speak HTTP/2 are told what there is.
  ::SSL_CTX_set_alpn_select_cb(
      tls.native_handle(),
      [](SSL*, const unsigned char** out, unsigned char* out_length, const unsigned char* in, unsigned in_length,
         void*) {
        static constexpr unsigned char kHttp11[] = "\x08http/1.1";
        unsigned char* chosen = nullptr;
        if (::SSL_select_next_proto(&chosen, out_length, kHttp11, sizeof(kHttp11) - 1, in, in_length) !=
            OPENSSL_NPN_NEGOTIATED) {
          return SSL_TLSEXT_ERR_NOACK;
        }
        *out = chosen;
        return SSL_TLSEXT_ERR_OK;
      },
      nullptr);
  return ok_status();
}

Status HttpServer::Impl::listen_on(const asio::generic::stream_protocol::endpoint& endpoint, const std::string& what) {
  auto acceptor = std::make_unique<Acceptor>(asio::make_strand(core->io));
  error_code error;
  acceptor->open(endpoint.protocol(), error);
  const int family = endpoint.protocol().family();
  if (!error && family != AF_UNIX) acceptor->set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor->bind(endpoint, error);
  if (!error) acceptor->listen(kBacklog, error);
  if (error) return in_use_or(error, what);
  if (family != AF_UNIX) {
    const auto bound = acceptor->local_endpoint(error);
    const std::string text = describe_address(bound.data(), bound.size(), true);
    port = std::atoi(text.substr(text.rfind(':') + 1).c_str());
    if (address.empty()) address = (core->tls.has_value() ? "https://" : "http://") + text;
  }
  acceptors.push_back(std::move(acceptor));
  return ok_status();
}

Status HttpServer::Impl::listen_on_unix(const std::string& path) {
  if (path.empty() || path.size() >= sizeof(sockaddr_un::sun_path)) {
    return invalid_argument("--host unix:PATH takes a path of 1 to 107 bytes, not '" + path + "'");
  }
  const asio::local::stream_protocol::endpoint endpoint(path);
  struct stat existing {};
  if (::lstat(path.c_str(), &existing) == 0) {
    if (!S_ISSOCK(existing.st_mode)) {
      return invalid_argument(path + " exists and is no socket: remove it, or choose another path");
    }
    asio::local::stream_protocol::socket probe(core->io);
    error_code error;
    probe.connect(endpoint, error);
    if (!error) return unavailable("another program listens on " + path + ": stop that one, or choose another path");
    ::unlink(path.c_str());  // left behind by one that was killed
  }
  RETURN_IF_ERROR(listen_on(endpoint, path));
  unix_path = path;
  address = "unix:" + path;
  return ok_status();
}

Status HttpServer::Impl::listen() {
  if (options.host.starts_with(kUnixPrefix)) return listen_on_unix(options.host.substr(kUnixPrefix.size()));
  std::string host = options.host;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  error_code error;
  asio::ip::tcp::resolver resolver(core->io);
  const auto found = resolver.resolve(host, std::to_string(options.port), asio::ip::resolver_base::passive, error);
  if (error) {
    return invalid_argument("--host " + host + " is no address of this machine: " + error.message() +
                            "; use 127.0.0.1 (this machine alone), 0.0.0.0 (all), ::1, :: or unix:/path");
  }
  Status last;
  for (const auto& entry : found) {
    asio::ip::tcp::endpoint endpoint = entry.endpoint();
    if (options.port == 0 && port != 0) endpoint.port(static_cast<unsigned short>(port));
    const Status status = listen_on(endpoint, describe_address(endpoint.data(), endpoint.size(), true));
    if (!status.is_ok()) last = status;
  }
  // "localhost" has two addresses, and one of them may not exist here.
  return acceptors.empty() ? last : ok_status();
}

void HttpServer::Impl::accept_from(Acceptor& acceptor) {
  acceptor.async_accept(asio::make_strand(core->io), [this, &acceptor](const error_code& error, Socket socket) {
    if (error == asio::error::operation_aborted || !acceptor.is_open()) return;
    if (!error) {
      welcome(std::move(socket));
      return accept_from(acceptor);
    }
    // No file descriptors are left, most likely: some will be free soon.
    auto timer = std::make_shared<Timer>(acceptor.get_executor());
    timer->expires_after(kAcceptPause);
    timer->async_wait([this, &acceptor, timer](const error_code&) {
      if (acceptor.is_open()) accept_from(acceptor);
    });
  });
}

void HttpServer::Impl::welcome(Socket socket) {
  error_code error;
  const auto remote = socket.remote_endpoint(error);
  if (error) return;  // gone already
  std::string peer = describe_address(remote.data(), remote.size(), false);
  const bool is_tcp = remote.protocol().family() != AF_UNIX;
  {
    const std::lock_guard lock(core->mutex);
    ++core->num_accepted;
    if (core->connections.size() >= static_cast<size_t>(options.limits.max_connections)) {
      ++core->num_refused;
      if (!core->tls.has_value()) {
        static constexpr std::string_view kBusy =
            "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n";
        socket.non_blocking(true, error);
        socket.write_some(asio::buffer(kBusy.data(), kBusy.size()), error);
      }
      return;
    }
  }
  if (is_tcp) {
    socket.set_option(asio::ip::tcp::no_delay(true), error);
    // A client whose machine has vanished never says so; the kernel finds out in about two minutes.
    socket.set_option(asio::socket_base::keep_alive(true), error);
    const int idle_s = 60;
    const int interval_s = 15;
    const int probes = 4;
    ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
    ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
    ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
  }
  if (core->tls.has_value()) {
    serve(std::make_shared<HttpSocketTransport<TlsStream>>(core, std::move(peer), std::move(socket), *core->tls));
  } else {
    serve(std::make_shared<HttpSocketTransport<Socket>>(core, std::move(peer), std::move(socket)));
  }
}

template <typename Transport>
void HttpServer::Impl::serve(const std::shared_ptr<Transport>& transport) {
  auto connection = std::make_shared<HttpConnection>(core->context, transport);
  {
    const std::lock_guard lock(core->mutex);
    core->connections.emplace(transport.get(), Core::Live{connection, transport});
  }
  transport->post([transport, connection] { transport->begin([connection] { connection->start(); }); });
}

template <typename Action>
void HttpServer::Impl::for_each_live(Action action) {
  std::vector<Core::Live> live;
  {
    const std::lock_guard lock(core->mutex);
    for (const auto& [key, one] : core->connections) live.push_back(one);
  }
  for (const Core::Live& one : live) {
    const std::shared_ptr<HttpTransport> transport = one.transport.lock();
    if (transport == nullptr) continue;
    transport->post([transport, connection = one.connection.lock(), action] { action(*transport, connection.get()); });
  }
}

void HttpServer::Impl::close_acceptors() {
  for (const std::unique_ptr<Acceptor>& acceptor : acceptors) {
    asio::post(acceptor->get_executor(), [&acceptor = *acceptor] {
      error_code ignored;
      acceptor.close(ignored);
    });
  }
  if (!unix_path.empty()) ::unlink(unix_path.c_str());
  unix_path.clear();
}

Result<std::unique_ptr<HttpServer>> HttpServer::create(const HttpServerOptions& options, HttpFrontDoor& front_door) {
  auto impl = std::make_unique<Impl>(options, front_door);
  RETURN_IF_ERROR(impl->load_tls());
  RETURN_IF_ERROR(impl->listen());
  impl->work.emplace(asio::make_work_guard(impl->core->io));
  for (const std::unique_ptr<Acceptor>& acceptor : impl->acceptors) impl->accept_from(*acceptor);
  for (int i = 0; i < options.num_threads; ++i) {
    impl->threads.emplace_back([core = impl->core] { core->io.run(); });
  }
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() {
  begin_stop();
  impl_->for_each_live([](HttpTransport& transport, HttpConnection* connection) {
    if (connection != nullptr) connection->abandon("server_stopped");
    transport.close();  // it may still linger
  });
  // With the acceptors and connections closed nothing is left to wait for, and run() returns.
  impl_->work.reset();
  for (std::thread& thread : impl_->threads) thread.join();
}

int HttpServer::port() const {
  return impl_->port;
}

std::string HttpServer::address() const {
  return impl_->address;
}

HttpServerStats HttpServer::stats() const {
  const std::lock_guard lock(impl_->core->mutex);
  return {.num_connections = static_cast<int>(impl_->core->connections.size()),
          .num_accepted = impl_->core->num_accepted,
          .num_refused = impl_->core->num_refused,
          .num_buffered_body_bytes = impl_->core->context->num_buffered_body_bytes.load()};
}

void HttpServer::begin_stop() {
  if (impl_->core->context->is_stopping.exchange(true)) return;
  impl_->close_acceptors();
  impl_->for_each_live([](HttpTransport&, HttpConnection* connection) {
    if (connection != nullptr) connection->begin_stop();
  });
}

bool HttpServer::wait_until_stopped(std::chrono::milliseconds limit) {
  std::unique_lock lock(impl_->core->mutex);
  return impl_->core->became_empty.wait_for(lock, limit, [this] { return impl_->core->connections.empty(); });
}

}  // namespace quire

// The server over real sockets: TCP, IPv6, Unix, TLS; many clients, floods, disconnects, and stopping.
#include "server/http_server.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <mutex>
#include <thread>

namespace quire {
namespace {

using namespace std::chrono_literals;

// /echo: the body. /late: answered by a thread of its own. /stream: three events. /hang: never, until the client goes.
class Door : public HttpFrontDoor {
 public:
  ~Door() override {
    for (std::thread& thread : threads_) thread.join();
  }
  Admission admit(const HttpRequest& head, const std::string&) override {
    Admission admission;
    admission.handler = [this, path = head.path](std::shared_ptr<HttpExchange> exchange) {
      if (path == "/hang") {
        exchange->on_closed([this, exchange] {
          const std::lock_guard lock(mutex_);
          ++num_closed_;
          changed_.notify_all();
        });
        return;
      }
      if (path == "/late" || path == "/stream") {
        const std::lock_guard lock(mutex_);
        threads_.emplace_back([exchange, path] {
          if (path == "/late") {
            std::this_thread::sleep_for(50ms);
            return exchange->respond({.body = "late"});
          }
          exchange->begin_events();
          for (int i = 0; i < 3; ++i) exchange->send_event(std::to_string(i));
          exchange->end_events();
        });
        return;
      }
      exchange->respond({.body = exchange->request().body});
    };
    return admission;
  }
  void on_finished(const HttpRequest&, const std::string&, int64_t, const HttpOutcome&, const AnswerFacts&) override {
    ++num_finished;
  }
  bool wait_for_closed(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 10s, [&] { return num_closed_ >= count; });
  }

  std::atomic<int> num_finished = 0;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int num_closed_ = 0;
  std::vector<std::thread> threads_;
};

class Client {
 public:
  explicit Client(int fd) : fd_(fd) {}
  ~Client() { close(); }
  Client(const Client&) = delete;

  static std::unique_ptr<Client> tcp(int port) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return connect(fd, &address, sizeof(address));
  }
  template <typename Address>
  static std::unique_ptr<Client> connect(int fd, const Address* address, socklen_t size) {
    timeval limit{.tv_sec = 20, .tv_usec = 0};
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    auto client = std::make_unique<Client>(fd);
    if (::connect(fd, static_cast<const sockaddr*>(static_cast<const void*>(address)), size) != 0) return nullptr;
    return client;
  }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t num = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (num <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(num));
    }
    return true;
  }
  // Until the text ends with `end`, or the server closes.
  std::string receive_until(std::string_view end) {
    std::string text;
    char buffer[4096];
    while (end.empty() || !text.ends_with(end)) {
      const ssize_t num = ::recv(fd_, buffer, sizeof(buffer), 0);
      if (num <= 0) break;
      text.append(buffer, static_cast<size_t>(num));
    }
    return text;
  }
  std::string ask(const std::string& path, const std::string& body) {
    send("POST " + path + " HTTP/1.1\r\nHost: h\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    return receive_until("\r\n\r\n" + body);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

class HttpServerTest : public ::testing::Test {
 protected:
  void open() {
    options_.port = 0;
    auto server = HttpServer::create(options_, door_);
    ASSERT_TRUE(server.is_ok()) << server.status().message();
    server_ = std::move(server).value();
  }
  bool wait_for_connections(int count) {
    for (int i = 0; i < 1000; ++i) {
      if (server_->stats().num_connections == count) return true;
      std::this_thread::sleep_for(10ms);
    }
    return false;
  }
  static std::string temporary(const std::string& name) {
    return ::testing::TempDir() + "quire_http_" + std::to_string(::getpid()) + '_' + name;
  }

  Door door_;
  HttpServerOptions options_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersOverTcp) {
  open();
  EXPECT_EQ(server_->address(), "http://127.0.0.1:" + std::to_string(server_->port()));
  const auto client = Client::tcp(server_->port());
  ASSERT_NE(client, nullptr);
  const std::string large(3 << 20, 'x');
  EXPECT_TRUE(client->ask("/echo", "hello").ends_with("\r\n\r\nhello"));
  EXPECT_TRUE(client->ask("/echo", large).ends_with(large));
  client->send("GET /late HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_TRUE(client->receive_until("late").ends_with("late"));
  client->send("GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
  const std::string stream = client->receive_until("0\r\n\r\n");
  for (const char* event : {"data: 0\n\n", "data: 1\n\n", "data: 2\n\n"}) {
    EXPECT_NE(stream.find(event), std::string::npos) << stream;
  }
}

TEST_F(HttpServerTest, ManyClientsAtOnce) {
  open();
  std::vector<std::thread> threads;
  std::atomic<int> num_right = 0;
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&, t] {
      const auto client = Client::tcp(server_->port());
      for (int i = 0; i < 50; ++i) {
        const std::string body = "body " + std::to_string(t * 1000 + i);
        if (client->ask("/echo", body).ends_with("\r\n\r\n" + body)) ++num_right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_right, 16 * 50);
  EXPECT_TRUE(wait_for_connections(0));
  EXPECT_EQ(server_->stats().num_accepted, 16);
}

// An end and a half end look the same from here: both end the work.
TEST_F(HttpServerTest, ClientsThatEndTheirSideCountAsGone) {
  open();
  const auto client = Client::tcp(server_->port());
  client->send("GET /hang HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_TRUE(wait_for_connections(1));
  std::this_thread::sleep_for(100ms);
  ::shutdown(client->fd(), SHUT_WR);
  EXPECT_TRUE(door_.wait_for_closed(1));
}

TEST_F(HttpServerTest, DisconnectsAreNoticedWhileAnAnswerIsMade) {
  open();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(Client::tcp(server_->port()));
    clients.back()->send("GET /hang HTTP/1.1\r\nHost: h\r\n\r\n");
    if (i % 2 == 1) {  // a reset instead of an end
      linger hard{.l_onoff = 1, .l_linger = 0};
      ::setsockopt(clients.back()->fd(), SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    }
  }
  EXPECT_TRUE(wait_for_connections(20));
  std::this_thread::sleep_for(100ms);
  clients.clear();
  EXPECT_TRUE(door_.wait_for_closed(20));
  EXPECT_TRUE(wait_for_connections(0));
  EXPECT_EQ(door_.num_finished, 20);
}

// Endless request lines, endless headers, from many connections: each gets its answer, and nothing stays.
TEST_F(HttpServerTest, FloodsOfHeaders) {
  open();
  for (int i = 0; i < 200; ++i) {
    const auto client = Client::tcp(server_->port());
    ASSERT_NE(client, nullptr);
    std::string flood = "GET /";
    if (i % 2 == 1) flood = "GET / HTTP/1.1\r\nHost: h\r\n";
    while (flood.size() < (256 << 10)) flood += i % 2 == 1 ? "A: b\r\n" : "aaaaaaaaaaaaaaaaaaaaaaaaa";
    client->send(flood);  // the server may close before it has all
    if (i % 10 == 0) continue;
    const std::string answer = client->receive_until("");
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 431 ")) << answer.substr(0, 100);
  }
  EXPECT_TRUE(wait_for_connections(0));
  EXPECT_EQ(server_->stats().num_buffered_body_bytes, 0);
}

TEST_F(HttpServerTest, ConnectionsAreLimited) {
  options_.limits.max_connections = 3;
  open();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(Client::tcp(server_->port()));
    EXPECT_TRUE(clients.back()->ask("/echo", "x").ends_with("x"));
  }
  const auto fourth = Client::tcp(server_->port());
  EXPECT_TRUE(fourth->receive_until("").starts_with("HTTP/1.1 503"));
  clients.pop_back();
  EXPECT_TRUE(wait_for_connections(2));
  EXPECT_TRUE(Client::tcp(server_->port())->ask("/echo", "x").ends_with("x"));
}

TEST_F(HttpServerTest, StopsGracefully) {
  open();
  const auto idle = Client::tcp(server_->port());
  EXPECT_TRUE(idle->ask("/echo", "x").ends_with("x"));
  const auto busy = Client::tcp(server_->port());
  busy->send("GET /late HTTP/1.1\r\nHost: h\r\n\r\n");
  std::this_thread::sleep_for(10ms);
  server_->begin_stop();
  const std::string answer = busy->receive_until("");
  EXPECT_TRUE(answer.ends_with("late")) << answer;
  EXPECT_NE(answer.find("Connection: close"), std::string::npos);
  EXPECT_EQ(idle->receive_until(""), "");
  idle->close();
  busy->close();
  EXPECT_TRUE(server_->wait_until_stopped(10s));
  EXPECT_EQ(Client::tcp(server_->port()), nullptr);
}

TEST_F(HttpServerTest, StoppingCutsOffWhatHangs) {
  open();
  const auto client = Client::tcp(server_->port());
  client->send("GET /hang HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_TRUE(wait_for_connections(1));
  std::this_thread::sleep_for(50ms);
  server_->begin_stop();
  EXPECT_FALSE(server_->wait_until_stopped(100ms));
  server_.reset();
  EXPECT_TRUE(door_.wait_for_closed(1));
  EXPECT_EQ(client->receive_until(""), "");
}

TEST_F(HttpServerTest, UnixSocket) {
  const std::string path = temporary("socket");
  options_.host = "unix:" + path;
  open();
  EXPECT_EQ(server_->address(), "unix:" + path);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  const auto client = Client::connect(::socket(AF_UNIX, SOCK_STREAM, 0), &address, sizeof(address));
  ASSERT_NE(client, nullptr);
  EXPECT_TRUE(client->ask("/echo", "x").ends_with("x"));
  EXPECT_FALSE(HttpServer::create(options_, door_).is_ok());  // it is in use
  server_.reset();
  EXPECT_NE(::access(path.c_str(), F_OK), 0);
  std::ofstream(path) << "a file";
  EXPECT_FALSE(HttpServer::create(options_, door_).is_ok());  // and would not be overwritten
  ::unlink(path.c_str());
}

TEST_F(HttpServerTest, Ipv6) {
  options_.host = "[::1]";
  options_.port = 0;
  auto server = HttpServer::create(options_, door_);
  if (!server.is_ok()) GTEST_SKIP() << server.status().message();
  EXPECT_EQ(server.value()->address(), "http://[::1]:" + std::to_string(server.value()->port()));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(static_cast<uint16_t>(server.value()->port()));
  address.sin6_addr = in6addr_loopback;
  const auto client = Client::connect(::socket(AF_INET6, SOCK_STREAM, 0), &address, sizeof(address));
  ASSERT_NE(client, nullptr);
  EXPECT_TRUE(client->ask("/echo", "x").ends_with("x"));
}

TEST_F(HttpServerTest, WhatCannotBeListenedOnIsSaid) {
  open();
  HttpServerOptions again = options_;
  again.port = server_->port();
  auto second = HttpServer::create(again, door_);
  ASSERT_FALSE(second.is_ok());
  EXPECT_NE(second.status().message().find("in use"), std::string::npos) << second.status().message();
  again.host = "no.such.host.invalid";
  EXPECT_FALSE(HttpServer::create(again, door_).is_ok());
  again = options_;
  again.tls_certificate_file = "/nonexistent";
  EXPECT_FALSE(HttpServer::create(again, door_).is_ok());
  again.tls_key_file = "/nonexistent";
  EXPECT_FALSE(HttpServer::create(again, door_).is_ok());
}

// A certificate that signs itself, for the test.
void write_certificate(const std::string& certificate_file, const std::string& key_file) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -60);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_NAME* name = X509_get_subject_name(certificate);
  const unsigned char host[] = "localhost";
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, host, -1, -1, 0);
  X509_set_issuer_name(certificate, name);
  X509_sign(certificate, key, EVP_sha256());
  FILE* file = std::fopen(certificate_file.c_str(), "w");
  PEM_write_X509(file, certificate);
  std::fclose(file);
  file = std::fopen(key_file.c_str(), "w");
  PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(file);
  X509_free(certificate);
  EVP_PKEY_free(key);
}

TEST_F(HttpServerTest, Tls) {
  options_.tls_certificate_file = temporary("certificate.pem");
  options_.tls_key_file = temporary("key.pem");
  write_certificate(options_.tls_certificate_file, options_.tls_key_file);
  open();
  EXPECT_TRUE(server_->address().starts_with("https://"));
  SSL_CTX* context = SSL_CTX_new(TLS_client_method());
  const std::string large(1 << 20, 'x');
  for (int i = 0; i < 4; ++i) {
    const auto client = Client::tcp(server_->port());
    SSL* ssl = SSL_new(context);
    SSL_set_fd(ssl, client->fd());
    ASSERT_EQ(SSL_connect(ssl), 1);
    const std::string body = i == 1 ? large : "hello";
    const std::string path = i == 2 ? "/hang" : "/echo";
    const std::string request =
        "POST " + path + " HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size()) +
        "\r\n\r\n" + body;
    ASSERT_EQ(SSL_write(ssl, request.data(), static_cast<int>(request.size())), static_cast<int>(request.size()));
    if (i == 2) {
      SSL_shutdown(ssl);
      EXPECT_TRUE(door_.wait_for_closed(1));
    } else {
      std::string answer;
      char buffer[4096];
      int num = 0;
      while ((num = SSL_read(ssl, buffer, sizeof(buffer))) > 0) answer.append(buffer, static_cast<size_t>(num));
      EXPECT_EQ(SSL_get_error(ssl, num), SSL_ERROR_ZERO_RETURN);  // it says goodbye, so nothing was cut off
      EXPECT_TRUE(answer.ends_with("\r\n\r\n" + body));
    }
    SSL_free(ssl);
  }
  // Plain HTTP to the TLS port, and nothing at all.
  const auto plain = Client::tcp(server_->port());
  plain->send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  plain->receive_until("");
  plain->close();
  EXPECT_TRUE(wait_for_connections(0));
  SSL_CTX_free(context);
  ::unlink(options_.tls_certificate_file.c_str());
  ::unlink(options_.tls_key_file.c_str());
}

}  // namespace
}  // namespace quire

// The HTTP client against servers that this file scripts, byte by byte, over loopback: what HTTP allows, what it does
// not, and what networks do to it.
#include "server/http_client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <functional>
#include <mutex>
#include <thread>

namespace quire {
namespace {

// One side of an accepted connection, with or without TLS.
class Peer {
 public:
  Peer(int socket, SSL_CTX* context) : socket_(socket) {
    if (context == nullptr) return;
    ssl_ = SSL_new(context);
    SSL_set_fd(ssl_, socket);
    is_ok_ = SSL_accept(ssl_) == 1;
  }
  ~Peer() {
    if (ssl_ != nullptr) {
      if (is_ok_) SSL_shutdown(ssl_);
      SSL_free(ssl_);
    }
    ::shutdown(socket_, SHUT_RDWR);
    ::close(socket_);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // A request's head, and as much body as it announces; empty: the client has gone.
  std::string read_request() {
    std::string text;
    size_t end = std::string::npos;
    while ((end = text.find("\r\n\r\n")) == std::string::npos) {
      if (!read_more(text)) return "";
    }
    size_t length = 0;
    if (const size_t at = text.find("Content-Length: "); at != std::string::npos && at < end)
      length = std::stoul(text.substr(at + 16));
    while (text.size() < end + 4 + length) {
      if (!read_more(text)) return "";
    }
    return text;
  }

  void write(std::string_view text) {
    if (ssl_ != nullptr) {
      SSL_write(ssl_, text.data(), static_cast<int>(text.size()));
    } else {
      (void)!::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
    }
  }

  // Until the client goes away.
  void wait_for_end() {
    std::string ignored;
    while (read_more(ignored)) continue;
  }

 private:
  bool read_more(std::string& text) {
    char buffer[4096];
    const ssize_t num_bytes =
        ssl_ != nullptr ? SSL_read(ssl_, buffer, sizeof buffer) : ::recv(socket_, buffer, sizeof buffer, 0);
    if (num_bytes <= 0) return false;
    text.append(buffer, static_cast<size_t>(num_bytes));
    return true;
  }

  int socket_;
  SSL* ssl_ = nullptr;
  bool is_ok_ = true;
};

// Calls `script` for every connection, on a thread of its own.
class Server {
 public:
  explicit Server(std::function<void(Peer&)> script, SSL_CTX* context = nullptr) : script_(std::move(script)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address);
    ::listen(listener_, 16);
    socklen_t size = sizeof address;
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    accepting_ = std::thread([this, context] {
      while (true) {
        const int socket = ::accept(listener_, nullptr, nullptr);
        if (socket < 0) return;
        ++num_connections_;
        sockets_.push_back(::dup(socket));
        threads_.emplace_back([this, socket, context] {
          Peer peer(socket, context);
          script_(peer);
        });
      }
    });
  }
  ~Server() {
    ::shutdown(listener_, SHUT_RDWR);
    accepting_.join();
    for (const int socket : sockets_) ::shutdown(socket, SHUT_RDWR);  // a client may still hold its end
    for (std::thread& thread : threads_) thread.join();
    for (const int socket : sockets_) ::close(socket);
    ::close(listener_);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::string url(const std::string& path, const char* scheme = "http") const {
    return std::string(scheme) + "://127.0.0.1:" + std::to_string(port_) + path;
  }
  int num_connections() const { return num_connections_; }
  int port() const { return port_; }

 private:
  std::function<void(Peer&)> script_;
  int listener_;
  int port_ = 0;
  std::atomic<int> num_connections_{0};
  std::thread accepting_;
  std::vector<int> sockets_;  // the accepting thread's until it has ended
  std::vector<std::thread> threads_;
};

// Answers every request of a connection with the same bytes; keeps the requests.
struct Answer {
  std::string text;
  std::vector<std::string> requests{};
  std::function<void(Peer&)> script() {
    return [this](Peer& peer) {
      for (std::string request = peer.read_request(); !request.empty(); request = peer.read_request()) {
        requests.push_back(request);
        peer.write(text);
        if (text.find("Connection: close") != std::string::npos) return;
      }
    };
  }
};

HttpClientOptions quick() {
  HttpClientOptions options;
  options.idle_timeout = std::chrono::milliseconds(5000);
  return options;
}

HttpReply get(HttpClient& client, const std::string& url) {
  Result<HttpReply> reply = client.send({.url = url});
  EXPECT_TRUE(reply.is_ok()) << reply.status().message();
  return reply.is_ok() ? reply.value() : HttpReply();
}

TEST(HttpUrl, IsTakenApart) {
  const auto url = parse_url("HTTPS://user:pw@Hub.Example.org:8443/a/b?c=d#e");
  ASSERT_TRUE(url.is_ok());
  EXPECT_EQ(url.value().scheme, "https");
  EXPECT_EQ(url.value().user_info, "user:pw");
  EXPECT_EQ(url.value().host, "hub.example.org");
  EXPECT_EQ(url.value().port, 8443);
  EXPECT_EQ(url.value().target, "/a/b?c=d");
  EXPECT_EQ(parse_url("http://h").value().target, "/");
  EXPECT_EQ(parse_url("http://h?x=1").value().target, "/?x=1");
  EXPECT_EQ(parse_url("https://h").value().port, 443);
  EXPECT_EQ(parse_url("http://[::1]:80/").value().host, "::1");
  EXPECT_EQ(parse_url("http://[::1]:81/").value().host_and_port(), "[::1]:81");
  for (const char* wrong :
       {"", "h", "ftp://h/", "http://", "http://:80/", "http://h:0/", "http://h:70000/", "http://h:8x/", "http://h/a b",
        "http://h/\r\nX: y", "http://[::1/", "http://a\"b/", "file:///etc/passwd"}) {
    EXPECT_FALSE(parse_url(wrong).is_ok()) << wrong;
  }
}

TEST(HttpUrl, LocationsAreResolved) {
  const HttpUrl base = parse_url("https://h:81/a/b/c?q=1").value();
  const auto resolved = [&](const char* location) {
    const auto url = resolve_location(base, location);
    return url.is_ok() ? url.value().scheme + "://" + url.value().host_and_port() + url.value().target : "error";
  };
  EXPECT_EQ(resolved("http://other/x?y"), "http://other/x?y");
  EXPECT_EQ(resolved("/x?u=http://z/"), "https://h:81/x?u=http://z/");
  EXPECT_EQ(resolved("//other/x"), "https://other/x");
  EXPECT_EQ(resolved("x"), "https://h:81/a/b/x");
  EXPECT_EQ(resolved("../x/"), "https://h:81/a/x/");
  EXPECT_EQ(resolved("../../../../x#y"), "https://h:81/x");
  EXPECT_EQ(resolved("?r"), "https://h:81/a/b/c?r");
  EXPECT_EQ(resolved("ftp://h/"), "error");
  EXPECT_EQ(encode_url_path("a b/ü+%.gguf"), "a%20b/%C3%BC%2B%25.gguf");
}

TEST(HttpClient, ReadsBodiesOfEveryKindAndKeepsConnections) {
  Answer sized{"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello"};
  Server server(sized.script());
  HttpClient client(quick());
  const HttpReply first = get(client, server.url("/x?y=z"));
  EXPECT_EQ(first.status, 200);
  EXPECT_EQ(first.body, "hello");
  EXPECT_EQ(first.header("x-a"), "b");
  EXPECT_EQ(first.content_length, 5);
  EXPECT_EQ(get(client, server.url("/")).body, "hello");
  EXPECT_EQ(server.num_connections(), 1);
  EXPECT_EQ(sized.requests.at(0).substr(0, 22), "GET /x?y=z HTTP/1.1\r\nH");
  EXPECT_NE(sized.requests.at(0).find("\r\nHost: 127.0.0.1:" + std::to_string(server.port()) + "\r\n"),
            std::string::npos);

  Answer chunked{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"};
  Server chunked_server(chunked.script());
  EXPECT_EQ(get(client, chunked_server.url("/")).body, "hello");
  EXPECT_EQ(get(client, chunked_server.url("/")).body, "hello");
  EXPECT_EQ(chunked_server.num_connections(), 1);

  Answer unsized{"HTTP/1.1 404 Nope\r\nConnection: close\r\n\r\nuntil the end"};
  Server unsized_server(unsized.script());
  const HttpReply reply = get(client, unsized_server.url("/"));
  EXPECT_EQ(reply.status, 404);
  EXPECT_EQ(reply.body, "until the end");
  EXPECT_EQ(reply.content_length, -1);

  Answer empty{"HTTP/1.1 204 No Content\r\n\r\n"};
  Server empty_server(empty.script());
  EXPECT_EQ(get(client, empty_server.url("/")).status, 204);
}

TEST(HttpClient, PostsAndAsksForHeadsAndPassesOver100Continue) {
  Answer answer{"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Made\r\nContent-Length: 2\r\n\r\nok"};
  Server server(answer.script());
  HttpClient client(quick());
  const std::string body(3 << 20, 'x');
  Result<HttpReply> reply = client.send(
      {.method = "POST", .url = server.url("/p"), .headers = {{"Content-Type", "text/plain"}}, .body = body});
  ASSERT_TRUE(reply.is_ok()) << reply.status().message();
  EXPECT_EQ(reply.value().status, 201);
  EXPECT_EQ(reply.value().body, "ok");
  ASSERT_EQ(answer.requests.size(), 1u);
  EXPECT_EQ(answer.requests[0].substr(answer.requests[0].size() - body.size()), body);

  Answer head{"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\nETag: \"e\"\r\n\r\n"};
  Server head_server(head.script());
  reply = client.send({.method = "HEAD", .url = head_server.url("/")});
  ASSERT_TRUE(reply.is_ok()) << reply.status().message();
  EXPECT_EQ(reply.value().content_length, 1000000);
  EXPECT_EQ(reply.value().body, "");
}

TEST(HttpClient, StreamsBodiesAsTheyComeAndStopsWhenTheHandlerDoes) {
  Server server([](Peer& peer) {
    peer.read_request();
    peer.write("HTTP/1.1 206 Partial\r\nContent-Length: 6\r\nContent-Range: bytes 4-9/10\r\n\r\nabc");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    peer.write("def");
    peer.wait_for_end();
  });
  HttpClient client(quick());
  std::vector<std::string> pieces;
  int status_at_head = 0;
  const HttpReplyHandlers handlers{.on_head =
                                       [&](const HttpReply& head) {
                                         status_at_head = head.status;
                                         EXPECT_EQ(head.header("content-range"), "bytes 4-9/10");
                                         EXPECT_LT(pieces.size(), 2u);
                                         return ok_status();
                                       },
                                   .on_body =
                                       [&](std::string_view piece) {
                                         pieces.emplace_back(piece);
                                         return pieces.size() < 3 ? ok_status() : internal_error("enough");
                                       }};
  Result<HttpReply> reply = client.send({.url = server.url("/"), .headers = {{"Range", "bytes=4-"}}}, handlers);
  ASSERT_TRUE(reply.is_ok()) << reply.status().message();
  EXPECT_EQ(status_at_head, 206);
  EXPECT_EQ(pieces, (std::vector<std::string>{"abc", "def"}));
  EXPECT_EQ(reply.value().body, "");

  pieces.clear();
  pieces.push_back("one more than before");
  HttpClient second(quick());
  reply = second.send({.url = server.url("/")}, handlers);
  EXPECT_FALSE(reply.is_ok());
  EXPECT_EQ(second.failure(), HttpFailure::kHandler);
  EXPECT_EQ(reply.status().message(), "enough");
}

TEST(HttpClient, BodiesOfErrorsAreKeptAndBodiesThatAreTooLongRefused) {
  Answer answer{"HTTP/1.1 500 Oh\r\nContent-Length: 5\r\n\r\nworse"};
  Server server(answer.script());
  HttpClientOptions options = quick();
  HttpClient client(options);
  Result<HttpReply> reply =
      client.send({.url = server.url("/")},
                  {.on_head = {}, .on_body = [](std::string_view) { return internal_error("not for me"); }});
  ASSERT_TRUE(reply.is_ok());
  EXPECT_EQ(reply.value().body, "worse");
  options.max_kept_body_bytes = 4;
  HttpClient small(options);
  reply = small.send({.url = server.url("/")});
  EXPECT_FALSE(reply.is_ok());
  EXPECT_NE(reply.status().message().find("longer"), std::string::npos);
}

TEST(HttpClient, RedirectsAreFollowedAndCredentialsStayAtHome) {
  Answer far{"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nfar"};
  Server far_server(far.script());
  std::vector<std::string> requests;
  Server near_server([&](Peer& peer) {
    for (std::string request = peer.read_request(); !request.empty(); request = peer.read_request()) {
      requests.push_back(request);
      const std::string location = request.rfind("GET /first", 0) == 0 ? "/second?x" : far_server.url("/blob");
      peer.write("HTTP/1.1 302 Found\r\nX-Linked-Etag: \"abc\"\r\nContent-Length: 4\r\nLocation: " + location +
                 "\r\n\r\nbody");
    }
  });
  HttpClient client(quick());
  const HttpCall call{.url = near_server.url("/first"),
                      .headers = {{"Range", "bytes=1-"}},
                      .credentials = {{"Authorization", "Bearer secret"}}};
  std::string streamed;
  Result<HttpReply> reply = client.send(call, {.on_head = {}, .on_body = [&](std::string_view piece) {
                                                 streamed += piece;
                                                 return ok_status();
                                               }});
  ASSERT_TRUE(reply.is_ok()) << reply.status().message();
  EXPECT_EQ(streamed, "far");
  EXPECT_EQ(reply.value().url, far_server.url("/blob"));
  EXPECT_EQ(HttpReply::find_field(reply.value().first_headers, "x-linked-etag"), "\"abc\"");
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_NE(requests[0].find("Bearer secret"), std::string::npos);
  EXPECT_NE(requests[1].find("Bearer secret"), std::string::npos);
  EXPECT_EQ(far.requests.at(0).find("secret"), std::string::npos);
  EXPECT_NE(far.requests.at(0).find("Range: bytes=1-"), std::string::npos);

  HttpCall stay = call;
  stay.follow_redirects = false;
  reply = client.send(stay);
  ASSERT_TRUE(reply.is_ok());
  EXPECT_EQ(reply.value().status, 302);
  EXPECT_EQ(reply.value().body, "body");
}

TEST(HttpClient, RedirectsInACircleEnd) {
  Answer answer{"HTTP/1.1 301 Moved\r\nContent-Length: 0\r\nLocation: /\r\n\r\n"};
  Server server(answer.script());
  HttpClient client(quick());
  EXPECT_FALSE(client.send({.url = server.url("/")}).is_ok());
  EXPECT_EQ(client.failure(), HttpFailure::kProtocol);
  EXPECT_EQ(answer.requests.size(), 11u);
}

TEST(HttpClient, AKeptConnectionThatHasClosedIsReplaced) {
  std::atomic<int> num_requests{0};
  Server server([&](Peer& peer) {
    // Answers one request a connection, and closes on the next without a word.
    if (peer.read_request().empty()) return;
    ++num_requests;
    peer.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    peer.read_request();
  });
  HttpClient client(quick());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(get(client, server.url("/")).body, "ok");
  EXPECT_EQ(num_requests, 3);
  EXPECT_EQ(server.num_connections(), 3);
}

TEST(HttpClient, TellsWhatWentWrong) {
  const auto failure_of = [](const std::string& answer, std::string* message = nullptr) {
    Server server([&](Peer& peer) {
      peer.read_request();
      peer.write(answer);
    });
    HttpClient client(quick());
    const Result<HttpReply> reply = client.send({.url = server.url("/")});
    if (message != nullptr && !reply.is_ok()) *message = reply.status().message();
    return client.failure();
  };
  std::string message;
  EXPECT_EQ(failure_of("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort", &message), HttpFailure::kClosed);
  EXPECT_NE(message.find("5 of 10"), std::string::npos) << message;
  EXPECT_EQ(failure_of("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel"), HttpFailure::kClosed);
  EXPECT_EQ(failure_of("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), HttpFailure::kProtocol);
  EXPECT_EQ(failure_of("HTTP/1.1 200 OK\r\nContent-Len"), HttpFailure::kClosed);
  EXPECT_EQ(failure_of(""), HttpFailure::kClosed);
  EXPECT_EQ(failure_of("SSH-2.0-OpenSSH\r\n"), HttpFailure::kProtocol);
  EXPECT_EQ(failure_of("HTTP/1.1 200 OK\r\nX: " + std::string(100'000, 'x') + "\r\n\r\n"), HttpFailure::kProtocol);
  EXPECT_EQ(failure_of("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"), HttpFailure::kProtocol);

  HttpClientOptions options = quick();
  options.idle_timeout = std::chrono::milliseconds(50);
  HttpClient client(options);
  Server silent([](Peer& peer) { peer.wait_for_end(); });
  EXPECT_FALSE(client.send({.url = silent.url("/")}).is_ok());
  EXPECT_EQ(client.failure(), HttpFailure::kTimeout);
  EXPECT_FALSE(client.send({.url = "http://127.0.0.1:1/"}).is_ok());
  EXPECT_EQ(client.failure(), HttpFailure::kConnect);
  EXPECT_FALSE(client.send({.url = "http://no-such-host.invalid/"}).is_ok());
  EXPECT_EQ(client.failure(), HttpFailure::kResolve);
  EXPECT_FALSE(client.send({.url = "gopher://h"}).is_ok());
  EXPECT_EQ(client.failure(), HttpFailure::kBadUrl);
  EXPECT_FALSE(client.send({.url = "http://127.0.0.1:1/", .credentials = {{"Authorization", "a\r\nX: b"}}}).is_ok());
  EXPECT_EQ(client.failure(), HttpFailure::kBadUrl);

  std::atomic<bool> is_cancelled{true};
  options.is_cancelled = &is_cancelled;
  options.idle_timeout = std::chrono::milliseconds(60'000);
  HttpClient cancelled_client(options);
  EXPECT_EQ(cancelled_client.send({.url = silent.url("/")}).status().code(), StatusCode::kCancelled);
}

TEST(HttpClient, GoesThroughProxies) {
  Answer answer{"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nvia"};
  Server proxy(answer.script());
  HttpClientOptions options = quick();
  options.http_proxy = "http://me:p%40ss@127.0.0.1:" + std::to_string(proxy.port());
  options.no_proxy = "localhost, .inside.example,127.0.0.1";
  HttpClient client(options);
  EXPECT_EQ(get(client, "http://somewhere.example:81/x").body, "via");
  EXPECT_EQ(
      answer.requests.at(0).rfind("GET http://somewhere.example:81/x HTTP/1.1\r\nHost: somewhere.example:81\r\n", 0),
      0u);
  EXPECT_NE(answer.requests.at(0).find("Proxy-Authorization: Basic bWU6cEBzcw==\r\n"), std::string::npos);

  Answer direct{"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\ndirect"};
  Server server(direct.script());
  EXPECT_EQ(get(client, server.url("/")).body, "direct");
  EXPECT_FALSE(client.send({.url = "http://a.inside.example/"}).is_ok());
  EXPECT_EQ(client.failure(), HttpFailure::kResolve);

  Answer refusal{"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"};
  Server refusing(refusal.script());
  options.https_proxy = "127.0.0.1:" + std::to_string(refusing.port());
  HttpClient tls_client(options);
  const Result<HttpReply> reply = tls_client.send({.url = "https://somewhere.example/"});
  ASSERT_FALSE(reply.is_ok());
  EXPECT_NE(reply.status().message().find("403"), std::string::npos);
  EXPECT_EQ(refusal.requests.at(0).rfind("CONNECT somewhere.example:443 HTTP/1.1\r\n", 0), 0u);
}

// A certificate for 127.0.0.1 or for another name, signed by itself.
struct Certificate {
  explicit Certificate(const char* name) {
    ::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to clients that have gone
    key = EVP_RSA_gen(2048);
    certificate = X509_new();
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    X509_NAME* subject = X509_get_subject_name(certificate);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
    X509_set_issuer_name(certificate, subject);
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, name);
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
    X509_sign(certificate, key, EVP_sha256());
    context = SSL_CTX_new(TLS_server_method());
    SSL_CTX_use_certificate(context, certificate);
    SSL_CTX_use_PrivateKey(context, key);
    char file_name[] = "/tmp/quire_http_client_test_XXXXXX";
    std::FILE* file = ::fdopen(::mkstemp(file_name), "w");
    PEM_write_X509(file, certificate);
    std::fclose(file);
    path = file_name;
  }
  ~Certificate() {
    SSL_CTX_free(context);
    X509_free(certificate);
    EVP_PKEY_free(key);
    std::remove(path.c_str());
  }
  Certificate(const Certificate&) = delete;
  Certificate& operator=(const Certificate&) = delete;

  EVP_PKEY* key;
  X509* certificate;
  SSL_CTX* context;
  std::string path;
};

TEST(HttpClient, SpeaksTlsWithThoseItTrustsAndNoOthers) {
  const Certificate good("IP:127.0.0.1");
  Answer answer{"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + std::string(300'000, 's')};
  Server server(answer.script(), good.context);
  HttpClientOptions options = quick();
  options.ca_file = good.path;
  HttpClient trusting(options);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(get(trusting, server.url("/", "https")).body.size(), 300'000u);
  EXPECT_EQ(server.num_connections(), 1);

  HttpClient strange(quick());
  Result<HttpReply> reply = strange.send({.url = server.url("/", "https")});
  ASSERT_FALSE(reply.is_ok());
  EXPECT_EQ(strange.failure(), HttpFailure::kTls);
  EXPECT_NE(reply.status().message().find("self-signed"), std::string::npos) << reply.status().message();

  const Certificate other("DNS:other.example");
  Server other_server(answer.script(), other.context);
  options.ca_file = other.path;
  HttpClient careful(options);
  reply = careful.send({.url = other_server.url("/", "https")});
  ASSERT_FALSE(reply.is_ok());
  EXPECT_NE(reply.status().message().find("mismatch"), std::string::npos) << reply.status().message();

  Answer plain{"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"};
  Server plain_server(plain.script());
  HttpClientOptions hasty = quick();
  hasty.connect_timeout = std::chrono::milliseconds(100);
  HttpClient hasty_client(hasty);
  EXPECT_FALSE(hasty_client.send({.url = plain_server.url("/", "https")}).is_ok());
}

TEST(HttpClient, DoesNotFollowFromTlsToPlain) {
  const Certificate good("IP:127.0.0.1");
  Answer plain{"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"};
  Server plain_server(plain.script());
  Answer answer{"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: " + plain_server.url("/") + "\r\n\r\n"};
  Server server(answer.script(), good.context);
  HttpClientOptions options = quick();
  options.ca_file = good.path;
  HttpClient client(options);
  EXPECT_FALSE(client.send({.url = server.url("/", "https")}).is_ok());
  EXPECT_TRUE(plain.requests.empty());
}

TEST(SseParser, GivesTheDataOfEventsCutAnywhere) {
  const std::string text =
      ": hello\n\ndata: one\n\nevent: x\ndata:two\ndata:  three\n\n\r\ndata: four\r\n\r\nid: 5\n\ndata\n\ndata: "
      "[DONE]\r\rdata: lost";
  const std::vector<std::string> expected{"one", "two\n three", "four", "", "[DONE]"};
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    for (size_t second = cut; second <= text.size(); second += 7) {
      std::vector<std::string> events;
      SseParser parser([&](std::string_view data) { events.emplace_back(data); });
      ASSERT_TRUE(parser.add(text.substr(0, cut)).is_ok());
      ASSERT_TRUE(parser.add(text.substr(cut, second - cut)).is_ok());
      ASSERT_TRUE(parser.add(text.substr(second)).is_ok());
      ASSERT_EQ(events, expected) << cut << " " << second;
    }
  }
}

TEST(SseParser, RefusesEventsWithoutEnd) {
  SseParser parser([](std::string_view) {});
  const std::string piece(1 << 20, 'x');
  Status status = parser.add("data: ");
  for (int i = 0; i < 20 && status.is_ok(); ++i) status = parser.add(piece);
  EXPECT_FALSE(status.is_ok());
}

}  // namespace
}  // namespace quire

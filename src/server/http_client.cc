#include "server/http_client.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <boost/beast/http/basic_parser.hpp>
#include <cstring>
#include <optional>

#include "server/http_client_socket.h"

namespace quire {

namespace http = boost::beast::http;

namespace {

constexpr size_t kMaxHeaderBytes = 64 << 10;
constexpr size_t kMaxKeptConnections = 16;

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

// Beast's parser, with the body handed on as it comes.
class ReplyParser final : public http::basic_parser<false> {
 public:
  ReplyParser(HttpReply* reply, std::function<Status()> on_head, std::function<Status(std::string_view)> on_body)
      : reply_(reply), on_head_(std::move(on_head)), on_body_(std::move(on_body)) {
    eager(true);
    header_limit(kMaxHeaderBytes);
    body_limit(boost::none);
  }

  const Status& handler_status() const { return handler_status_; }
  int64_t num_body_bytes() const { return num_body_bytes_; }

 private:
  using ErrorCode = boost::beast::error_code;
  using StringView = boost::beast::string_view;

  void on_request_impl(http::verb, StringView, StringView, int, ErrorCode&) override {}
  void on_response_impl(int code, StringView, int, ErrorCode&) override { reply_->status = code; }
  void on_field_impl(http::field, StringView name, StringView value, ErrorCode&) override {
    reply_->headers.emplace_back(std::string(name), std::string(value));
  }
  void on_header_impl(ErrorCode& error) override {
    if (const auto length = content_length())
      reply_->content_length = static_cast<int64_t>(std::min<uint64_t>(*length, INT64_MAX));
    take(on_head_(), error);
  }
  void on_body_init_impl(const boost::optional<uint64_t>&, ErrorCode&) override {}
  size_t on_body_impl(StringView body, ErrorCode& error) override {
    num_body_bytes_ += static_cast<int64_t>(body.size());
    take(on_body_({body.data(), body.size()}), error);
    return body.size();
  }
  void on_chunk_header_impl(uint64_t, StringView, ErrorCode&) override {}
  size_t on_chunk_body_impl(uint64_t, StringView body, ErrorCode& error) override { return on_body_impl(body, error); }
  void on_finish_impl(ErrorCode&) override {}

  void take(Status status, ErrorCode& error) {
    if (status.is_ok()) return;
    handler_status_ = std::move(status);
    error = boost::system::errc::make_error_code(boost::system::errc::operation_canceled);
  }

  HttpReply* reply_;
  std::function<Status()> on_head_;
  std::function<Status(std::string_view)> on_body_;
  Status handler_status_;
  int64_t num_body_bytes_ = 0;
};

bool is_safe_field(const std::pair<std::string, std::string>& field) {
  const auto is_safe = [](const std::string& text) {
    return text.find_first_of(std::string_view("\r\n\0", 3)) == std::string::npos;
  };
  return !field.first.empty() && is_safe(field.first) && is_safe(field.second) &&
         field.first.find_first_of(": \t") == std::string::npos;
}

std::string base64(const std::string& text) {
  std::string result(4 * ((text.size() + 2) / 3), '\0');
  // EVP_EncodeBlock writes a terminating zero, which a string has room for.
  EVP_EncodeBlock(reinterpret_cast<unsigned char*>(result.data()), reinterpret_cast<const unsigned char*>(text.data()),
                  static_cast<int>(text.size()));
  return result;
}

std::string decode_percent(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size() && std::isxdigit(static_cast<unsigned char>(text[i + 1])) != 0 &&
        std::isxdigit(static_cast<unsigned char>(text[i + 2])) != 0) {
      value = static_cast<unsigned>(std::stoul(std::string(text.substr(i + 1, 2)), nullptr, 16));
      result += static_cast<char>(value);
      i += 2;
    } else {
      result += text[i];
    }
  }
  return result;
}

}  // namespace

const char* http_failure_name(HttpFailure failure) {
  constexpr const char* kNames[] = {"none",    "bad_url", "resolve",  "connect",   "tls",
                                    "timeout", "closed",  "protocol", "cancelled", "handler"};
  return kNames[static_cast<size_t>(failure)];
}

std::string_view HttpReply::find_field(const HttpFields& fields, std::string_view name) {
  for (const auto& [key, value] : fields) {
    if (equal_ignoring_case(key, name)) return value;
  }
  return {};
}

struct HttpClient::TlsContext {
  struct Free {
    void operator()(SSL_CTX* tls) const { SSL_CTX_free(tls); }
  };
  std::unique_ptr<SSL_CTX, Free> context;
};

class HttpClient::Connection {
 public:
  explicit Connection(const HttpClientOptions& options) : socket(options.connect_timeout, options.is_cancelled) {}
  HttpSocket socket;
  bool is_proxied = false;  // requests name the whole URL
  std::string proxy_authorization;
  bool is_used = false;
};

HttpClient::HttpClient(HttpClientOptions options) : options_(std::move(options)) {}
HttpClient::~HttpClient() = default;

Status HttpClient::fail(HttpFailure failure, std::string message) {
  failure_ = failure;
  return failure == HttpFailure::kBadUrl ? invalid_argument(std::move(message)) : unavailable(std::move(message));
}

const std::string* HttpClient::proxy_for(const HttpUrl& url) const {
  const std::string& proxy = url.is_tls() ? options_.https_proxy : options_.http_proxy;
  if (proxy.empty()) return nullptr;
  std::string_view list = options_.no_proxy;
  while (!list.empty()) {
    const size_t end = std::min(list.find(','), list.size());
    std::string_view entry = list.substr(0, end);
    list.remove_prefix(std::min(end + 1, list.size()));
    while (!entry.empty() && entry.front() == ' ') entry.remove_prefix(1);
    while (!entry.empty() && entry.back() == ' ') entry.remove_suffix(1);
    if (entry == "*") return nullptr;
    if (entry.size() > 1 && entry.substr(0, 2) == "*.") entry.remove_prefix(1);
    if (const size_t colon = entry.find(':'); colon != std::string_view::npos && colon == entry.rfind(':')) {
      if (entry.substr(colon + 1) != std::to_string(url.port)) continue;
      entry = entry.substr(0, colon);
    }
    if (entry.empty()) continue;
    if (equal_ignoring_case(entry, url.host)) return nullptr;
    // "example.org" and ".example.org" cover "hub.example.org".
    const std::string suffix = (entry.front() == '.' ? "" : ".") + std::string(entry);
    const std::string_view host = url.host;
    if (host.size() > suffix.size() && equal_ignoring_case(host.substr(host.size() - suffix.size()), suffix))
      return nullptr;
    if (equal_ignoring_case(suffix.substr(1), host)) return nullptr;
  }
  return &proxy;
}

Result<std::unique_ptr<HttpClient::Connection>> HttpClient::open_connection(const HttpUrl& url) {
  auto connection = std::make_unique<Connection>(options_);
  const auto check = [&](Status status) {
    if (!status.is_ok()) failure_ = connection->socket.failure();
    return status;
  };
  const std::string* proxy = proxy_for(url);
  if (proxy == nullptr) {
    RETURN_IF_ERROR(check(connection->socket.connect(url.host, url.port)));
  } else {
    const Result<HttpUrl> parsed = parse_url(proxy->find("://") == std::string::npos ? "http://" + *proxy : *proxy);
    if (!parsed.is_ok() || parsed.value().is_tls())
      return fail(HttpFailure::kBadUrl, "the proxy '" + *proxy + "' is not of the form http://host:port");
    const HttpUrl& via = parsed.value();
    if (!via.user_info.empty()) connection->proxy_authorization = "Basic " + base64(decode_percent(via.user_info));
    RETURN_IF_ERROR(check(connection->socket.connect(via.host, via.port)).with_context("proxy"));
    connection->is_proxied = !url.is_tls();
    if (url.is_tls()) {
      const std::string authority = url.origin().substr(url.origin().find("://") + 3);
      std::string ask = "CONNECT " + authority + " HTTP/1.1\r\nHost: " + authority + "\r\n";
      if (!connection->proxy_authorization.empty())
        ask += "Proxy-Authorization: " + connection->proxy_authorization + "\r\n";
      RETURN_IF_ERROR(check(connection->socket.write(ask + "\r\n")));
      std::string head;
      // A byte at a time: what follows the head belongs to TLS.
      while (head.size() < 4 || head.compare(head.size() - 4, 4, "\r\n\r\n") != 0) {
        char byte = 0;
        Result<size_t> num_bytes = connection->socket.read(&byte, 1);
        if (!num_bytes.is_ok()) return check(num_bytes.status()).with_context("proxy");
        if (num_bytes.value() == 0 || head.size() > kMaxHeaderBytes)
          return fail(HttpFailure::kConnect, "the proxy " + via.host_and_port() + " gave no answer to CONNECT");
        head += byte;
      }
      if (head.compare(0, 7, "HTTP/1.") != 0 || head.size() < 12 || head[9] != '2') {
        return fail(HttpFailure::kConnect, "the proxy " + via.host_and_port() + " refuses to connect to " + authority +
                                               ": " + head.substr(0, head.find('\r')));
      }
    }
  }
  if (url.is_tls()) {
    if (tls_ == nullptr) {
      auto tls = std::make_unique<TlsContext>();
      tls->context.reset(SSL_CTX_new(TLS_client_method()));
      if (tls->context == nullptr) return fail(HttpFailure::kTls, "TLS cannot be set up");
      SSL_CTX_set_min_proto_version(tls->context.get(), TLS1_2_VERSION);
      if (options_.ca_file.empty()) {
        SSL_CTX_set_default_verify_paths(tls->context.get());
      } else if (SSL_CTX_load_verify_locations(tls->context.get(), options_.ca_file.c_str(), nullptr) != 1) {
        return fail(HttpFailure::kTls, "no certificates can be read from " + options_.ca_file);
      }
      tls_ = std::move(tls);
    }
    RETURN_IF_ERROR(check(connection->socket.start_tls(tls_->context.get(), url.host)));
  }
  connection->socket.set_timeout(options_.idle_timeout);
  return connection;
}

Status HttpClient::exchange(const HttpUrl& url, const HttpCall& call, bool may_send_credentials,
                            const HttpReplyHandlers& handlers, HttpReply* reply) {
  const std::string origin = url.origin();
  std::unique_ptr<Connection> connection;
  if (const auto kept = kept_.find(origin); kept != kept_.end()) {
    connection = std::move(kept->second);
    kept_.erase(kept);
    if (connection->socket.is_stale()) connection.reset();
  }
  const bool has_body = !call.body.empty() || call.method == "POST" || call.method == "PUT";

  for (bool is_last_try = connection == nullptr;; is_last_try = true) {
    if (connection == nullptr) {
      ASSIGN_OR_RETURN(connection, open_connection(url));
      is_last_try = true;
    }
    std::string head = call.method + " " + (connection->is_proxied ? url.scheme + "://" + url.host_and_port() : "") +
                       url.target + " HTTP/1.1\r\nHost: " + url.host_and_port() +
                       "\r\nUser-Agent: " + options_.user_agent + "\r\n";
    for (const auto& [name, value] : call.headers) head.append(name).append(": ").append(value).append("\r\n");
    if (may_send_credentials) {
      for (const auto& [name, value] : call.credentials) head.append(name).append(": ").append(value).append("\r\n");
      if (!url.user_info.empty()) head += "Authorization: Basic " + base64(decode_percent(url.user_info)) + "\r\n";
    }
    if (connection->is_proxied && !connection->proxy_authorization.empty())
      head += "Proxy-Authorization: " + connection->proxy_authorization + "\r\n";
    if (has_body) head += "Content-Length: " + std::to_string(call.body.size()) + "\r\n";
    head += "\r\n";

    HttpSocket& socket = connection->socket;
    // A server may refuse a body before it has read it all: its answer counts, not the broken pipe.
    const Status written = socket.write(has_body ? head + call.body : head);
    if (!written.is_ok() && socket.failure() != HttpFailure::kClosed) {
      failure_ = socket.failure();
      return written;
    }

    *reply = HttpReply();
    reply->url = url.scheme + "://" + url.host_and_port() + url.target;
    const bool is_final = !call.follow_redirects;
    const auto is_for_caller = [&] {
      return is_final || !is_redirect(reply->status) || reply->header("Location").empty();
    };
    const auto on_head = [&]() -> Status {
      if (reply->status < 200 || !is_for_caller() || !handlers.on_head) return ok_status();
      return handlers.on_head(*reply);
    };
    const auto on_body = [&](std::string_view piece) -> Status {
      if (handlers.on_body && reply->status / 100 == 2) return handlers.on_body(piece);
      if (reply->body.size() + piece.size() > options_.max_kept_body_bytes)
        return resource_exhausted("the body of " + reply->url + " is longer than is kept");
      reply->body += piece;
      return ok_status();
    };
    std::optional<ReplyParser> parser;
    const auto start = [&] {
      parser.emplace(reply, on_head, on_body);
      if (call.method == "HEAD") parser->skip(true);
    };
    start();

    std::string pending;  // read, and not taken by the parser yet
    std::array<char, 65536> buffer;
    bool has_any_bytes = false;
    bool is_eof = false;
    boost::beast::error_code error;
    while (true) {
      if (!pending.empty()) {
        const size_t num_taken = parser->put(boost::asio::buffer(pending), error);
        pending.erase(0, num_taken);
        if (error == http::error::need_more) error = {};
        if (error) break;
        if (parser->is_done() && reply->status >= 100 && reply->status < 200) {  // "100 Continue" and its like
          *reply = HttpReply{.url = reply->url};
          start();
          continue;
        }
      }
      if (parser->is_done() || is_eof) break;
      Result<size_t> num_bytes = socket.read(buffer.data(), buffer.size());
      if (!num_bytes.is_ok()) {
        if (!has_any_bytes && socket.failure() == HttpFailure::kClosed) break;
        failure_ = socket.failure();
        return num_bytes.status();
      }
      if (num_bytes.value() == 0) {
        is_eof = true;
        if (has_any_bytes) {
          parser->put_eof(error);
          if (error) break;
        }
        continue;
      }
      has_any_bytes = true;
      pending.append(buffer.data(), num_bytes.value());
    }
    if (!parser->handler_status().is_ok()) {
      failure_ = HttpFailure::kHandler;
      return parser->handler_status();
    }
    if (!has_any_bytes) {
      connection.reset();
      // The server had closed the kept connection; what may have been done already is not asked for twice.
      if (!is_last_try && (call.method == "GET" || call.method == "HEAD")) continue;
      return fail(HttpFailure::kClosed, url.host_and_port() + " closed the connection without an answer");
    }
    if (error == http::error::partial_message || (is_eof && !parser->is_done())) {
      return fail(HttpFailure::kClosed,
                  url.host_and_port() + " closed the connection in the middle of its answer, after " +
                      std::to_string(parser->num_body_bytes()) +
                      (reply->content_length >= 0 ? " of " + std::to_string(reply->content_length) : "") + " bytes");
    }
    if (error)
      return fail(HttpFailure::kProtocol,
                  url.host_and_port() + " answers with something that is not HTTP/1.1: " + error.message());
    connection->is_used = true;
    if (parser->keep_alive() && !is_eof && pending.empty() && written.is_ok()) {
      if (kept_.size() >= kMaxKeptConnections) kept_.clear();
      kept_[origin] = std::move(connection);
    }
    return ok_status();
  }
}

Result<HttpReply> HttpClient::send(const HttpCall& call, const HttpReplyHandlers& handlers) {
  failure_ = HttpFailure::kNone;
  for (const HttpFields* fields : {&call.headers, &call.credentials}) {
    for (const auto& field : *fields) {
      if (!is_safe_field(field))
        return fail(HttpFailure::kBadUrl, "the header '" + field.first + "' holds line breaks or zero bytes");
    }
  }
  Result<HttpUrl> url = parse_url(call.url);
  if (!url.is_ok()) {
    failure_ = HttpFailure::kBadUrl;
    return url.status();
  }
  const std::string first_origin = url.value().origin();
  HttpCall step = call;
  HttpFields first_headers;
  bool may_send_credentials = true;
  for (int num_redirects = 0;; ++num_redirects) {
    HttpReply reply;
    RETURN_IF_ERROR(exchange(url.value(), step, may_send_credentials, handlers, &reply));
    const std::string location(reply.header("Location"));
    if (num_redirects == 0) first_headers = reply.headers;
    if (!call.follow_redirects || !is_redirect(reply.status) || location.empty()) {
      if (num_redirects > 0) reply.first_headers = std::move(first_headers);
      return reply;
    }
    if (num_redirects >= options_.max_redirects)
      return fail(HttpFailure::kProtocol,
                  call.url + " leads in a circle: more than " + std::to_string(options_.max_redirects) + " redirects");
    Result<HttpUrl> next = resolve_location(url.value(), location);
    if (!next.is_ok()) {
      failure_ = HttpFailure::kBadUrl;
      return next.status().with_context("a redirect of " + call.url);
    }
    if (url.value().is_tls() && !next.value().is_tls())
      return fail(HttpFailure::kProtocol, "a redirect of " + call.url + " leads from https to http: not followed");
    url = std::move(next);
    // Once elsewhere, credentials stay at home for good.
    if (url.value().origin() != first_origin) may_send_credentials = false;
    if (reply.status == 303 || ((reply.status == 301 || reply.status == 302) && step.method == "POST")) {
      if (step.method != "HEAD") step.method = "GET";
      step.body.clear();
    }
  }
}

}  // namespace quire

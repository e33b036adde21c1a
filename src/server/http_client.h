// A blocking HTTP/1.1 client, with TLS: what `pull` fetches with, what `bench-serve` loads a server with, and what
// tests ask servers with. Bodies stream into a callback as they arrive. It follows redirects, keeps connections alive,
// goes through proxies, and gives up when a peer is silent for too long. No HTTP/2, no cookies, no compression. One
// client belongs to one thread at a time; threads have a client each. The environment is not read here.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace quire {

struct HttpUrl {
  std::string scheme;  // "http" or "https"
  std::string user_info;
  std::string host;  // without the brackets of an IPv6 address
  uint16_t port = 0;
  std::string target;  // path and query; never empty, begins with '/'

  std::string origin() const;         // "https://host:port"
  std::string host_and_port() const;  // "host", or "host:port" where the port is not the scheme's own
  bool is_tls() const { return scheme == "https"; }
};
Result<HttpUrl> parse_url(std::string_view text);
// Where a Location header leads, seen from the page that held it.
Result<HttpUrl> resolve_location(const HttpUrl& base, std::string_view location);
// Percent-encodes what may not stand in a path; '/' stays.
std::string encode_url_path(std::string_view path);

using HttpFields = std::vector<std::pair<std::string, std::string>>;

struct HttpClientOptions {
  std::chrono::milliseconds connect_timeout{10'000};  // the name, the connection, TLS and a proxy's consent; each
  std::chrono::milliseconds idle_timeout{60'000};     // not a byte came or went for so long
  int max_redirects = 10;
  size_t max_kept_body_bytes = 64 << 20;  // of a body that no callback takes
  std::string http_proxy;                 // "http://[user:password@]host:port" for http URLs; empty: none
  std::string https_proxy;                // the same for https URLs
  std::string no_proxy;                   // hosts that are asked directly: "localhost,.example.org,10.0.0.1" or "*"
  std::string ca_file;                    // certificates to trust; empty: the system's
  std::string user_agent = "quire";
  const std::atomic<bool>* is_cancelled = nullptr;  // looked at a few times a second while waiting
};

struct HttpCall {
  std::string method = "GET";
  std::string url{};
  HttpFields headers{};  // Host, Content-Length and Connection are set by the client
  HttpFields
      credentials{};  // such as Authorization: sent only to the origin of `url`, never after a redirect elsewhere
  std::string body{};
  bool follow_redirects = true;
};

struct HttpReply {
  int status = 0;
  HttpFields headers{};
  std::string body{};           // what no callback took
  std::string url{};            // after redirects
  int64_t content_length = -1;  // as announced; -1: not announced
  HttpFields first_headers{};   // of the first redirect, where there was one (hubs tell hashes there)

  // The first field of that name, whatever its case; empty where there is none.
  std::string_view header(std::string_view name) const { return find_field(headers, name); }
  static std::string_view find_field(const HttpFields& fields, std::string_view name);
};

// Both may be left out. An error from either ends the call with that error and closes the connection.
struct HttpReplyHandlers {
  std::function<Status(const HttpReply& head)> on_head{};   // status and headers of the last reply, before its body
  std::function<Status(std::string_view piece)> on_body{};  // pieces of a 2xx body as they come; other bodies are kept
};

enum class HttpFailure : uint8_t {
  kNone,
  kBadUrl,
  kResolve,
  kConnect,
  kTls,
  kTimeout,
  kClosed,
  kProtocol,
  kCancelled,
  kHandler
};
const char* http_failure_name(HttpFailure failure);

class HttpClient {
 public:
  explicit HttpClient(HttpClientOptions options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // A reply of any status is a value; an error means that there was no whole reply, and failure() says of which kind.
  // A kept connection that turns out to be closed is replaced once, unseen; after a POST has been sent, it is not.
  Result<HttpReply> send(const HttpCall& call, const HttpReplyHandlers& handlers = {});
  HttpFailure failure() const { return failure_; }

  const HttpClientOptions& options() const { return options_; }

 private:
  class Connection;
  struct TlsContext;

  Status exchange(const HttpUrl& url, const HttpCall& call, bool may_send_credentials,
                  const HttpReplyHandlers& handlers, HttpReply* reply);
  Result<std::unique_ptr<Connection>> open_connection(const HttpUrl& url);
  Status fail(HttpFailure failure, std::string message);
  const std::string* proxy_for(const HttpUrl& url) const;

  HttpClientOptions options_;
  HttpFailure failure_ = HttpFailure::kNone;
  std::unique_ptr<TlsContext> tls_;
  std::map<std::string, std::unique_ptr<Connection>> kept_;  // by origin
};

// Takes the bytes of a text/event-stream and gives its events' data. Pieces may be cut anywhere.
class SseParser {
 public:
  explicit SseParser(std::function<void(std::string_view data)> on_event) : on_event_(std::move(on_event)) {}
  // An error: an event that is longer than any server sends.
  Status add(std::string_view piece);

 private:
  Status add_line(std::string_view line);

  static constexpr size_t kMaxEventBytes = 16 << 20;
  std::function<void(std::string_view data)> on_event_;
  std::string line_;
  std::string data_;
  bool has_data_ = false;
  bool was_carriage_return_ = false;
};

}  // namespace quire

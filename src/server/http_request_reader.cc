#include "server/http_request_reader.h"

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>

#include "base/check.h"
#include "server/http_text.h"

namespace quire {

namespace beast = boost::beast;
namespace http = boost::beast::http;

namespace {

// A chunk's size line and the trailer are not part of the body; nobody needs more of them than this.
constexpr size_t kMaxChunkLineBytes = 4096;
// "0\r\n\r\n": as long as a chunked body is not over, so much of it is to come. The library asserts that it is not
// given less of its end for a second time.
constexpr size_t kMinEndOfChunksBytes = 5;

std::string_view view(beast::string_view text) {
  return {text.data(), text.size()};
}

constexpr size_t kVersionBytes = 8;  // "HTTP/1.1"

bool is_http_version(std::string_view text) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return text.size() == kVersionBytes && text.starts_with("HTTP/") && is_digit(text[5]) && text[6] == '.' &&
         is_digit(text[7]);
}

// Behind which the library would wait for the rest of a request that is whole already.
bool has_line_feed_alone(std::string_view request_line) {
  const size_t end = request_line.find('\n');
  return end != std::string_view::npos && (end == 0 || request_line[end - 1] != '\r');
}

struct PathAndQuery {
  std::string path;
  std::string query;
};

// "/a%20b?q", "http://host/a", "*".
std::optional<PathAndQuery> split_target(std::string_view target) {
  if (target == "*") return PathAndQuery{"*", ""};
  if (!target.starts_with('/')) {
    const size_t scheme = target.find("://");
    if (scheme == std::string_view::npos) return std::nullopt;
    const size_t slash = target.find('/', scheme + 3);
    target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
  }
  target = target.substr(0, target.find('#'));
  const size_t question = target.find('?');
  auto path = percent_decode(target.substr(0, question));
  if (!path.has_value()) return std::nullopt;
  return PathAndQuery{*std::move(path),
                      question == std::string_view::npos ? std::string() : std::string(target.substr(question + 1))};
}

}  // namespace

class HttpRequestReader::Parser : public http::basic_parser<true> {
 public:
  explicit Parser(const HttpLimits& limits) : limits_(limits) {
    header_limit(static_cast<uint32_t>(limits.max_head_bytes));
    body_limit(boost::none);  // ours is known only after the head
  }

  size_t feed(std::string_view bytes) {
    size_t num_taken = 0;
    // Empty lines before a request are tolerated, as the standard asks.
    while (state_ == State::kHead && !got_some() && num_taken < bytes.size() &&
           (bytes[num_taken] == '\r' || bytes[num_taken] == '\n')) {
      ++num_taken;
      if (++num_empty_bytes_ > limits_.max_head_bytes) {
        fail(431, "more than " + std::to_string(limits_.max_head_bytes) + " bytes of empty lines come before a request");
        return num_taken;
      }
    }
    while (state_ == State::kHead || state_ == State::kBody) {
      if (num_taken == bytes.size()) break;
      if (state_ == State::kBody && chunked() && bytes.size() - num_taken < kMinEndOfChunksBytes) break;
      const bool is_head = state_ == State::kHead;
      beast::error_code error;
      const std::string_view fed = bytes.substr(num_taken);
      if (is_head && num_head_bytes_ == 0 && has_line_feed_alone(fed)) {
        fail(400, "the request line ends with a line feed alone: lines of HTTP end with CR LF");
        break;
      }
      const size_t taken = put({fed.data(), fed.size()}, error);
      num_taken += taken;
      if (is_head) num_head_bytes_ += taken;
      if (error && error != http::error::need_more) {
        fail_for(error, fed);
        break;
      }
      const size_t num_left = bytes.size() - num_taken;
      if (is_head && num_head_bytes_ + (is_header_done() ? 0 : num_left) > limits_.max_head_bytes) {
        fail(431, head_limit_message());
        break;
      }
      if (is_head && is_header_done()) {
        if (state_ == State::kFailed || !finish_head()) break;
        state_ = is_done() ? State::kDone : State::kDecide;
      } else if (is_done()) {
        state_ = State::kDone;
      }
      if (error == http::error::need_more) {
        if (!is_head && num_left > kMaxChunkLineBytes) fail(400, "a chunk's size line or the trailer is too long");
        break;
      }
    }
    return num_taken;
  }

  void begin_body(size_t max_bytes, std::function<bool(size_t)> charge) {
    CHECK(state_ == State::kDecide);
    max_body_bytes_ = max_bytes;
    charge_ = std::move(charge);
    state_ = State::kBody;
    if (content_length().has_value() && *content_length() > max_bytes) fail(413, body_limit_message());
  }

  void fail(int status, std::string message) {
    if (state_ == State::kFailed) return;
    state_ = State::kFailed;
    error_status_ = status;
    error_message_ = std::move(message);
  }

  State state_ = State::kHead;
  int error_status_ = 0;
  std::string error_message_;
  HttpRequest request_;
  bool expects_continue_ = false;
  bool has_unknown_expectation_ = false;
  bool is_http11_ = true;

 private:
  // Our own reasons to stop; the library's error is only the way to make it stop.
  void stop(int status, std::string message, beast::error_code& error) {
    fail(status, std::move(message));
    error = http::error::bad_value;
  }

  // `fed` is what the library was given when it found the error.
  void fail_for(const beast::error_code& error, std::string_view fed) {
    if (error == http::error::header_limit) return fail(431, head_limit_message());
    if (error == http::error::bad_version) return fail_for_version(fed);
    fail(400, "this is not HTTP/1.1: " + error.message());
  }

  // The library calls all that may be wrong behind the target of a request line a bad version.
  void fail_for_version(std::string_view request_line) {
    const size_t version_begin = request_line.find(' ', request_line.find(' ') + 1) + 1;
    const std::string_view version = request_line.substr(version_begin, kVersionBytes);
    if (!is_http_version(version)) return fail(400, "this is not HTTP/1.1: the request line ends without a version");
    if (version != "HTTP/1.0" && version != "HTTP/1.1") {
      return fail(505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
    }
    fail(400, "this is not HTTP/1.1: something stands behind the version in the request line");
  }

  std::string head_limit_message() const {
    return "the request line and headers are longer than " + std::to_string(limits_.max_head_bytes) + " bytes";
  }
  std::string body_limit_message() const {
    return "the body is longer than " + std::to_string(max_body_bytes_) + " bytes";
  }

  bool finish_head() {
    if (is_http11_ && num_hosts_ != 1) {
      fail(400, num_hosts_ == 0 ? "the Host header is missing" : "there is more than one Host header");
    }
    return state_ != State::kFailed;
  }

  void append_body(beast::string_view bytes, beast::error_code& error) {
    if (request_.body.size() + bytes.size() > max_body_bytes_) return stop(413, body_limit_message(), error);
    if (!charge_(bytes.size())) {
      return stop(503, "the server holds as many request bodies as it may: try again", error);
    }
    request_.body.append(bytes.data(), bytes.size());
  }

  void on_request_impl(http::verb, beast::string_view method, beast::string_view target, int version,
                       beast::error_code& error) override {
    is_http11_ = version >= 11;
    request_.method = view(method);
    auto split = split_target(view(target));
    if (!split.has_value()) return stop(400, "the request's target is not a path", error);
    request_.path = std::move(split->path);
    request_.query = std::move(split->query);
  }

  void on_field_impl(http::field name, beast::string_view name_text, beast::string_view value,
                     beast::error_code& error) override {
    if (state_ != State::kHead) return;  // of the trailer
    if (request_.headers.size() >= limits_.max_head_fields) {
      return stop(431, "there are more than " + std::to_string(limits_.max_head_fields) + " headers", error);
    }
    request_.headers.emplace_back(view(name_text), view(value));
    if (name == http::field::host) ++num_hosts_;
    if (name == http::field::transfer_encoding && !equals_ignoring_case(view(value), "chunked")) {
      return stop(501, "the only transfer coding that is understood is chunked", error);
    }
    if (name == http::field::expect) {
      (equals_ignoring_case(view(value), "100-continue") ? expects_continue_ : has_unknown_expectation_) = true;
    }
  }

  size_t on_body_impl(beast::string_view body, beast::error_code& error) override {
    append_body(body, error);
    return body.size();
  }
  size_t on_chunk_body_impl(uint64_t, beast::string_view body, beast::error_code& error) override {
    append_body(body, error);
    return body.size();
  }
  void on_chunk_header_impl(uint64_t size, beast::string_view, beast::error_code& error) override {
    if (size > max_body_bytes_ - std::min(max_body_bytes_, request_.body.size())) {
      stop(413, body_limit_message(), error);
    }
  }
  void on_response_impl(int, beast::string_view, int, beast::error_code&) override {}
  void on_header_impl(beast::error_code&) override {}
  void on_body_init_impl(const boost::optional<uint64_t>&, beast::error_code&) override {}
  void on_finish_impl(beast::error_code&) override {}

  const HttpLimits& limits_;
  size_t num_empty_bytes_ = 0;  // before the request line
  size_t num_head_bytes_ = 0;
  int num_hosts_ = 0;
  size_t max_body_bytes_ = 0;
  std::function<bool(size_t)> charge_;
};

HttpRequestReader::HttpRequestReader(const HttpLimits& limits) : parser_(std::make_unique<Parser>(limits)) {}
HttpRequestReader::~HttpRequestReader() = default;

size_t HttpRequestReader::feed(std::string_view bytes) {
  return parser_->feed(bytes);
}

void HttpRequestReader::begin_body(size_t max_bytes, std::function<bool(size_t)> charge) {
  parser_->begin_body(max_bytes, std::move(charge));
}

HttpRequestReader::State HttpRequestReader::state() const {
  return parser_->state_;
}
int HttpRequestReader::error_status() const {
  return parser_->error_status_;
}
const std::string& HttpRequestReader::error_message() const {
  return parser_->error_message_;
}
HttpRequest& HttpRequestReader::request() {
  return parser_->request_;
}
bool HttpRequestReader::is_keep_alive() const {
  return parser_->keep_alive();
}
bool HttpRequestReader::is_http11() const {
  return parser_->is_http11_;
}
bool HttpRequestReader::expects_continue() const {
  return parser_->expects_continue_;
}
bool HttpRequestReader::has_unknown_expectation() const {
  return parser_->has_unknown_expectation_;
}
std::optional<uint64_t> HttpRequestReader::content_length() const {
  const auto length = parser_->content_length();
  return length.has_value() ? std::optional<uint64_t>(*length) : std::nullopt;
}
bool HttpRequestReader::has_started() const {
  return parser_->got_some();
}

}  // namespace quire

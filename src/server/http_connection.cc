#include "server/http_connection.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <exception>
#include <random>

#include "base/check.h"
#include "server/api_error.h"
#include "server/http_exchange_state.h"
#include "server/http_text.h"

namespace quire {

namespace {

constexpr size_t kFirstBufferBytes = 2048;  // what an idle connection holds
constexpr size_t kLargestBufferBytes = 64 << 10;
// Of a request that is refused: read and dropped, so that the connection can go on. A larger body ends it.
constexpr size_t kMaxDiscardedBodyBytes = 64 << 10;
constexpr size_t kMaxRequestIdBytes = 128;

uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

bool is_sane_request_id(std::string_view id) {
  if (id.empty() || id.size() > kMaxRequestIdBytes) return false;
  return std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("-_.:/+=@,").find(c) != std::string_view::npos;
  });
}

// A header that could end its line early would let a value write headers of its own.
void append_header(std::string& head, std::string_view name, std::string_view value) {
  if (name.find_first_of("\r\n:") != std::string_view::npos) return;
  if (value.find_first_of(std::string_view("\r\n\0", 3)) != std::string_view::npos) return;
  head += name;
  head += ": ";
  head += value;
  head += "\r\n";
}

// Compressed, say. There may be several such headers, with several codings each.
bool has_coded_body(const HttpRequest& request) {
  for (const auto& [name, value] : request.headers) {
    if (!equals_ignoring_case(name, "content-encoding")) continue;
    for (std::string_view rest = value; !rest.empty();) {
      const size_t comma = std::min(rest.find(','), rest.size());
      const std::string_view coding = trim_spaces(rest.substr(0, comma));
      if (!coding.empty() && !equals_ignoring_case(coding, "identity")) return true;
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
  }
  return false;
}

// How an answer is told in the log.
const char* reason_of_status(int status) {
  if (status < 400) return "ok";
  if (status >= 500) return "failed";
  return status == 400 ? "bad_request" : "refused";
}

}  // namespace

HttpConnectionContext::HttpConnectionContext(const HttpLimits& the_limits, HttpFrontDoor& door)
    : limits(the_limits),
      front_door(door),
      id_seed((uint64_t{std::random_device{}()} << 32) ^ std::random_device{}()) {}

HttpConnection::HttpConnection(std::shared_ptr<HttpConnectionContext> context, std::shared_ptr<HttpTransport> transport)
    : context_(std::move(context)), transport_(std::move(transport)) {}

HttpConnection::~HttpConnection() {
  if (reader_ != nullptr) {
    context_->num_buffered_body_bytes.fetch_sub(static_cast<int64_t>(reader_->request().body.size()),
                                                std::memory_order_relaxed);
  }
}

void HttpConnection::start() {
  if (phase_ == Phase::kClosed) return;
  buffer_.resize(kFirstBufferBytes);
  next_request();
}

// ---- Reading -------------------------------------------------------------------------------------------------------

void HttpConnection::next_request() {
  phase_ = Phase::kReading;
  reader_ = std::make_unique<HttpRequestReader>(context_->limits);
  reader_->request().peer = transport_->peer();
  request_began_ = transport_->now();
  outcome_ = HttpOutcome{};
  if (begin_ == end_ && buffer_.size() > kFirstBufferBytes && !is_reading_) {
    buffer_ = std::vector<char>(kFirstBufferBytes);
    begin_ = end_ = 0;
  }
  process();
}

void HttpConnection::read_more() {
  if (is_reading_ || has_peer_ended_ || phase_ == Phase::kClosed) return;
  if (begin_ > 0) {
    std::copy(buffer_.begin() + static_cast<ptrdiff_t>(begin_), buffer_.begin() + static_cast<ptrdiff_t>(end_),
              buffer_.begin());
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ == buffer_.size()) {
    const size_t max_bytes = std::max(kLargestBufferBytes, context_->limits.max_head_bytes + 1);
    if (buffer_.size() >= max_bytes) return;  // full: goes on when some is consumed
    buffer_.resize(std::min(buffer_.size() * 4, max_bytes));
  }
  size_t room = buffer_.size() - end_;
  if (phase_ == Phase::kAnswering) {
    const size_t max_bytes = context_->limits.max_pipelined_bytes;
    if (end_ >= max_bytes) return;
    room = std::min(room, max_bytes - end_);
  }
  is_reading_ = true;
  transport_->read_some(
      std::span(buffer_.data() + end_, room),
      [self = shared_from_this()](TransportStatus status, size_t num_bytes) { self->on_read(status, num_bytes); });
}

void HttpConnection::on_read(TransportStatus status, size_t num_bytes) {
  is_reading_ = false;
  if (phase_ == Phase::kClosed) return;
  end_ += num_bytes;
  if (status == TransportStatus::kFailed) return abandon("client_closed");
  if (status == TransportStatus::kEnd) has_peer_ended_ = true;
  if (phase_ == Phase::kAnswering) {
    if (has_peer_ended_) {
      // Whether it still reads cannot be known before there is something to write, and work for nobody is dear: the
      // client counts as gone, as with other servers. What is answered at once still reaches it if it has not.
      own_ = shared_from_this();
      if (exchange_ != nullptr) exchange_->client_left(false);
      return;
    }
    return read_more();
  }
  process();
}

void HttpConnection::process() {
  using State = HttpRequestReader::State;
  while (phase_ == Phase::kReading) {
    const bool was_started = reader_->has_started();
    begin_ += reader_->feed({buffer_.data() + begin_, end_ - begin_});
    if (!was_started && reader_->has_started() && !is_first_request_) request_began_ = transport_->now();
    switch (reader_->state()) {
      case State::kHead:
      case State::kBody:
        if (has_peer_ended_ && reader_->has_started()) return abandon("client_closed");
        if ((has_peer_ended_ || context_->is_stopping.load()) && !reader_->has_started()) return close_after_answer();
        set_read_deadline();
        return read_more();
      case State::kDecide:
        on_head();
        break;
      case State::kDone:
        dispatch();
        break;
      case State::kFailed:
        refuse_unreadable();
        break;
    }
  }
  read_more();  // while the answer is made: to notice that the client goes
}

void HttpConnection::set_read_deadline() {
  const HttpLimits& limits = context_->limits;
  if (reader_->state() == HttpRequestReader::State::kBody) {
    const int64_t grace_s =
        static_cast<int64_t>(reader_->request().body.size()) / std::max<int64_t>(1, limits.min_body_bytes_per_second);
    read_deadline_ = body_began_ + limits.body_timeout + std::chrono::seconds(grace_s);
  } else if (is_first_request_ || reader_->has_started() || begin_ != end_) {
    read_deadline_ = request_began_ + limits.head_timeout;
  } else {
    read_deadline_ = request_began_ + limits.idle_timeout;
  }
  update_alarm();
}

// ---- Requests ------------------------------------------------------------------------------------------------------

std::string HttpConnection::make_request_id(std::string_view from_client) {
  if (is_sane_request_id(from_client)) return std::string(from_client);
  const uint64_t number = context_->next_request_number.fetch_add(1, std::memory_order_relaxed);
  char text[40];
  std::snprintf(text, sizeof(text), "req-%016llx%08x",
                static_cast<unsigned long long>(mix(context_->id_seed + number * 0x9e3779b97f4a7c15u)),
                static_cast<unsigned>(number));
  return text;
}

// The head of a request that has a body.
void HttpConnection::on_head() {
  const HttpRequest& request = reader_->request();
  request_id_ = make_request_id(request.header("x-request-id"));
  answer_began_ = transport_->now();
  if (reader_->has_unknown_expectation()) {
    return refuse(http_error_response(417, "the only expectation that is understood is 100-continue"), false);
  }
  admission_ = context_->front_door.admit(request, request_id_);
  if (!admission_.refusal.has_value() && has_coded_body(request)) {
    admission_.refusal =
        http_error_response(415,
                            "bodies are taken as they are: send this one without the Content-Encoding '" +
                                valid_utf8(request.header("content-encoding")) + "'",
                            "unsupported_content_encoding");
    admission_.refusal->headers.emplace_back("Accept-Encoding", "identity");
  }
  if (admission_.refusal.has_value()) {
    const std::optional<uint64_t> length = reader_->content_length();
    const bool is_small = length.has_value() && *length <= kMaxDiscardedBodyBytes && !reader_->expects_continue();
    if (!is_small) return refuse(*std::move(admission_.refusal), false);
    // The small body is read and dropped: see dispatch.
  }
  const size_t max_bytes = admission_.max_body_bytes > 0 ? admission_.max_body_bytes : context_->limits.max_body_bytes;
  HttpConnectionContext& context = *context_;
  reader_->begin_body(
      admission_.refusal.has_value() ? kMaxDiscardedBodyBytes : max_bytes, [&context](size_t num_bytes) {
        const int64_t amount = static_cast<int64_t>(num_bytes);
        const int64_t before = context.num_buffered_body_bytes.fetch_add(amount, std::memory_order_relaxed);
        if (before + amount <= context.limits.max_buffered_body_bytes) return true;
        context.num_buffered_body_bytes.fetch_sub(amount, std::memory_order_relaxed);
        return false;
      });
  body_began_ = transport_->now();
  if (reader_->state() == HttpRequestReader::State::kBody && reader_->expects_continue() && reader_->is_http11() &&
      begin_ == end_) {
    write("HTTP/1.1 100 Continue\r\n\r\n");
  }
}

// The request is whole.
void HttpConnection::dispatch() {
  if (request_id_.empty()) {  // it has no body, so nobody has looked at its head yet
    const HttpRequest& request = reader_->request();
    request_id_ = make_request_id(request.header("x-request-id"));
    answer_began_ = transport_->now();
    admission_ = context_->front_door.admit(request, request_id_);
  }
  if (admission_.refusal.has_value()) {
    // A browser's question about what it may ask is answered here too.
    return refuse(*std::move(admission_.refusal), reader_->is_keep_alive());
  }
  phase_ = Phase::kAnswering;
  read_deadline_ = TimePoint::max();
  keeps_alive_ = reader_->is_keep_alive();
  is_http11_ = reader_->is_http11();
  HttpRequest request = std::move(reader_->request());
  reader_.reset();
  request.path_argument = admission_.path_argument;
  is_head_request_ = request.method == "HEAD";
  outcome_.num_body_bytes_in = static_cast<int64_t>(request.body.size());
  exchange_ = std::make_shared<HttpExchangeState>(shared_from_this(), context_, std::move(request), request_id_,
                                                  admission_.key_id);
  if (has_peer_ended_) exchange_->client_left(false);
  const std::shared_ptr<HttpExchange> handle = make_exchange_handle(exchange_);
  try {
    admission_.handler(handle);
  } catch (const std::exception& error) {
    // A library threw (no memory, say). The handle is let go of below, which answers 500.
    AnswerFacts facts;
    facts.error = error.what();
    handle->set_facts(std::move(facts));
  }
}

// An answer of our own to a request that no handler sees.
void HttpConnection::refuse(HttpResponse response, bool keeps_alive, const char* reason) {
  phase_ = Phase::kAnswering;
  read_deadline_ = TimePoint::max();
  if (request_id_.empty()) request_id_ = make_request_id({});
  keeps_alive_ = keeps_alive;
  outcome_.num_body_bytes_in = static_cast<int64_t>(reader_->request().body.size());
  context_->num_buffered_body_bytes.fetch_sub(outcome_.num_body_bytes_in, std::memory_order_relaxed);
  refused_request_ = std::move(reader_->request());
  refused_request_.body.clear();
  is_head_request_ = refused_request_.method == "HEAD";
  is_http11_ = reader_->state() == HttpRequestReader::State::kFailed || reader_->is_http11();
  reader_.reset();
  outcome_.status = response.status;
  outcome_.reason = reason != nullptr ? reason : reason_of_status(response.status);
  std::string bytes = make_head(response, false);
  if (!is_head_request_) bytes += response.body;
  has_all_output_ = true;
  write(std::move(bytes));
}

void HttpConnection::refuse_unreadable() {
  const int status = reader_->error_status();
  answer_began_ = transport_->now();
  refuse(http_error_response(status, reader_->error_message()), false);
}

// ---- Answers -------------------------------------------------------------------------------------------------------

std::string HttpConnection::make_head(const HttpResponse& response, bool is_stream) {
  if (context_->is_stopping.load() || (has_peer_ended_ && begin_ == end_)) keeps_alive_ = false;
  is_chunked_ = is_stream && is_http11_;
  if (is_stream && !is_chunked_) keeps_alive_ = false;  // only the end of the connection can end it
  std::string head = "HTTP/1.1 " + std::to_string(response.status) + ' ' + http_reason(response.status) + "\r\n";
  append_header(head, "Date", http_date(static_cast<int64_t>(std::time(nullptr))));
  append_header(head, "X-Request-Id", request_id_);
  if (is_stream) {
    append_header(head, "Content-Type", "text/event-stream; charset=utf-8");
    append_header(head, "Cache-Control", "no-cache");
    append_header(head, "X-Accel-Buffering", "no");  // proxies shall not hold events back
    if (is_chunked_) append_header(head, "Transfer-Encoding", "chunked");
  } else if (response.status != 204) {
    if (!response.content_type.empty()) append_header(head, "Content-Type", response.content_type);
    append_header(head, "Content-Length", std::to_string(response.body.size()));
  }
  for (const auto& [name, value] : response.headers) append_header(head, name, value);
  for (const auto& [name, value] : admission_.headers) append_header(head, name, value);
  if (!keeps_alive_) {
    append_header(head, "Connection", "close");
  } else if (!is_http11_) {
    append_header(head, "Connection", "keep-alive");
  }
  return head + "\r\n";
}

void HttpConnection::pump() {
  if (phase_ != Phase::kAnswering || exchange_ == nullptr) return;
  if (exchange_->is_over_limit()) return abandon("slow_reader");
  if (is_writing_) return;  // goes on when that has been written
  take_output();
}

void HttpConnection::take_output() {
  HttpOutput output = exchange_->take_output();
  if (outcome_.first_byte_seconds < 0 && (output.response.has_value() || !output.events.empty())) {
    outcome_.first_byte_seconds = std::chrono::duration<double>(transport_->now() - answer_began_).count();
  }
  if (output.response.has_value()) {
    outcome_.status = output.response->status;
    outcome_.reason = reason_of_status(outcome_.status);
    write(make_head(*output.response, false));
    if (!is_head_request_ && output.response->status != 204 && !output.response->body.empty()) {
      write(std::move(output.response->body));
    }
  }
  if (output.begins_stream) {
    outcome_.is_stream = true;
    outcome_.status = 200;
    write(make_head({}, true));
  }
  if (!output.events.empty()) {
    num_event_bytes_in_flight_ = output.events.size();
    if (is_chunked_) {
      char size[24];
      std::snprintf(size, sizeof(size), "%zx\r\n", output.events.size());
      output.events.insert(0, size);
      output.events += "\r\n";
    }
    write(std::move(output.events));
  }
  if (!output.is_end) return;
  if (output.is_given_up) outcome_.reason = "client_closed";
  if (outcome_.status == 0) return abandon("client_closed");  // nothing was said
  if (outcome_.is_stream && is_chunked_) write("0\r\n\r\n");
  has_all_output_ = true;
}

void HttpConnection::write(std::string bytes) {
  outcome_.num_bytes_out += static_cast<int64_t>(bytes.size());
  // Small pieces go out together: a packet less.
  const bool is_last_in_flight = has_write_begun_ && to_write_.size() == 1;
  if (!to_write_.empty() && !is_last_in_flight && to_write_.back().size() + bytes.size() <= kLargestBufferBytes) {
    to_write_.back() += bytes;
  } else {
    to_write_.push_back(std::move(bytes));
  }
  if (!is_writing_) {
    // Whatever else this task has to say may join.
    is_writing_ = true;
    transport_->post([self = shared_from_this()] { self->write_next(); });
  }
}

void HttpConnection::write_next() {
  if (phase_ == Phase::kClosed) return;
  has_write_begun_ = true;
  const std::string& first = to_write_.front();
  write_deadline_ = transport_->now() + context_->limits.write_timeout;
  update_alarm();
  transport_->write_some(
      std::span(first.data() + num_written_of_first_, first.size() - num_written_of_first_),
      [self = shared_from_this()](TransportStatus status, size_t num_bytes) { self->on_written(status, num_bytes); });
}

void HttpConnection::on_written(TransportStatus status, size_t num_bytes) {
  if (phase_ == Phase::kClosed) return;
  if (status != TransportStatus::kOk) return abandon("client_closed");
  num_written_of_first_ += num_bytes;
  if (num_written_of_first_ == to_write_.front().size()) {
    to_write_.pop_front();
    num_written_of_first_ = 0;
  }
  if (!to_write_.empty()) return write_next();
  is_writing_ = false;
  has_write_begun_ = false;
  write_deadline_ = TimePoint::max();
  if (phase_ != Phase::kAnswering) return;  // 100 Continue
  if (exchange_ != nullptr && num_event_bytes_in_flight_ > 0) {
    exchange_->on_sent(num_event_bytes_in_flight_);
    num_event_bytes_in_flight_ = 0;
  }
  if (has_all_output_) return finish_answer();
  if (exchange_ != nullptr) pump();
}

void HttpConnection::finish_answer() {
  release(outcome_.reason);
  if (!keeps_alive_) return close_after_answer();
  next_request();
}

void HttpConnection::close_after_answer() {
  phase_ = Phase::kClosed;
  transport_->finish(context_->limits.linger_timeout);
}

// Forgets the request that was answered or given up, and has it logged.
void HttpConnection::release(const char* reason) {
  own_.reset();  // whoever calls holds the connection
  outcome_.reason = reason;
  outcome_.seconds = std::chrono::duration<double>(transport_->now() - answer_began_).count();
  const std::shared_ptr<HttpExchangeState> exchange = std::move(exchange_);
  exchange_ = nullptr;
  if (exchange != nullptr) {
    exchange->client_left(true);
    context_->front_door.on_finished(exchange->request, request_id_, exchange->key_id, outcome_, exchange->facts());
  } else {
    context_->front_door.on_finished(refused_request_, request_id_, admission_.key_id, outcome_, {});
  }
  refused_request_ = HttpRequest{};
  request_id_.clear();
  admission_ = Admission{};
  has_all_output_ = false;
  num_event_bytes_in_flight_ = 0;
  is_first_request_ = false;
}

void HttpConnection::abandon(const char* reason) {
  if (phase_ == Phase::kClosed) return;
  const bool is_answering = phase_ == Phase::kAnswering;
  phase_ = Phase::kClosed;
  if (is_answering) release(reason);
  transport_->close();  // to_write_ stays: another thread may be writing from it at this moment
}

void HttpConnection::begin_stop() {
  if (reader_ == nullptr && phase_ == Phase::kReading) return abandon("server_stopped");  // still shaking hands
  if (phase_ != Phase::kReading || reader_->has_started() || begin_ != end_) return;
  close_after_answer();
}

// ---- Time ----------------------------------------------------------------------------------------------------------

// Deadlines move with every read and write; the alarm is only set anew when one has come closer.
void HttpConnection::update_alarm() {
  const TimePoint next = std::min(read_deadline_, write_deadline_);
  if (next >= alarm_ || phase_ == Phase::kClosed) return;
  alarm_ = next;
  transport_->wait_until(next, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->on_alarm();
  });
}

void HttpConnection::on_alarm() {
  alarm_ = TimePoint::max();
  if (phase_ == Phase::kClosed) return;
  const TimePoint now = transport_->now();
  if (now >= write_deadline_) return abandon("write_timeout");
  if (phase_ == Phase::kReading && now >= read_deadline_) {
    if (!reader_->has_started()) return close_after_answer();  // between requests, or nothing ever came
    answer_began_ = now;
    return refuse(http_error_response(408, "the request did not come in time"), false, "read_timeout");
  }
  update_alarm();
}

}  // namespace quire

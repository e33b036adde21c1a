#include "app/bench_serve_request.h"

#include <boost/json.hpp>

namespace quire::app {

namespace json = boost::json;

namespace {

constexpr size_t kMaxErrorBytes = 300;

std::string request_body(const BenchTarget& target, const BenchPrompt& prompt) {
  std::string body = "{\"model\":" + json::serialize(json::value(target.model));
  body += target.api == BenchApi::kChat ? ",\"messages\":" : ",\"prompt\":";
  body += prompt.json;
  body += ",\"max_tokens\":" + std::to_string(prompt.output_len);
  body += ",\"temperature\":" + json::serialize(json::value(target.temperature));
  body += ",\"stream\":true,\"stream_options\":{\"include_usage\":true}";
  if (target.has_ignore_eos) body += ",\"ignore_eos\":true";
  return body + target.extra_fields + "}";
}

const json::value* member(const json::value* value, const char* key) {
  const json::object* object = value != nullptr ? value->if_object() : nullptr;
  return object != nullptr ? object->if_contains(key) : nullptr;
}

int64_t integer(const json::value* value) {
  if (value == nullptr) return 0;
  if (value->is_int64()) return value->get_int64();
  return value->is_uint64() ? static_cast<int64_t>(value->get_uint64()) : 0;
}

bool has_text(const json::value* value) {
  return value != nullptr && value->is_string() && !value->get_string().empty();
}

std::string error_text(const json::value& error) {
  const json::value* message = member(&error, "message");
  const std::string text = has_text(message) ? std::string(message->get_string()) : json::serialize(error);
  return text.substr(0, kMaxErrorBytes);
}

// What a body of an error says, in whatever form.
std::string body_text(const std::string& body) {
  boost::system::error_code wrong;
  const json::value value = json::parse(body, wrong);
  if (!wrong) {
    if (const json::value* error = member(&value, "error")) return error_text(*error);
  }
  return body.substr(0, kMaxErrorBytes);
}

class Stream {
 public:
  Stream(BenchRecord* record, BenchClock::time_point run_start) : record_(record), run_start_(run_start) {}

  double now() const { return std::chrono::duration<double>(BenchClock::now() - run_start_).count(); }
  bool has_ended() const { return has_ended_ || !record_->finish_reason.empty(); }

  void on_event(std::string_view data) {
    if (data == "[DONE]") {
      has_ended_ = true;
      return;
    }
    boost::system::error_code wrong;
    const json::value event = json::parse(json::string_view(data.data(), data.size()), wrong);
    if (wrong) {
      fail("bad_event", "an event of the stream is not JSON: " + std::string(data.substr(0, kMaxErrorBytes)));
      return;
    }
    if (const json::value* error = member(&event, "error"); error != nullptr && !error->is_null()) {
      fail("stream_error", error_text(*error));
      return;
    }
    if (const json::value* usage = member(&event, "usage"); usage != nullptr && usage->is_object()) {
      record_->num_prompt_tokens = integer(member(usage, "prompt_tokens"));
      record_->num_output_tokens = integer(member(usage, "completion_tokens"));
      record_->num_cached_tokens = integer(member(member(usage, "prompt_tokens_details"), "cached_tokens"));
      record_->is_counted_by_server = true;
    }
    const json::value* choices = member(&event, "choices");
    if (choices == nullptr || !choices->is_array() || choices->get_array().empty()) return;
    const json::value* choice = &choices->get_array()[0];
    const json::value* delta = member(choice, "delta");
    const json::value* tool_calls = member(delta, "tool_calls");
    if (has_text(member(choice, "text")) || has_text(member(delta, "content")) ||
        has_text(member(delta, "reasoning_content")) || has_text(member(delta, "reasoning")) ||
        (tool_calls != nullptr && tool_calls->is_array() && !tool_calls->get_array().empty())) {
      on_piece();
    }
    if (const json::value* reason = member(choice, "finish_reason"); has_text(reason))
      record_->finish_reason = std::string(reason->get_string());
  }

  void fail(std::string kind, std::string message) {
    if (!record_->error_kind.empty()) return;
    record_->error_kind = std::move(kind);
    record_->error_message = std::move(message);
  }

 private:
  void on_piece() {
    const double time = now();
    if (record_->num_pieces == 0) {
      record_->first_token_s = time;
    } else {
      record_->gaps_s.push_back(static_cast<float>(time - record_->last_token_s));
    }
    record_->last_token_s = time;
    ++record_->num_pieces;
  }

  BenchRecord* record_;
  BenchClock::time_point run_start_;
  bool has_ended_ = false;
};

}  // namespace

BenchRecord run_bench_request(HttpClient& client, const BenchTarget& target, const BenchPrompt& prompt,
                              BenchClock::time_point run_start) {
  BenchRecord record;
  record.gaps_s.reserve(static_cast<size_t>(prompt.output_len));
  Stream stream(&record, run_start);
  SseParser parser([&](std::string_view data) { stream.on_event(data); });
  HttpCall call{.method = "POST",
                .url = target.url(),
                .headers = target.headers,
                .credentials = target.credentials,
                .body = request_body(target, prompt)};
  call.headers.emplace_back("Content-Type", "application/json");
  call.headers.emplace_back("Accept", "text/event-stream");

  bool is_stream = false;
  record.start_s = stream.now();
  const Result<HttpReply> reply = client.send(
      call, {.on_head =
                 [&](const HttpReply& head) {
                   is_stream = head.header("Content-Type").find("text/event-stream") != std::string_view::npos;
                   return ok_status();
                 },
             .on_body = [&](std::string_view piece) { return is_stream ? parser.add(piece) : ok_status(); }});
  record.end_s = stream.now();
  if (!reply.is_ok()) {
    stream.fail(http_failure_name(client.failure()), reply.status().message());
  } else if (reply.value().status != 200) {
    stream.fail("http_" + std::to_string(reply.value().status), body_text(reply.value().body));
  } else if (!is_stream) {
    stream.fail("no_stream", "the answer is not a stream of events");
  } else if (!stream.has_ended()) {
    stream.fail("truncated", "the stream ended before the answer did");
  } else if (record.num_pieces == 0) {
    stream.fail("empty", "the answer has no text");
  }
  if (!record.is_counted_by_server) record.num_output_tokens = record.num_pieces;
  return record;
}

}  // namespace quire::app

#include "server/front_door.h"

#include <algorithm>

#include "server/api_error.h"
#include "server/http_text.h"

namespace quire {

namespace {

constexpr double kSeconds[] = {0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0};

// What probes ask for every few seconds is not worth a line.
bool is_probe(std::string_view path) {
  return path == "/health" || path == "/ready" || path == "/metrics" || path == "/ping";
}

bool is_lower_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// "Bearer KEY"; anthropic's and azure's habits are not ours.
std::string_view bearer_of(std::string_view authorization) {
  const size_t space = authorization.find(' ');
  if (space == std::string_view::npos || !equals_ignoring_case(authorization.substr(0, space), "bearer")) return {};
  return trim_spaces(authorization.substr(space));
}

}  // namespace

std::string_view trace_id_of(std::string_view traceparent) {
  if (traceparent.size() < 55 || traceparent[2] != '-' || traceparent[35] != '-' || traceparent[52] != '-') return {};
  const std::string_view version = traceparent.substr(0, 2);
  const std::string_view trace_id = traceparent.substr(3, 32);
  const std::string_view parent_id = traceparent.substr(36, 16);
  const bool is_valid = is_lower_hex(version) && is_lower_hex(trace_id) && is_lower_hex(parent_id) &&
                        is_lower_hex(traceparent.substr(53, 2)) && version != "ff" &&
                        trace_id.find_first_not_of('0') != std::string_view::npos &&
                        parent_id.find_first_not_of('0') != std::string_view::npos &&
                        (traceparent.size() == 55 || (version != "00" && traceparent[55] == '-'));
  return is_valid ? trace_id : std::string_view();
}

FrontDoor::FrontDoor(Options options) : options_(std::move(options)) {
  set_routes(std::make_shared<RouteTable>());
}

FrontDoor::RouteMetrics FrontDoor::make_route_metrics(const std::string& method, const std::string& path) {
  RouteMetrics made;
  if (options_.metrics == nullptr) return made;
  constexpr const char* kClasses[] = {"closed", "1xx", "2xx", "3xx", "4xx", "5xx"};
  for (size_t i = 0; i < std::size(kClasses); ++i) {
    made.by_status_class[i] =
        &options_.metrics->counter("http_requests_total", "HTTP requests that ended, by route and status.",
                                   {{"handler", path}, {"method", method}, {"status", kClasses[i]}});
  }
  made.seconds = &options_.metrics->histogram("http_request_duration_seconds",
                                              "From the head of an HTTP request to the end of its answer.", kSeconds,
                                              {{"handler", path}, {"method", method}});
  return made;
}

void FrontDoor::set_routes(std::shared_ptr<const RouteTable> routes, std::optional<Status> absent) {
  auto table = std::make_shared<Table>();
  for (const Route& route : routes->routes()) {
    table->metrics.emplace(route.method + ' ' + route.path, make_route_metrics(route.method, route.path));
  }
  table->metrics.emplace("", make_route_metrics("other", "none"));
  table->routes = std::move(routes);
  table->absent = std::move(absent);
  const std::lock_guard lock(mutex_);
  table_ = std::move(table);
}

std::shared_ptr<const FrontDoor::Table> FrontDoor::table() const {
  const std::lock_guard lock(mutex_);
  return table_;
}

Admission FrontDoor::admit(const HttpRequest& head, const std::string&) {
  const std::shared_ptr<const Table> now = table();
  Admission admission;
  const std::string_view traceparent = head.header("traceparent");
  if (!trace_id_of(traceparent).empty()) admission.headers.emplace_back("traceparent", traceparent);

  const std::string_view origin = head.header("origin");
  if (!options_.cors.allows(origin, head.header("host"))) {
    admission.refusal = http_error_response(
        403, "pages of this origin may not call the server: start it with --allowed-origins", "origin_not_allowed");
    return admission;
  }
  for (auto& header : options_.cors.headers(origin)) admission.headers.push_back(std::move(header));

  RouteTable::Match match = now->routes->find(head.method, head.path);
  if (match.allowed_methods.empty()) {
    admission.refusal = now->absent.has_value()
                            ? error_response(*now->absent)
                            : http_error_response(404, "there is no " + head.path + " here", "not_found");
    return admission;
  }
  if (match.route == nullptr && head.method == "OPTIONS") {
    admission.refusal = options_.cors.preflight(head, match.allowed_methods);
    admission.refusal->headers.emplace_back("Allow", match.allowed_methods);
    return admission;
  }
  if (match.route == nullptr) {
    admission.refusal = http_error_response(
        405, head.path + " does not take " + head.method + "; it takes " + match.allowed_methods, "method_not_allowed");
    admission.refusal->headers.emplace_back("Allow", match.allowed_methods);
    return admission;
  }
  if (options_.keys != nullptr && match.route->needs_key) {
    admission.key_id = options_.keys->find(bearer_of(head.header("authorization")));
    if (admission.key_id == 0) {
      admission.refusal = http_error_response(
          401, "the API key is missing or unknown: send the header 'Authorization: Bearer KEY'", "invalid_api_key");
      admission.refusal->headers.emplace_back("WWW-Authenticate", "Bearer");
      return admission;
    }
  }
  admission.handler = match.route->handler;
  admission.max_body_bytes = match.route->max_body_bytes;
  admission.path_argument = std::move(match.path_argument);
  return admission;
}

void FrontDoor::on_finished(const HttpRequest& head, const std::string& request_id, int64_t key_id,
                            const HttpOutcome& outcome, const AnswerFacts& facts) {
  count(head, outcome);
  if (options_.log != nullptr) log(head, request_id, key_id, outcome, facts);
}

void FrontDoor::count(const HttpRequest& head, const HttpOutcome& outcome) {
  const std::shared_ptr<const Table> now = table();
  const RouteTable::Match match = now->routes->find(head.method, head.path);
  const auto found = now->metrics.find(match.route == nullptr ? "" : match.route->method + ' ' + match.route->path);
  const RouteMetrics& metrics = found->second;
  if (metrics.seconds == nullptr) return;
  const size_t status_class = static_cast<size_t>(std::clamp(outcome.status / 100, 0, 5));
  metrics.by_status_class[status_class]->add();
  metrics.seconds->observe(outcome.seconds);
}

void FrontDoor::log(const HttpRequest& head, const std::string& request_id, int64_t key_id, const HttpOutcome& outcome,
                    const AnswerFacts& facts) {
  // Messages about a client's mistakes quote what it sent, which is nobody's business here.
  const bool is_our_failure = outcome.status >= 500 || (outcome.status == 200 && !facts.error.empty());
  const LogSeverity severity = is_probe(head.path) ? LogSeverity::kDebug
                               : is_our_failure    ? LogSeverity::kWarning
                                                   : LogSeverity::kInfo;
  if (!options_.log->writes(severity)) return;
  using Field = AccessLog::Field;
  std::vector<Field> fields;
  fields.push_back(Field::of("id", request_id));
  fields.push_back(Field::of("peer", head.peer));
  if (options_.keys != nullptr && key_id > 0) fields.push_back(Field::of("key", options_.keys->name(key_id)));
  fields.push_back(Field::of("method", head.method));
  fields.push_back(Field::of("path", head.path));
  fields.push_back(Field::of("status", outcome.status));
  fields.push_back(Field::of("reason", outcome.reason));
  fields.push_back(Field::milliseconds("ms", outcome.seconds));
  if (outcome.first_byte_seconds >= 0) {
    fields.push_back(Field::milliseconds("first_byte_ms", outcome.first_byte_seconds));
  }
  fields.push_back(Field::of("bytes_in", outcome.num_body_bytes_in));
  fields.push_back(Field::of("bytes_out", outcome.num_bytes_out));
  if (outcome.is_stream) fields.push_back(Field::boolean("stream", true));
  if (!facts.model.empty()) fields.push_back(Field::of("model", facts.model));
  if (facts.num_prompt_tokens >= 0) fields.push_back(Field::of("prompt_tokens", facts.num_prompt_tokens));
  if (facts.num_cached_tokens >= 0) fields.push_back(Field::of("cached_tokens", facts.num_cached_tokens));
  if (facts.num_generated_tokens >= 0) fields.push_back(Field::of("tokens", facts.num_generated_tokens));
  if (facts.queue_seconds >= 0) fields.push_back(Field::milliseconds("queue_ms", facts.queue_seconds));
  if (facts.first_token_seconds >= 0) fields.push_back(Field::milliseconds("ttft_ms", facts.first_token_seconds));
  if (!facts.finish_reason.empty()) fields.push_back(Field::of("finish", facts.finish_reason));
  const std::string_view trace_id = trace_id_of(head.header("traceparent"));
  if (!trace_id.empty()) fields.push_back(Field::of("trace", trace_id));
  if (is_our_failure && !facts.error.empty()) fields.push_back(Field::of("error", facts.error));
  const std::string message = head.method + ' ' + head.path + ' ' + std::to_string(outcome.status);
  options_.log->write(severity, "request", message, fields);
}

}  // namespace quire

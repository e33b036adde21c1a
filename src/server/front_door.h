// What stands between HTTP and the handlers: finds the route, asks for the key, keeps to CORS, answers preflights;
// after the answer it writes the log and counts. One for a server, on its threads.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "server/access_log.h"
#include "server/api_keys.h"
#include "server/cors_policy.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "server/routes.h"

namespace quire {

class FrontDoor : public HttpFrontDoor {
 public:
  struct Options {
    const ApiKeys* keys = nullptr;  // null: none are asked for
    CorsPolicy cors;
    AccessLog* log = nullptr;
    MetricRegistry* metrics = nullptr;
  };
  explicit FrontDoor(Options options);

  // Routes may be set again: while a model is loaded, few are there. What none of them has is answered with `absent`
  // where it is given (503: not yet), else with 404.
  void set_routes(std::shared_ptr<const RouteTable> routes, std::optional<Status> absent = std::nullopt);

  Admission admit(const HttpRequest& head, const std::string& request_id) override;
  void on_finished(const HttpRequest& head, const std::string& request_id, int64_t key_id, const HttpOutcome& outcome,
                   const AnswerFacts& facts) override;

 private:
  struct RouteMetrics {
    Counter* by_status_class[6] = {};  // 1xx to 5xx; 0: left before there was one
    Histogram* seconds = nullptr;
  };
  struct Table {
    std::shared_ptr<const RouteTable> routes;
    std::optional<Status> absent;
    std::unordered_map<std::string, RouteMetrics> metrics;  // by "METHOD path"; "" for what has no route
  };

  std::shared_ptr<const Table> table() const;
  RouteMetrics make_route_metrics(const std::string& method, const std::string& path);
  void count(const HttpRequest& head, const HttpOutcome& outcome);
  void log(const HttpRequest& head, const std::string& request_id, int64_t key_id, const HttpOutcome& outcome,
           const AnswerFacts& facts);

  const Options options_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Table> table_;
};

// W3C trace context: the trace id of a traceparent header (32 hex digits); empty: it is not one.
std::string_view trace_id_of(std::string_view traceparent);

}  // namespace quire

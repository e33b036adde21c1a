#include "server/service_routes.h"

#include <boost/json.hpp>
#include <cmath>

#include "server/api_error.h"
#include "server/openapi.h"

namespace quire {

namespace json = boost::json;

void ServiceState::set_loading(const std::string& progress) {
  const std::lock_guard lock(mutex_);
  loading_ = progress;
}

void ServiceState::set_ready() {
  const std::lock_guard lock(mutex_);
  is_loading_ = false;
}

void ServiceState::set_draining() {
  const std::lock_guard lock(mutex_);
  is_draining_ = true;
}

Status ServiceState::readiness() const {
  const std::lock_guard lock(mutex_);
  if (is_draining_) return unavailable("the server is shutting down: it finishes what runs and takes nothing new");
  if (is_loading_) return unavailable("the model is being loaded (" + loading_ + "): try again in a while");
  return ok_status();
}

namespace {

HttpResponse json_response(const json::value& value) {
  return {.body = json::serialize(value)};
}

json::object describe(const std::string& name, const ServedModel& model) {
  return {{"id", name},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "quire"},
          {"root", model.names.front()},
          {"parent", nullptr},
          {"max_model_len", model.max_model_len}};
}

// A handler that has its answer at once.
RouteHandler answer(std::function<HttpResponse(const HttpRequest&)> make) {
  return [make = std::move(make)](std::shared_ptr<HttpExchange> exchange) {
    exchange->respond(make(exchange->request()));
  };
}

}  // namespace

Status check_progress(const EngineLoop& loop, double timeout_s) {
  RETURN_IF_ERROR(loop.failure());
  const double seconds = loop.seconds_since_progress();
  if (seconds <= timeout_s) return ok_status();
  return unavailable("the engine has work and has ended no step for " + std::to_string(std::llround(seconds)) + " s");
}

void register_service_routes(RouteTable& routes, const ServiceRoutesContext& context) {
  const auto state = context.state;
  const auto health = answer([context](const HttpRequest&) {
    const Status status = context.check_health ? context.check_health() : context.state->readiness();
    return status.is_ok() ? json_response(json::object{{"status", "ok"}}) : error_response(status);
  });
  routes.add({.method = "GET", .path = "/health", .handler = health, .needs_key = false});
  routes.add({.method = "GET", .path = "/ping", .handler = health, .needs_key = false});
  routes.add({.method = "GET",
              .path = "/ready",
              .handler = answer([context](const HttpRequest&) {
                Status status = context.state->readiness();
                if (status.is_ok() && context.check_health) status = context.check_health();
                return status.is_ok() ? json_response(json::object{{"status", "ready"}}) : error_response(status);
              }),
              .needs_key = false});
  routes.add({.method = "GET",
              .path = "/metrics",
              .handler = answer([text = context.metrics_text](const HttpRequest&) {
                return HttpResponse{.body = text(), .content_type = "text/plain; version=0.0.4; charset=utf-8"};
              }),
              .needs_key = false});
  routes.add({.method = "GET",
              .path = "/version",
              .handler = answer([version = state->version](const HttpRequest&) {
                return json_response(json::object{{"version", version}});
              }),
              .needs_key = false});
  routes.add({.method = "GET",
              .path = "/openapi.json",
              .handler = answer([document = openapi_document(state->version, context.model.num_token_ids)](
                                    const HttpRequest&) { return HttpResponse{.body = document}; }),
              .needs_key = false});
  if (context.model.names.empty()) return;

  routes.add({.method = "GET",
              .path = "/v1/models",
              .handler = answer([model = context.model](const HttpRequest&) {
                json::array data;
                for (const std::string& name : model.names) data.push_back(describe(name, model));
                return json_response(json::object{{"object", "list"}, {"data", std::move(data)}});
              })});
  routes.add({.method = "GET",
              .path = "/v1/models/{model}",
              .handler = answer([model = context.model](const HttpRequest& request) {
                for (const std::string& name : model.names) {
                  if (name == request.path_argument) return json_response(describe(name, model));
                }
                return error_response(not_found("the model '" + request.path_argument +
                                                "' is not served here; GET /v1/models lists those that are"),
                                      "model", "model_not_found");
              })});
}

}  // namespace quire

// The small routes: whether the server lives and is ready, its metrics, version and models, and the description of all
// routes. Handlers answer at once, on the server's threads.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine_loop.h"
#include "server/routes.h"

namespace quire {

// What these routes tell; filled in as the server comes up and goes down. Any thread.
class ServiceState {
 public:
  explicit ServiceState(std::string the_version) : version(std::move(the_version)) {}

  // While the model is loaded: "loading weights: 45 %".
  void set_loading(const std::string& progress);
  void set_ready();
  void set_draining();

  // Not ok: what keeps the server from answering requests.
  Status readiness() const;

  const std::string version;

 private:
  mutable std::mutex mutex_;
  std::string loading_ = "starting";
  bool is_loading_ = true;
  bool is_draining_ = false;
};

struct ServedModel {
  std::vector<std::string> names;
  int64_t created = 0;  // seconds since 1970
  int64_t max_model_len = 0;
  int64_t num_token_ids = 0;
};

struct ServiceRoutesContext {
  std::shared_ptr<const ServiceState> state;
  // Whether the engine makes progress; not ok: what is wrong. Null while there is none.
  std::function<Status()> check_health;
  std::function<std::string()> metrics_text;
  ServedModel model;  // no names while it is loaded
};

// For check_health: not ok once the loop has failed, or has work and has ended no step for `timeout_s`.
Status check_progress(const EngineLoop& loop, double timeout_s);

void register_service_routes(RouteTable& routes, const ServiceRoutesContext& context);

}  // namespace quire

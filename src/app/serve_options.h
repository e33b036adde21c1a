// The options of `quire serve` besides those of the engine.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "app/options.h"
#include "base/status.h"
#include "server/access_log.h"
#include "server/cors_policy.h"
#include "server/http_server.h"

namespace quire::app {

struct ServeFlags {
  EngineFlags engine;
  HttpServerOptions http;  // host, port, TLS files, limits, threads
  std::string api_key_file;
  std::vector<std::string> model_names;
  std::vector<std::string> allowed_origins;  // none: by default_origins
  std::string tool_call_parser = "auto";
  std::string reasoning_parser = "auto";
  std::string prefix_cache_file;
  int64_t max_prefix_cache_file_bytes = int64_t{8} << 30;
  std::string generation_config = "auto";
  int max_queued_requests = 1024;
  int num_text_threads = 3;
  double drain_timeout_s = 30.0;
  double health_timeout_s = 60.0;
  std::string log_format = "text";
  bool has_no_access_log = false;
};

void add_serve_flags(CLI::App& parser, ServeFlags& flags);

// What --allowed-origins says. Without it: every page where keys are asked for, as it must know one; else only pages of
// this machine, so that no web page uses an open server behind its owner's back.
Result<CorsPolicy> make_cors_policy(const ServeFlags& flags);

// The names under which the model is served: --served-model-name, or the name of its file or folder and what was typed.
std::vector<std::string> make_model_names(const ServeFlags& flags);

LineFormat line_format(const ServeFlags& flags);
AccessLog::Options make_log_options(const ServeFlags& flags);

// Whether only programs of this machine can reach the address.
bool is_loopback(const std::string& host);

}  // namespace quire::app

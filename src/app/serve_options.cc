#include "app/serve_options.h"

#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "server/http_text.h"
#include "text/utf8.h"

namespace quire::app {

namespace {

// "a, b" or vLLM's '["a", "b"]'.
std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> parts;
  boost::system::error_code error;
  if (text.starts_with('[')) {
    const boost::json::value value = boost::json::parse(text, error);
    if (!error && value.is_array()) {
      for (const boost::json::value& one : value.get_array()) {
        if (one.is_string()) parts.emplace_back(one.get_string());
      }
      return parts;
    }
  }
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = trim_spaces(std::string_view(text).substr(begin, end - begin));
    if (!part.empty()) parts.emplace_back(part);
    begin = end + 1;
  }
  return parts;
}

}  // namespace

void add_serve_flags(CLI::App& parser, ServeFlags& flags) {
  add_engine_flags(parser, flags.engine);
  const std::string group = "Server";
  const auto option = [&](const char* name, auto& value, const char* meaning) {
    return parser.add_option(name, value, meaning)->group(group)->capture_default_str();
  };
  const auto seconds = [&](const char* name, std::chrono::milliseconds& value, const std::string& meaning) {
    parser
        .add_option_function<double>(
            name, [&value](double given) { value = std::chrono::milliseconds(std::llround(given * 1e3)); }, meaning)
        ->group(group)
        ->default_str(std::to_string(value.count() / 1000))
        ->check(number_in(0.1, 86400.0));
  };
  option("--host", flags.http.host,
         "Address to listen on: 127.0.0.1 (this machine alone), 0.0.0.0 (everybody), ::1, ::, a name, or unix:PATH")
      ->check([](const std::string& text) {
        return std::string(text.empty() ? "it is empty: 0.0.0.0 is everybody, 127.0.0.1 this machine" : "");
      });
  option("--port", flags.http.port, "Port to listen on; 0: any free one")->check(CLI::Range(0, 65535));
  option("--api-key-file", flags.api_key_file,
         "File of API keys, a line NAME KEY each; read again on SIGHUP. Without it no key is asked for")
      ->check(CLI::ExistingFile);
  add_model_names_flag(parser, flags.model_names, "Name of the model in the API; may be given again")->group(group);
  parser
      .add_option_function<std::vector<std::string>>(
          "--allowed-origins",
          [&flags](const std::vector<std::string>& texts) {
            for (const std::string& text : texts) {
              for (std::string& origin : split_list(text)) flags.allowed_origins.push_back(std::move(origin));
            }
          },
          "Web pages that may call the server, such as https://example.org, or *; default: * with API keys, else pages "
          "of this machine")
      ->check([](const std::string& text) { return complaint(CorsPolicy::create(split_list(text)).status()); })
      ->group(group);
  CLI::Option* certificate =
      option("--tls-cert", flags.http.tls_certificate_file, "PEM file of the certificate and its chain: serves HTTPS");
  CLI::Option* key = option("--tls-key", flags.http.tls_key_file, "PEM file of the certificate's private key");
  certificate->check(CLI::ExistingFile)->needs(key);
  key->check(CLI::ExistingFile)->needs(certificate);
  option("--max-queued-requests", flags.max_queued_requests, "Requests that may wait; one more is answered with 429")
      ->check(CLI::Range(0, 1 << 24));
  option("--prefix-cache-file", flags.prefix_cache_file,
         "File that keeps the prefix cache from one run to the next: read at start, written at the end");
  parser
      .add_option_function<std::string>(
          "--prefix-cache-file-limit",
          [&flags](const std::string& text) { flags.max_prefix_cache_file_bytes = parse_memory_size(text); },
          "How large that file may be, such as 20GiB: the newest prefixes are written, and a larger file is not read")
      ->group(group)
      ->default_str("8GiB");
  add_generation_config_flag(parser, flags.generation_config);
  option("--tool-call-parser", flags.tool_call_parser,
         "How the model writes tool calls, by vLLM's names; auto: by its chat template; none");
  option("--reasoning-parser", flags.reasoning_parser,
         "How the model marks its thinking, by vLLM's names; auto: by its chat template; none");
  option("--drain-timeout", flags.drain_timeout_s,
         "Seconds that requests get to end after SIGTERM or SIGINT; a second signal ends sooner")
      ->check(number_in(0.0, 86400.0));
  option("--health-timeout", flags.health_timeout_s,
         "Seconds without a step, while there is work, after which /health reports failure")
      ->check(number_in(1.0, 86400.0));
  option("--max-connections", flags.http.limits.max_connections, "Connections at once; further ones get 503")
      ->check(CLI::Range(1, 1 << 20));
  HttpLimits& limits = flags.http.limits;
  seconds("--header-timeout", limits.head_timeout, "Seconds in which a request's headers must come, else 408");
  seconds("--body-timeout", limits.body_timeout,
          "Seconds in which a request's body must come, and one more for each 16 KiB of it, else 408");
  seconds("--keep-alive-timeout", limits.idle_timeout, "Seconds that a connection may be open between two requests");
  seconds("--write-timeout", limits.write_timeout,
          "Seconds that a client may take nothing of its answer, before it is dropped");
  parser
      .add_option_function<std::string>(
          "--max-body-size",
          [&flags](const std::string& text) {
            flags.http.limits.max_body_bytes = static_cast<size_t>(parse_memory_size(text));
          },
          "Largest body of a request, such as 32MiB, which is the default; larger ones get 413")
      ->group(group);
  option("--http-threads", flags.http.num_threads, "Threads that carry connections")->check(CLI::Range(1, 64));
  option("--text-threads", flags.num_text_threads,
         "Threads for tokenizing and detokenizing; from 3 on long prompts do not hold up short ones")
      ->check(CLI::Range(2, 64));
  option("--log-format", flags.log_format,
         "Of stderr: text, with logfmt for the line a request, or json, an object a line")
      ->check(CLI::IsMember({"text", "json"}));
  parser.add_flag("--no-access-log", flags.has_no_access_log, "No line a request; failures are still told")
      ->group(group);
}

Result<CorsPolicy> make_cors_policy(const ServeFlags& flags) {
  if (!flags.allowed_origins.empty()) return CorsPolicy::create(flags.allowed_origins);
  return CorsPolicy::create({flags.api_key_file.empty() ? "local" : "*"});
}

std::vector<std::string> make_model_names(const ServeFlags& flags) {
  if (!flags.model_names.empty()) return flags.model_names;
  const std::string typed = replace_invalid_utf8(flags.engine.model);  // a path may hold any bytes
  std::filesystem::path path(typed);
  if (!path.has_filename()) path = path.parent_path();  // "folder/"
  std::string name = path.filename().string();
  if (name.ends_with(".gguf")) name.resize(name.size() - 5);
  std::error_code error;
  if (name.empty() || !std::filesystem::exists(flags.engine.model, error)) return {typed};
  if (name == typed) return {name};
  return {name, typed};
}

LineFormat line_format(const ServeFlags& flags) {
  return flags.log_format == "json" ? LineFormat::kJson : LineFormat::kText;
}

AccessLog::Options make_log_options(const ServeFlags& flags) {
  AccessLog::Options options;
  options.format = line_format(flags);
  options.least = flags.engine.log_level == "error"     ? LogSeverity::kError
                  : flags.engine.log_level == "warning" ? LogSeverity::kWarning
                  : flags.engine.log_level == "debug"   ? LogSeverity::kDebug
                                                        : LogSeverity::kInfo;
  if (flags.has_no_access_log) options.least = std::max(options.least, LogSeverity::kWarning);
  return options;
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host == "[::1]" || host.starts_with("127.") ||
         host.starts_with("unix:");
}

}  // namespace quire::app

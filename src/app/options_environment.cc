// The only place that reads the environment: read_environment of app/options.
#include <cstdlib>
#include <initializer_list>

#include "app/options.h"

namespace quire::app {

namespace fs = std::filesystem;

namespace {

// The first of the variables that is set and not empty.
std::string variable(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* value = std::getenv(name);
    if (value != nullptr && value[0] != '\0') return value;
  }
  return {};
}

bool is_true(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text == "1" || text == "on" || text == "yes" || text == "true";
}

// "~/x", as people write it in settings that no shell expands.
fs::path expand(const std::string& text, const std::string& home) {
  if (text == "~" || text.rfind("~/", 0) == 0) return fs::path(home + text.substr(1));
  return text;
}

}  // namespace

Environment read_environment() {
  Environment result;
  std::string home = variable({"HOME"});
  if (home.empty()) home = ".";
  const std::string cache = variable({"XDG_CACHE_HOME"});
  const fs::path user_cache = cache.empty() ? fs::path(home) / ".cache" : expand(cache, home);

  const std::string quire_cache = variable({"QUIRE_CACHE"});
  result.cache_folder = quire_cache.empty() ? user_cache / "quire" / "models" : fs::path(quire_cache);
  result.tuning_folder = user_cache / "quire" / "tuning";

  const std::string hub_home_text = variable({"HF_HOME"});
  const fs::path hub_home = hub_home_text.empty() ? user_cache / "huggingface" : expand(hub_home_text, home);
  const std::string hub_cache = variable({"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"});
  result.hub_cache_folder = hub_cache.empty() ? hub_home / "hub" : expand(hub_cache, home);
  result.hub_endpoint = variable({"HF_ENDPOINT"});
  if (result.hub_endpoint.empty()) result.hub_endpoint = "https://huggingface.co";
  while (!result.hub_endpoint.empty() && result.hub_endpoint.back() == '/') result.hub_endpoint.pop_back();
  result.hub_token = variable({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"});
  const std::string token_file = variable({"HF_TOKEN_PATH"});
  result.hub_token_file = token_file.empty() ? hub_home / "token" : expand(token_file, home);
  result.is_hub_offline = is_true(variable({"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}));

  result.http_proxy = variable({"http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"});
  result.https_proxy = variable({"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"});
  result.no_proxy = variable({"no_proxy", "NO_PROXY"});
  result.ca_file = variable({"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"});
  result.api_key = variable({"OPENAI_API_KEY"});
  return result;
}

HttpClientOptions client_options(const Environment& environment) {
  HttpClientOptions options;
  options.http_proxy = environment.http_proxy;
  options.https_proxy = environment.https_proxy;
  options.no_proxy = environment.no_proxy;
  options.ca_file = environment.ca_file;
  return options;
}

}  // namespace quire::app

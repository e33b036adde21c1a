#include "server/cors_policy.h"

#include <algorithm>

#include "server/http_text.h"

namespace quire {

namespace {

constexpr size_t kMaxAskedHeadersBytes = 1024;

// "https://example.org:8443" → "example.org:8443"; empty: it is no origin.
std::string_view host_of(std::string_view origin) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (origin.starts_with(scheme)) return origin.substr(scheme.size());
  }
  return {};
}

std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) return host.substr(0, host.find(']') + 1);
  return host.substr(0, host.find(':'));
}

bool is_list_of_names(std::string_view text) {
  return text.size() <= kMaxAskedHeadersBytes && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
                  c == ',' || c == ' ';
         });
}

}  // namespace

Result<CorsPolicy> CorsPolicy::create(const std::vector<std::string>& origins) {
  CorsPolicy policy;
  for (const std::string& origin : origins) {
    const std::string_view host = host_of(origin);
    if (origin == "*") {
      policy.allows_all_ = true;
    } else if (origin == "local") {
      policy.allows_local_ = true;
    } else if (!host.empty() && host.find_first_of("/ ?#\r\n") == std::string_view::npos) {
      policy.origins_.push_back(origin);
    } else {
      return invalid_argument("'" + origin +
                              "' is not an origin: write a scheme and a host, such as https://example.org or "
                              "http://localhost:3000, or * for all, or local");
    }
  }
  return policy;
}

bool CorsPolicy::allows(std::string_view origin, std::string_view host) const {
  if (origin.empty() || allows_all_) return true;
  const std::string_view origin_host = host_of(origin);
  if (origin_host.empty()) return false;
  if (!host.empty() && equals_ignoring_case(origin_host, host)) return true;  // a page of the server itself
  if (allows_local_) {
    const std::string_view name = without_port(origin_host);
    if (equals_ignoring_case(name, "localhost") || name == "127.0.0.1" || name == "[::1]") return true;
  }
  return std::any_of(origins_.begin(), origins_.end(),
                     [&](const std::string& one) { return equals_ignoring_case(one, origin); });
}

std::vector<std::pair<std::string, std::string>> CorsPolicy::headers(std::string_view origin) const {
  if (origin.empty()) return {};
  std::vector<std::pair<std::string, std::string>> headers;
  headers.emplace_back("Access-Control-Allow-Origin", allows_all_ ? "*" : std::string(origin));
  if (!allows_all_) headers.emplace_back("Vary", "Origin");
  headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
  return headers;
}

HttpResponse CorsPolicy::preflight(const HttpRequest& request, const std::string& allowed_methods) const {
  // Client libraries send headers of their own; none of them can do harm here.
  std::string allowed_headers(request.header("access-control-request-headers"));
  if (allowed_headers.empty() || !is_list_of_names(allowed_headers)) {
    allowed_headers = "authorization, content-type, x-request-id, traceparent, tracestate";
  }
  return {.status = 204,
          .headers = {{"Access-Control-Allow-Methods", allowed_methods},
                      {"Access-Control-Allow-Headers", allowed_headers},
                      {"Access-Control-Max-Age", "600"}},
          .body = {},
          .content_type = {}};
}

}  // namespace quire

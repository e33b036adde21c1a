// Which web pages may call the server (cross-origin resource sharing), and the headers that tell browsers so. A page
// that may not is refused before any work is done, also where its browser would only have kept the answer from it.
// Requests without an Origin header, such as those of programs, are not concerned. Never allows cookies. Immutable.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "server/http_exchange.h"

namespace quire {

class CorsPolicy {
 public:
  // Origins such as "https://example.org", or "*" for all; "local" for pages of this machine (localhost, 127.0.0.1,
  // [::1], any port). None: no page but the server's own.
  static Result<CorsPolicy> create(const std::vector<std::string>& origins);

  // Whether a request with this Origin header to a server called `host` may go on.
  bool allows(std::string_view origin, std::string_view host) const;
  // For answers to an allowed origin.
  std::vector<std::pair<std::string, std::string>> headers(std::string_view origin) const;
  // The answer to a preflight from an allowed origin.
  HttpResponse preflight(const HttpRequest& request, const std::string& allowed_methods) const;

 private:
  bool allows_all_ = false;
  bool allows_local_ = false;
  std::vector<std::string> origins_;
};

}  // namespace quire

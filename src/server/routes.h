// The table of URLs: which handler answers which method and path, who may call it, how large a body may be. Built once
// at start, then read by the server's threads. A row needs an API key unless it says otherwise.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/http_exchange.h"

namespace quire {

struct Route {
  std::string method;  // "GET" answers HEAD as well
  // "/v1/models", or with a last part in braces, "/v1/models/{model}", that takes what is left, slashes too.
  std::string path;
  RouteHandler handler;
  bool needs_key = true;      // where the server has keys at all
  size_t max_body_bytes = 0;  // 0: the server's limit
};

class RouteTable {
 public:
  // A second row of the same method and path is our own mistake: CHECK.
  void add(Route route);

  struct Match {
    const Route* route = nullptr;      // none: see allowed_methods
    std::string path_argument;         // what {…} matched
    std::string allowed_methods = {};  // of the rows that have the path, "GET, HEAD, OPTIONS"; empty: no row has it
  };
  Match find(std::string_view method, std::string_view path) const;

  const std::vector<Route>& routes() const { return routes_; }

 private:
  std::vector<Route> routes_;
};

}  // namespace quire

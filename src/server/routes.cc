#include "server/routes.h"

#include <algorithm>

#include "base/check.h"

namespace quire {

namespace {

// The path without its {…}, and whether it has one.
std::pair<std::string_view, bool> split_pattern(std::string_view path) {
  const size_t brace = path.find('{');
  if (brace == std::string_view::npos) return {path, false};
  return {path.substr(0, brace), true};
}

// The more a pattern spells out, the earlier it is tried: "/v1/models" before "/v1/{rest}".
bool matches(std::string_view pattern, std::string_view path, std::string& argument) {
  const auto [prefix, has_argument] = split_pattern(pattern);
  if (!has_argument) return prefix == path;
  if (path.size() <= prefix.size() || path.substr(0, prefix.size()) != prefix) return false;
  argument = path.substr(prefix.size());
  return true;
}

}  // namespace

void RouteTable::add(Route route) {
  CHECK(!route.path.empty() && route.path[0] == '/');
  CHECK(route.handler != nullptr);
  for (const Route& other : routes_) CHECK(!(other.path == route.path && other.method == route.method));
  routes_.push_back(std::move(route));
  std::stable_sort(routes_.begin(), routes_.end(), [](const Route& left, const Route& right) {
    const auto [left_prefix, left_open] = split_pattern(left.path);
    const auto [right_prefix, right_open] = split_pattern(right.path);
    if (left_open != right_open) return right_open;
    return left_prefix.size() > right_prefix.size();
  });
}

RouteTable::Match RouteTable::find(std::string_view method, std::string_view path) const {
  Match match;
  // A slash at the end is a habit of some clients.
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  std::string_view matched_pattern;
  for (const Route& route : routes_) {
    std::string argument;
    if (!matches(route.path, path, argument)) continue;
    if (!matched_pattern.empty() && route.path != matched_pattern) break;  // a vaguer row does not add methods
    matched_pattern = route.path;
    match.allowed_methods += route.method + ", ";
    if (route.method == "GET") match.allowed_methods += "HEAD, ";
    if (route.method == method || (route.method == "GET" && method == "HEAD")) {
      match.route = &route;
      match.path_argument = std::move(argument);
    }
  }
  if (!matched_pattern.empty()) match.allowed_methods += "OPTIONS";
  return match;
}

}  // namespace quire

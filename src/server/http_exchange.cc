#include "server/http_exchange.h"

#include "server/http_text.h"

namespace quire {

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (equals_ignoring_case(key, name)) return value;
  }
  return {};
}

}  // namespace quire

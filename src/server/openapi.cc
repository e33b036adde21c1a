#include "server/openapi.h"

#include <string_view>

namespace quire {

namespace {

// openapi.json, put in at build time.
constexpr std::string_view kDocument =
#include "server/openapi_text.inc"
    ;

void replace_all(std::string& text, std::string_view mark, const std::string& by) {
  for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + by.size())) {
    text.replace(at, mark.size(), by);
  }
}

}  // namespace

std::string openapi_document(const std::string& version, int64_t num_token_ids) {
  std::string document(kDocument);
  replace_all(document, "@VERSION@", version);
  // The document's bound of token ids is that of any model.
  if (num_token_ids > 0) replace_all(document, "2147483647", std::to_string(num_token_ids - 1));
  return document;
}

}  // namespace quire

#include "server/openapi.h"

#include <string_view>

namespace quire {

namespace {

// openapi.json, put in at build time.
constexpr std::string_view kDocument =
#include "openapi_text.inc"
    ;
constexpr std::string_view kVersionMark = "@VERSION@";

}  // namespace

std::string openapi_document(const std::string& version) {
  std::string document(kDocument);
  const size_t mark = document.find(kVersionMark);
  if (mark != std::string::npos) document.replace(mark, kVersionMark.size(), version);
  return document;
}

}  // namespace quire

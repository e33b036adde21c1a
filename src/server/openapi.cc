#include "server/openapi.h"

namespace quire {

std::string openapi_document(const std::string& version) {
  return "{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"Quire\",\"version\":\"" + version + "\"},\"paths\":{}}";
}

}  // namespace quire

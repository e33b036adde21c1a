// The description of all routes as an OpenAPI 3.1 document. A test walks the route table, so that none is missing.
#pragma once

#include <string>

namespace quire {

std::string openapi_document(const std::string& version);

}  // namespace quire

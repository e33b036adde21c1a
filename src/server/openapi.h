// The description of all routes as an OpenAPI 3.1 document. A test walks the route table, so that none is missing.
#pragma once

#include <cstdint>
#include <string>

namespace quire {

// `num_token_ids` bounds the token ids that requests may have; 0: not known yet.
std::string openapi_document(const std::string& version, int64_t num_token_ids);

}  // namespace quire

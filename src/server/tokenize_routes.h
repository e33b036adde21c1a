// POST /tokenize and /detokenize: prompts and conversations to token ids and back, as the API's other routes would do
// it. The shapes are vLLM's. The work is done in the text pool.
#pragma once

#include <memory>

#include "server/api_context.h"
#include "server/routes.h"

namespace quire {

void register_tokenize_routes(RouteTable& routes, std::shared_ptr<const ApiContext> context);

}  // namespace quire

// The rows of the API's table that talk to the engine: completions, chat, embeddings.
#pragma once

#include <memory>

#include "server/api_context.h"
#include "server/routes.h"

namespace quire {

void register_openai_routes(RouteTable& routes, std::shared_ptr<const ApiContext> context);

}  // namespace quire

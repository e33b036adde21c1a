#include "server/api_routes.h"

#include "server/chat_completions.h"
#include "server/completions.h"
#include "server/embeddings.h"
#include "server/generation.h"

namespace quire {

void register_openai_routes(RouteTable& routes, std::shared_ptr<const ApiContext> context) {
  const auto generate = [context](GenerationReader read) {
    return [context, read](std::shared_ptr<HttpExchange> exchange) {
      Generation::start(context, std::move(exchange), read);
    };
  };
  routes.add({.method = "POST", .path = "/v1/completions", .handler = generate(read_completion)});
  routes.add({.method = "POST", .path = "/v1/chat/completions", .handler = generate(read_chat)});
  routes.add({.method = "POST", .path = "/v1/embeddings", .handler = [context](std::shared_ptr<HttpExchange> exchange) {
                start_embeddings(context, std::move(exchange));
              }});
}

}  // namespace quire

// POST /v1/embeddings: texts or ids in, one vector each out. Tokenized in the text pool; the engine pools and,
// where the model asks for it, normalizes. A client that goes away ends the work.
#pragma once

#include <memory>

#include "server/api_context.h"
#include "server/http_exchange.h"

namespace quire {

void start_embeddings(std::shared_ptr<const ApiContext> context, std::shared_ptr<HttpExchange> exchange);

// The first `num_dimensions` numbers (0: all); of a normalized embedding divided by their length again.
std::vector<float> shorten_embedding(std::span<const float> embedding, int64_t num_dimensions, bool is_normalized);

// Little-endian floats.
std::string embedding_to_base64(std::span<const float> embedding);

}  // namespace quire

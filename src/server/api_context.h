// What all handlers of the API share, made once at start by the program: the engine, the model's text side, the pool,
// the model's names, limits. Outlives every request.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/request.h"
#include "models/pooling_config.h"
#include "server/engine_client.h"
#include "server/openai_types.h"
#include "server/server_metrics.h"
#include "server/text_frontend.h"
#include "server/text_pool.h"
#include "text/grammar_cache.h"
#include "text/grammar_vocabulary.h"

namespace quire {

struct ApiContext {
  EngineClient& engine;
  const TextFrontend& text;
  TextPool& pool;
  ServerMetrics* metrics = nullptr;  // null: nothing is counted

  std::vector<std::string> model_names;  // the first is told where a request names none
  ApiLimits limits = {};
  SamplingParams default_sampling = {};  // of fields that a request leaves out
  PoolingConfig pooling = {};            // of /v1/embeddings
  int64_t embedding_size = 0;            // the model's hidden size

  GrammarVocabulary::Ptr grammar_vocabulary = nullptr;  // null: answers of a certain form are refused
  GrammarCache* grammars = nullptr;
  std::vector<int32_t> end_token_ids = {};  // what may end an answer where its grammar may end
};

// Checks a request's "model": empty, or one of those served. The name to answer with.
ApiResult<std::string> served_model(const ApiContext& context, const std::string& asked);

// An error of the engine or the tokenizer, with the field that its message begins with.
ApiError to_api_error(const Status& status, std::string param = {});

// The same of a request that the engine refuses: the engine's "prompt" is `prompt_field` here ("messages", "input").
// is_too_long: its tokens are more than the context has.
ApiError refused_by_engine(const Status& status, std::string_view prompt_field, bool is_too_long);

}  // namespace quire

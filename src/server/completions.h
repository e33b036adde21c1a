// POST /v1/completions: prompts as text or ids, answers as text. What it shares with chat is in server/generation.
#pragma once

#include "server/generation.h"

namespace quire {

ApiResult<GenerationPlan> read_completion(const ApiContext& context, const HttpExchange& exchange);

}  // namespace quire

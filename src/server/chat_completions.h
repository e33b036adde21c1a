// POST /v1/chat/completions: conversations through the model's chat template, answers taken apart into content,
// thinking and tool calls. What it shares with completions is in server/generation.
#pragma once

#include "server/generation.h"

namespace quire {

ApiResult<GenerationPlan> read_chat(const ApiContext& context, const HttpExchange& exchange);

}  // namespace quire

// What AttentionBatch::host_is_prompt says of a sequence's queries, where attention takes prompts and drawn tokens apart.
#pragma once

#include <cstdint>

namespace quire {

constexpr uint8_t kDrawn = 0;   // one drawn token
constexpr uint8_t kPrompt = 1;  // tokens of the prompt
// A drawn token that is computed together with others of its sequence: it sees keys that the same step writes.
constexpr uint8_t kDrawnBesideOthers = 2;

}  // namespace quire

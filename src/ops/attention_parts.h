// What AttentionBatch::host_is_prompt says of a sequence's queries, where attention takes prompts and drawn tokens apart.
#pragma once

#include <cstdint>

namespace quire {

constexpr uint8_t kDrawn = 0;   // one drawn token
constexpr uint8_t kPrompt = 1;  // tokens of the prompt
// One of several drawn tokens of a sequence that are computed in the same step: it sees keys that others of them write.
constexpr uint8_t kDrawnBesideOthers = 2;

}  // namespace quire

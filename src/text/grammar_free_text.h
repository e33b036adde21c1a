// Text in which some strings do not occur: what a model writes before a tool call begins. Internal to the grammar
// files; pure.
#pragma once

#include <span>
#include <string>

#include "text/grammar_nodes.h"

namespace quire::grammar_internal {

// Any UTF-8 text in which none of the (non-empty) strings occurs; also no text.
NodeIndex text_without(NodePool& pool, std::span<const std::string> strings);

}  // namespace quire::grammar_internal

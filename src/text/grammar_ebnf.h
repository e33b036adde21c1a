// Grammars in EBNF as llama.cpp's GBNF writes it: rules "name ::= ...", literals, classes, groups, repetitions,
// comments. Line breaks are white space: a rule ends where the next begins. Internal to the grammar files; pure.
#pragma once

#include <string_view>

#include "base/status.h"
#include "text/grammar_nodes.h"

namespace quire::grammar_internal {

// The node of rule "root". The names are the text's own: two texts in one pool do not meet.
Result<NodeIndex> ebnf_to_node(NodePool& pool, std::string_view text);

}  // namespace quire::grammar_internal

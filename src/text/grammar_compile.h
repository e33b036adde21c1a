// From nodes to the automaton that matchers walk: lowering, left recursion, determinization, removal of what can never
// end, bytes into classes. Internal to the grammar files; pure.
#pragma once

#include "base/status.h"
#include "text/grammar_automaton.h"
#include "text/grammar_nodes.h"

namespace quire::grammar_internal {

Result<Automaton> compile_grammar(const NodePool& pool, NodeIndex root);

}  // namespace quire::grammar_internal

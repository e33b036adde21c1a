// Rewrites rules that begin with themselves (directly or through others) so that none does: the walk of an automaton
// predicts calls without reading, and must come to an end. Internal to the grammar files.
#pragma once

#include <cstddef>

#include "base/status.h"
#include "text/grammar_lowering.h"

namespace quire::grammar_internal {

// Also gives every rule a start without empty edges and without edges that lead back to it; it is not final, what may
// be empty is known from may_be_empty. Afterwards the empty text matches no rule. Fails above max_states.
Status remove_left_recursion(LoweredGrammar& grammar, size_t max_states, CompileWork& work);

}  // namespace quire::grammar_internal

// From nodes to state graphs, a graph for each rule. Decides which parts become rules of their own: what is used more
// than once, what repeats often, what refers to itself. Internal to the grammar files.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "text/grammar_nodes.h"
#include "text/grammar_state_graph.h"

namespace quire::grammar_internal {

struct LoweredRule {
  StateGraph graph;  // with empty edges; one final state, which is not the start
  int32_t final_state = 0;
  bool may_be_empty = false;
  int32_t only_without_special = -1;
};

struct LoweredGrammar {
  std::vector<LoweredRule> rules;  // calls of a rule that may be empty have an empty edge beside them
  int32_t root_rule = 0;
};

// All rules that the root needs.
Result<LoweredGrammar> lower_grammar(const NodePool& pool, NodeIndex root);

// One graph for a part without references to rules, special tokens and the like.
Result<StateGraph> lower_regular(const NodePool& pool, NodeIndex root);

}  // namespace quire::grammar_internal

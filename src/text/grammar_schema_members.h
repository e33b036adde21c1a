// The members of an object of which very many in a row may be left out, as rules instead of a list. Internal to the
// grammar files; used by the schema's objects.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "text/grammar_nodes.h"

namespace quire::grammar_internal {

struct ObjectMember {
  std::string key;  // with quotes and colon
  NodeIndex value = kNoNode;
  bool is_required = false;
};

// More members in a row that may be left out than this are written as rules: a list's automaton has an edge from each
// of them to each that may follow, and states to tell their keys apart, which is what is quickest to walk where there
// are few.
inline constexpr size_t kMaxListedRun = 48;

// The same language as NodePool::list of the members (at least one), with any number of `others` behind them where
// there are some, in space that does not grow with the square of their number.
NodeIndex long_members(NodePool& pool, const std::vector<ObjectMember>& members, NodeIndex others, NodeIndex space,
                       NodeIndex separator);

}  // namespace quire::grammar_internal

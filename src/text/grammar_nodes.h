// The parts that a GrammarBuilder puts together, before they are compiled: a pool of nodes that refer to each other by
// index. All sources (schema, regex, EBNF, the builder's callers) end up here; grammar_compile.h turns it into an
// automaton. Internal to the grammar files; one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar.h"
#include "text/grammar_state_graph.h"
#include "text/grammar_work.h"

namespace quire::grammar_internal {

using NodeIndex = int32_t;
inline constexpr NodeIndex kNoNode = -1;

struct CodePointRange {
  char32_t first = 0;
  char32_t last = 0;  // inclusive
  bool operator==(const CodePointRange&) const = default;
};

inline constexpr char32_t kMaxCodePoint = 0x10FFFF;

// Sorted, joined where they touch, without surrogates (UTF-8 cannot write them).
std::vector<CodePointRange> normalize_ranges(std::vector<CodePointRange> ranges);
std::vector<CodePointRange> complement_ranges(std::span<const CodePointRange> normalized);
std::vector<CodePointRange> intersect_ranges(std::span<const CodePointRange> a, std::span<const CodePointRange> b);

enum class NodeKind : uint8_t {
  kEmpty,
  kBytes,         // exactly `bytes`
  kCharacter,     // one code point of `ranges`, as UTF-8
  kSequence,      // `children`
  kAlternatives,  // `children`
  kRepeat,        // children[0], min to max times (max -1: any number)
  kRule,          // a reference to rule `index`
  kSpecial,       // special token `index`
  kGraph,         // graph `index`: a ready automaton over bytes
  kList,          // items that may be left out, with separators: see ListItem
};

// A list writes its items in order; those with min_count 0 may be left out, those with max_count > 1 (or -1) repeat;
// between any two that are written stands the separator (the last of the node's children). At least one item is
// written, and no item is empty text.
struct ListItem {
  NodeIndex node = kNoNode;
  int min_count = 1;
  int max_count = 1;
};

struct Node {
  NodeKind kind = NodeKind::kEmpty;
  int32_t index = 0;
  int min_count = 0, max_count = 0;
  int depth = 1;     // of the tree below, references not followed
  int64_t size = 1;  // about the states that it takes, references and repeated parts as one each where they are rules
  std::string bytes = {};
  std::vector<CodePointRange> ranges = {};
  std::vector<NodeIndex> children = {};
  std::vector<std::pair<int, int>> counts = {};  // kList: min and max of each child but the separator
};

struct Rule {
  std::string name;
  NodeIndex body = kNoNode;
  // Keeps its own automaton, so that the token sets of its states are shared by all who use it.
  bool is_never_inlined = false;
};

class NodePool {
 public:
  explicit NodePool(const GrammarLimits& limits)
      : limits_(limits), work_(std::make_unique<CompileWork>(limits.max_compile_steps)) {}

  NodeIndex empty();
  NodeIndex never();
  NodeIndex bytes(std::string_view text);
  NodeIndex character(std::vector<CodePointRange> ranges);
  NodeIndex sequence(std::vector<NodeIndex> children);
  NodeIndex alternatives(std::vector<NodeIndex> children);
  NodeIndex repeat(NodeIndex child, int min_count, int max_count);
  NodeIndex optional(NodeIndex child) { return repeat(child, 0, 1); }
  NodeIndex list(std::span<const ListItem> items, NodeIndex separator);
  NodeIndex special(std::string_view text);
  NodeIndex graph(StateGraph graph);
  NodeIndex declare_rule(std::string_view name, bool is_never_inlined = false);  // the reference
  void define_rule(NodeIndex reference, NodeIndex body);

  const Node& node(NodeIndex index) const { return nodes_[static_cast<size_t>(index)]; }
  size_t num_nodes() const { return nodes_.size(); }
  const std::vector<Rule>& rules() const { return rules_; }
  const std::vector<std::string>& specials() const { return specials_; }
  const StateGraph& graph_of(const Node& node) const { return graphs_[static_cast<size_t>(node.index)]; }
  const GrammarLimits& limits() const { return limits_; }
  CompileWork& work() const { return *work_; }  // of all that is done for this pool

  // Parts that are made once and used again, by a name of the maker's choosing.
  std::map<std::string, NodeIndex>& shared_parts() { return shared_parts_; }

 private:
  NodeIndex add(Node node);

  GrammarLimits limits_;
  std::unique_ptr<CompileWork> work_;
  std::vector<Node> nodes_;
  std::vector<Rule> rules_;
  std::vector<std::string> specials_;
  std::vector<StateGraph> graphs_;
  std::map<std::string, NodeIndex> shared_parts_;
};

}  // namespace quire::grammar_internal

#include "text/grammar_lowering.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"

namespace quire::grammar_internal {
namespace {

// A part that is used twice or more becomes a rule above this many states: a call costs about as much as some ten
// states.
constexpr int64_t kMaxCopiedSize = 24;
// A repeated part becomes a rule where its copies would take more states than this.
constexpr int64_t kMaxRepeatedSize = 2000;
// A repeated part that may be empty becomes a rule where there are more copies than this.
constexpr int64_t kMaxEmptyCopies = 8;
// A rule that is used once goes into its user's automaton up to this size.
constexpr int64_t kMaxInlinedSize = 5000;
// Deeper parts become rules, which bounds the recursion here.
constexpr int kMaxLoweringDepth = 100;

int64_t copies_of(int min_count, int max_count) {
  return std::max<int64_t>({1, min_count, max_count});
}

// What is known of the nodes before lowering. Children have smaller indices than their parents, so that two sweeps do.
class NodeFacts {
 public:
  NodeFacts(const NodePool& pool, NodeIndex root) : pool_(pool) {
    find_reachable(root);
    find_empty();
    find_recursive_rules();
    count_uses(root);
  }

  bool may_be_empty(NodeIndex index) const { return may_be_empty_[static_cast<size_t>(index)]; }
  bool is_own_rule(NodeIndex index) const { return is_own_rule_[static_cast<size_t>(index)]; }
  bool is_inlined_rule(int32_t rule) const { return is_inlined_rule_[static_cast<size_t>(rule)]; }

 private:
  void find_reachable(NodeIndex root) {
    is_reachable_.assign(pool_.num_nodes(), false);
    std::vector<NodeIndex> work{root};
    auto visit = [&](NodeIndex index) {
      if (is_reachable_[static_cast<size_t>(index)]) return;
      is_reachable_[static_cast<size_t>(index)] = true;
      work.push_back(index);
    };
    is_reachable_[static_cast<size_t>(root)] = true;
    while (!work.empty()) {
      const Node& node = pool_.node(work.back());
      work.pop_back();
      for (NodeIndex child : node.children) visit(child);
      if (node.kind == NodeKind::kRule) visit(pool_.rules()[static_cast<size_t>(node.index)].body);
    }
  }

  bool computes_empty(const Node& node) const {
    switch (node.kind) {
      case NodeKind::kEmpty:
        return true;
      case NodeKind::kBytes:
      case NodeKind::kCharacter:
      case NodeKind::kSpecial:
        return false;
      case NodeKind::kSequence:
        return std::all_of(node.children.begin(), node.children.end(), [&](NodeIndex c) { return may_be_empty(c); });
      case NodeKind::kAlternatives:
        return std::any_of(node.children.begin(), node.children.end(), [&](NodeIndex c) { return may_be_empty(c); });
      case NodeKind::kRepeat:
        return node.min_count == 0 || may_be_empty(node.children[0]);
      case NodeKind::kRule:
        return may_be_empty(pool_.rules()[static_cast<size_t>(node.index)].body);
      case NodeKind::kGraph: {
        const StateGraph& graph = pool_.graph_of(node);
        return graph.state(graph.start).is_final;
      }
      case NodeKind::kList:
        return false;
    }
    return false;
  }

  void find_empty() {
    may_be_empty_.assign(pool_.num_nodes(), false);
    // Users of each node, so that a change is carried on and nothing is looked at in vain.
    std::vector<std::vector<NodeIndex>> users(pool_.num_nodes());
    std::vector<NodeIndex> work;
    for (size_t i = 0; i < pool_.num_nodes(); ++i) {
      if (!is_reachable_[i]) continue;
      const auto index = static_cast<NodeIndex>(i);
      const Node& node = pool_.node(index);
      for (NodeIndex child : node.children) users[static_cast<size_t>(child)].push_back(index);
      if (node.kind == NodeKind::kRule) {
        users[static_cast<size_t>(pool_.rules()[static_cast<size_t>(node.index)].body)].push_back(index);
      }
      work.push_back(index);
    }
    std::reverse(work.begin(), work.end());  // small indices, the children, first
    while (!work.empty()) {
      const NodeIndex index = work.back();
      work.pop_back();
      if (may_be_empty(index) || !computes_empty(pool_.node(index))) continue;
      may_be_empty_[static_cast<size_t>(index)] = true;
      for (NodeIndex user : users[static_cast<size_t>(index)]) work.push_back(user);
    }
  }

  // Rules that refer, through others or not, only to rules already known not to be recursive.
  void find_recursive_rules() {
    const size_t num_rules = pool_.rules().size();
    std::vector<std::vector<int32_t>> users(num_rules);
    std::vector<int32_t> num_open(num_rules, 0);
    has_references_.assign(num_rules, false);
    std::vector<int32_t> last_seen_by(pool_.num_nodes(), -1);
    std::vector<NodeIndex> work;
    for (size_t r = 0; r < num_rules; ++r) {
      const NodeIndex body = pool_.rules()[r].body;
      if (body == kNoNode || !is_reachable_[static_cast<size_t>(body)]) continue;
      const auto rule = static_cast<int32_t>(r);
      work.push_back(body);
      last_seen_by[static_cast<size_t>(body)] = rule;
      while (!work.empty()) {
        const Node& node = pool_.node(work.back());
        work.pop_back();
        if (node.kind == NodeKind::kRule) {
          users[static_cast<size_t>(node.index)].push_back(rule);
          ++num_open[r];
          has_references_[r] = true;
        }
        for (NodeIndex child : node.children) {
          if (last_seen_by[static_cast<size_t>(child)] == rule) continue;
          last_seen_by[static_cast<size_t>(child)] = rule;
          work.push_back(child);
        }
      }
    }
    is_recursive_.assign(num_rules, true);
    std::vector<int32_t> ready;
    for (size_t r = 0; r < num_rules; ++r) {
      if (num_open[r] == 0) ready.push_back(static_cast<int32_t>(r));
    }
    while (!ready.empty()) {
      const int32_t rule = ready.back();
      ready.pop_back();
      is_recursive_[static_cast<size_t>(rule)] = false;
      for (int32_t user : users[static_cast<size_t>(rule)]) {
        if (--num_open[static_cast<size_t>(user)] == 0) ready.push_back(user);
      }
    }
  }

  void count_uses(NodeIndex root) {
    constexpr int64_t kMany = 1'000'000;
    std::vector<int64_t> num_uses(pool_.num_nodes(), 0);
    std::vector<int64_t> num_calls(pool_.rules().size(), 0);
    is_own_rule_.assign(pool_.num_nodes(), false);
    num_uses[static_cast<size_t>(root)] = 1;
    for (const Rule& rule : pool_.rules()) {
      if (rule.body != kNoNode) num_uses[static_cast<size_t>(rule.body)] += 1;
    }
    for (size_t i = pool_.num_nodes(); i-- > 0;) {
      if (!is_reachable_[i]) continue;
      const Node& node = pool_.node(static_cast<NodeIndex>(i));
      int64_t uses = std::min(num_uses[i], kMany);
      if (node.kind == NodeKind::kRule) num_calls[static_cast<size_t>(node.index)] += uses;
      if (uses > 1 && node.size > kMaxCopiedSize && node.kind != NodeKind::kRule) {
        is_own_rule_[i] = true;
        uses = 1;
      }
      for (size_t c = 0; c < node.children.size(); ++c) {
        int64_t copies = 1;
        if (node.kind == NodeKind::kRepeat) copies = copies_of(node.min_count, node.max_count);
        // In a list an item stands once behind a separator and once without.
        if (node.kind == NodeKind::kList) copies = 2;
        int64_t& child_uses = num_uses[static_cast<size_t>(node.children[c])];
        child_uses = std::min(kMany, child_uses + uses * copies);
      }
    }
    is_inlined_rule_.assign(pool_.rules().size(), false);
    for (size_t r = 0; r < pool_.rules().size(); ++r) {
      const Rule& rule = pool_.rules()[r];
      if (rule.body == kNoNode || rule.is_never_inlined || is_recursive_[r]) continue;
      const int64_t size = pool_.node(rule.body).size;
      is_inlined_rule_[r] =
          (num_calls[r] <= 1 && size <= kMaxInlinedSize) || (!has_references_[r] && size <= kMaxCopiedSize / 2);
    }
  }

  const NodePool& pool_;
  std::vector<bool> is_reachable_, may_be_empty_, is_own_rule_, is_inlined_rule_, is_recursive_, has_references_;
};

class Lowering {
 public:
  Lowering(const NodePool& pool, NodeIndex root, bool is_regular)
      : pool_(pool), is_regular_(is_regular), max_states_(pool.limits().max_states) {
    // Regular parts have no rules of their own; and there are many of them, each a small part of the pool.
    if (!is_regular) facts_.emplace(pool, root);
  }

  Result<LoweredGrammar> run(NodeIndex root) {
    result_.root_rule = rule_of_body(root);
    while (!open_rules_.empty()) {
      const auto [rule, body] = open_rules_.back();
      open_rules_.pop_back();
      LoweredRule& lowered = result_.rules[static_cast<size_t>(rule)];
      lowered.may_be_empty = !is_regular_ && facts_->may_be_empty(body);
      StateGraph graph;
      graph.start = graph.add_state();
      const int32_t final_state = graph.add_state(true);
      graph_ = &graph;
      depth_ = 0;
      lower_body(body, graph.start, final_state);
      num_states_ += graph.states.size();
      pool_.work().spend(2 * graph.states.size());
      RETURN_IF_ERROR(check_size());
      // lower_body may have added rules.
      result_.rules[static_cast<size_t>(rule)].graph = std::move(graph);
      result_.rules[static_cast<size_t>(rule)].final_state = final_state;
    }
    return std::move(result_);
  }

 private:
  Status check_size() const {
    if (num_states_ > static_cast<size_t>(max_states_)) {
      return resource_exhausted("the grammar needs more than " + std::to_string(max_states_) +
                                " states; make it smaller, or lower its repetition counts and length limits");
    }
    if (result_.rules.size() > static_cast<size_t>(pool_.limits().max_rules)) {
      return resource_exhausted("the grammar needs more than " + std::to_string(pool_.limits().max_rules) +
                                " rules; make it smaller");
    }
    return pool_.work().status();
  }

  bool is_too_large() const { return num_states_ + graph_->states.size() > static_cast<size_t>(max_states_); }

  int32_t rule_of_body(NodeIndex body) {
    const auto [it, is_new] = rule_of_body_.try_emplace(body, static_cast<int32_t>(result_.rules.size()));
    if (is_new) {
      result_.rules.emplace_back();
      open_rules_.emplace_back(it->second, body);
    }
    return it->second;
  }

  void call(NodeIndex body, int32_t from, int32_t to) {
    graph_->add_edge(from, GraphEdge::call(rule_of_body(body), to));
    if (facts_->may_be_empty(body)) graph_->add_edge(from, GraphEdge::empty(to));
  }

  void lower(NodeIndex index, int32_t from, int32_t to) {
    if (is_too_large()) return;
    const Node& node = pool_.node(index);
    if (!is_regular_ && (facts_->is_own_rule(index) || (depth_ > kMaxLoweringDepth && !node.children.empty()))) {
      call(index, from, to);
      return;
    }
    lower_body(index, from, to);
  }

  void lower_body(NodeIndex index, int32_t from, int32_t to) {
    ++depth_;
    const Node& node = pool_.node(index);
    switch (node.kind) {
      case NodeKind::kEmpty:
        graph_->add_edge(from, GraphEdge::empty(to));
        break;
      case NodeKind::kBytes:
        lower_bytes(node.bytes, from, to);
        break;
      case NodeKind::kCharacter:
        for (const CodePointRange& range : node.ranges) add_utf8_range(*graph_, from, to, range.first, range.last);
        break;
      case NodeKind::kSequence:
        for (size_t i = 0; i < node.children.size(); ++i) {
          const int32_t next = i + 1 == node.children.size() ? to : graph_->add_state();
          lower(node.children[i], from, next);
          from = next;
        }
        break;
      case NodeKind::kAlternatives:
        for (NodeIndex child : node.children) {
          // An own state for each, so that loops at the beginning of one do not leak into the others.
          const int32_t begin = graph_->add_state();
          graph_->add_edge(from, GraphEdge::empty(begin));
          lower(child, begin, to);
        }
        break;
      case NodeKind::kRepeat:
        lower_repeat(node.children[0], node.min_count, node.max_count, kNoNode, from, to);
        break;
      case NodeKind::kRule:
        lower_reference(node, from, to);
        break;
      case NodeKind::kSpecial:
        lower_special(node, from, to);
        break;
      case NodeKind::kGraph:
        lower_graph(pool_.graph_of(node), from, to);
        break;
      case NodeKind::kList:
        lower_list(node, from, to);
        break;
    }
    --depth_;
  }

  void lower_bytes(const std::string& bytes, int32_t from, int32_t to) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      const int32_t next = i + 1 == bytes.size() ? to : graph_->add_state();
      const auto byte = static_cast<uint8_t>(bytes[i]);
      graph_->add_edge(from, GraphEdge::bytes(byte, byte, next));
      from = next;
    }
  }

  // A copy of a part of which there are many.
  void lower_copy(NodeIndex child, int64_t num_copies, int32_t from, int32_t to) {
    const int64_t size = pool_.node(child).size;
    if (!is_regular_ && num_copies > 1 && size > 2 && size > kMaxRepeatedSize / num_copies) {
      call(child, from, to);
    } else {
      lower(child, from, to);
    }
  }

  // min to max copies; before each, where one is given, the separator.
  void lower_repeat(NodeIndex child, int min_count, int max_count, NodeIndex separator, int32_t from, int32_t to) {
    const int64_t num_copies = copies_of(min_count, max_count);
    // A copy that matches nothing may as well not be there. Calls match something, so that copies are no ways around
    // each other.
    const bool never_empty = !is_regular_ && num_copies > kMaxEmptyCopies && facts_->may_be_empty(child);
    if (never_empty) min_count = 0;
    auto copy = [&](int32_t begin, int32_t end) {
      if (never_empty) {
        graph_->add_edge(begin, GraphEdge::call(rule_of_body(child), end));
        return;
      }
      if (separator != kNoNode) {
        const int32_t middle = graph_->add_state();
        lower_copy(separator, num_copies, begin, middle);
        begin = middle;
      }
      lower_copy(child, num_copies, begin, end);
    };
    for (int i = 0; i < min_count && !is_too_large(); ++i) {
      const int32_t next = graph_->add_state();
      copy(from, next);
      from = next;
    }
    if (max_count == -1) {
      const int32_t loop = graph_->add_state();
      const int32_t end = graph_->add_state();
      graph_->add_edge(from, GraphEdge::empty(loop));
      copy(loop, end);
      graph_->add_edge(end, GraphEdge::empty(loop));
      graph_->add_edge(loop, GraphEdge::empty(to));
      return;
    }
    for (int i = min_count; i < max_count && !is_too_large(); ++i) {
      const int32_t next = graph_->add_state();
      graph_->add_edge(from, GraphEdge::empty(to));
      copy(from, next);
      from = next;
    }
    graph_->add_edge(from, GraphEdge::empty(to));
  }

  void lower_reference(const Node& node, int32_t from, int32_t to) {
    const NodeIndex body = pool_.rules()[static_cast<size_t>(node.index)].body;
    if (is_regular_ || (facts_->is_inlined_rule(node.index) && depth_ < kMaxLoweringDepth)) {
      const int32_t begin = graph_->add_state();
      const int32_t end = graph_->add_state();
      graph_->add_edge(from, GraphEdge::empty(begin));
      graph_->add_edge(end, GraphEdge::empty(to));
      lower(body, begin, end);
    } else {
      call(body, from, to);
    }
  }

  // The token where there is one; else a rule that spells it.
  void lower_special(const Node& node, int32_t from, int32_t to) {
    graph_->add_edge(from, GraphEdge::special(node.index, to));
    const auto [it, is_new] = rule_of_special_.try_emplace(node.index, static_cast<int32_t>(result_.rules.size()));
    if (is_new) {
      LoweredRule rule;
      rule.only_without_special = node.index;
      rule.graph.start = rule.graph.add_state();
      rule.final_state = rule.graph.add_state(true);
      int32_t state = rule.graph.start;
      const std::string& text = pool_.specials()[static_cast<size_t>(node.index)];
      for (size_t i = 0; i < text.size(); ++i) {
        const int32_t next = i + 1 == text.size() ? rule.final_state : rule.graph.add_state();
        const auto byte = static_cast<uint8_t>(text[i]);
        rule.graph.add_edge(state, GraphEdge::bytes(byte, byte, next));
        state = next;
      }
      num_states_ += rule.graph.states.size();
      result_.rules.push_back(std::move(rule));
    }
    graph_->add_edge(from, GraphEdge::call(it->second, to));
  }

  void lower_graph(const StateGraph& graph, int32_t from, int32_t to) {
    const auto offset = static_cast<int32_t>(graph_->states.size());
    for (const GraphState& state : graph.states) {
      const int32_t copy = graph_->add_state();
      for (GraphEdge edge : state.edges) {
        edge.target += offset;
        graph_->add_edge(copy, edge);
      }
      if (state.is_final) graph_->add_edge(copy, GraphEdge::empty(to));
    }
    graph_->add_edge(from, GraphEdge::empty(graph.start + offset));
  }

  // Two tracks: on the first nothing has been written yet, on the second every item comes behind a separator.
  void lower_list(const Node& node, int32_t from, int32_t to) {
    const NodeIndex separator = node.children.back();
    int32_t blank = from;  // -1: no longer possible
    int32_t written = -1;  // -1: not possible yet
    for (size_t i = 0; i + 1 < node.children.size() && !is_too_large(); ++i) {
      const NodeIndex item = node.children[i];
      const auto [min_count, max_count] = node.counts[i];
      const int32_t next_written = graph_->add_state();
      if (blank >= 0 && max_count != 0) {
        const int32_t first_end = graph_->add_state();
        lower(item, blank, first_end);
        lower_repeat(item, std::max(0, min_count - 1), max_count == -1 ? -1 : max_count - 1, separator, first_end,
                     next_written);
      }
      if (written >= 0) lower_repeat(item, min_count, max_count, separator, written, next_written);
      if (blank >= 0) {
        const int32_t next_blank = min_count == 0 ? graph_->add_state() : -1;
        if (next_blank >= 0) graph_->add_edge(blank, GraphEdge::empty(next_blank));
        blank = next_blank;
      }
      written = next_written;
    }
    if (written >= 0) graph_->add_edge(written, GraphEdge::empty(to));
  }

  const NodePool& pool_;
  std::optional<NodeFacts> facts_;  // not of regular parts
  const bool is_regular_;
  const int max_states_;
  LoweredGrammar result_;
  std::unordered_map<NodeIndex, int32_t> rule_of_body_;
  std::unordered_map<int32_t, int32_t> rule_of_special_;
  std::vector<std::pair<int32_t, NodeIndex>> open_rules_;
  StateGraph* graph_ = nullptr;  // of the rule that is being lowered
  int depth_ = 0;
  size_t num_states_ = 0;
};

}  // namespace

Result<LoweredGrammar> lower_grammar(const NodePool& pool, NodeIndex root) {
  return Lowering(pool, root, false).run(root);
}

Result<StateGraph> lower_regular(const NodePool& pool, NodeIndex root) {
  ASSIGN_OR_RETURN(LoweredGrammar lowered, Lowering(pool, root, true).run(root));
  CHECK(lowered.rules.size() == size_t{1});
  return std::move(lowered.rules[0].graph);
}

}  // namespace quire::grammar_internal

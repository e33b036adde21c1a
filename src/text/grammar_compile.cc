#include "text/grammar_compile.h"

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "text/grammar_left_recursion.h"
#include "text/grammar_lowering.h"

namespace quire::grammar_internal {
namespace {

using Kind = GraphEdge::Kind;

Status check_sources(const NodePool& pool) {
  if (pool.rules().size() > static_cast<size_t>(pool.limits().max_rules)) {
    return resource_exhausted("the grammar has more than " + std::to_string(pool.limits().max_rules) + " rules");
  }
  for (const Rule& rule : pool.rules()) {
    if (rule.body == kNoNode) return invalid_argument("the grammar's rule \"" + rule.name + "\" is not defined");
  }
  return ok_status();
}

// Several targets for a byte are allowed where a deterministic automaton would be much larger.
StateGraph simplify(const StateGraph& graph, CompileWork& work) {
  const size_t max_states = 4 * graph.states.size() + 256;
  if (std::optional<StateGraph> deterministic = determinize(graph, max_states, work)) {
    return join_equal_ends(std::move(*deterministic), work);
  }
  return remove_empty_edges(graph, work);
}

// Drops edges from which no end can be reached because they call rules that never end, or lead to such calls.
class DeadEndRemoval {
 public:
  explicit DeadEndRemoval(std::vector<StateGraph>& graphs) : graphs_(graphs) {
    for (const StateGraph& graph : graphs) {
      first_state_.push_back(static_cast<int32_t>(owner_.size()));
      owner_.resize(owner_.size() + graph.states.size(), static_cast<int32_t>(first_state_.size()) - 1);
    }
    can_end_.assign(owner_.size(), false);
    sources_.resize(owner_.size());
    callers_.resize(graphs.size());
  }

  void run() {
    for (size_t r = 0; r < graphs_.size(); ++r) {
      for (size_t s = 0; s < graphs_[r].states.size(); ++s) {
        const int32_t state = first_state_[r] + static_cast<int32_t>(s);
        if (graphs_[r].states[s].is_final) mark(state);
        for (const GraphEdge& edge : graphs_[r].states[s].edges) add_edge(state, first_state_[r] + edge.target, edge);
      }
    }
    while (!work_.empty()) {
      const int32_t state = work_.back();
      work_.pop_back();
      for (int32_t edge : sources_[static_cast<size_t>(state)]) count_down(edge);
      const auto rule = static_cast<size_t>(owner_[static_cast<size_t>(state)]);
      if (state != first_state_[rule] + graphs_[rule].start) continue;
      for (int32_t edge : callers_[rule]) count_down(edge);
    }
    for (size_t r = 0; r < graphs_.size(); ++r) {
      for (GraphState& state : graphs_[r].states) {
        std::erase_if(state.edges, [&](const GraphEdge& edge) {
          return !ends(r, edge.target) || (edge.kind == Kind::kCall && !rule_ends(edge.index));
        });
      }
      graphs_[r] = remove_dead_states(std::move(graphs_[r]));
    }
  }

  bool rule_ends(int32_t rule) const { return can_end_[static_cast<size_t>(start_of_[static_cast<size_t>(rule)])]; }

 private:
  struct Edge {
    int32_t source;
    int num_open;  // of the target and, for a call, the rule called: those not yet known to end
  };

  bool ends(size_t rule, int32_t state) const { return can_end_[static_cast<size_t>(first_state_[rule] + state)]; }

  void add_edge(int32_t source, int32_t target, const GraphEdge& edge) {
    if (start_of_.empty()) {
      for (size_t r = 0; r < graphs_.size(); ++r) start_of_.push_back(first_state_[r] + graphs_[r].start);
    }
    const auto index = static_cast<int32_t>(edges_.size());
    edges_.push_back({source, edge.kind == Kind::kCall ? 2 : 1});
    sources_[static_cast<size_t>(target)].push_back(index);
    if (edge.kind == Kind::kCall) callers_[static_cast<size_t>(edge.index)].push_back(index);
  }

  void mark(int32_t state) {
    if (can_end_[static_cast<size_t>(state)]) return;
    can_end_[static_cast<size_t>(state)] = true;
    work_.push_back(state);
  }

  void count_down(int32_t edge_index) {
    Edge& edge = edges_[static_cast<size_t>(edge_index)];
    if (--edge.num_open == 0) mark(edge.source);
  }

  std::vector<StateGraph>& graphs_;
  std::vector<int32_t> first_state_, start_of_, owner_, work_;
  std::vector<bool> can_end_;
  std::vector<Edge> edges_;
  std::vector<std::vector<int32_t>> sources_, callers_;
};

// Ranks rules so that every rule stands behind those that may call it before reading anything.
Status rank_rules(const std::vector<StateGraph>& graphs, int max_chain, std::vector<Automaton::Rule>& rules) {
  const size_t num_rules = graphs.size();
  std::vector<std::vector<int32_t>> callees(num_rules);
  std::vector<int32_t> num_callers(num_rules, 0), chain(num_rules, 0), ready;
  for (size_t r = 0; r < num_rules; ++r) {
    for (const GraphEdge& edge : graphs[r].state(graphs[r].start).edges) {
      if (edge.kind != Kind::kCall) continue;
      callees[r].push_back(edge.index);
      ++num_callers[static_cast<size_t>(edge.index)];
    }
  }
  for (size_t r = 0; r < num_rules; ++r) {
    if (num_callers[r] == 0) ready.push_back(static_cast<int32_t>(r));
  }
  int32_t next_rank = 0;
  for (size_t i = 0; i < ready.size(); ++i) {
    const auto r = static_cast<size_t>(ready[i]);
    rules[r].rank = next_rank++;
    if (chain[r] > max_chain) {
      return resource_exhausted("the grammar is nested too deep: more than " + std::to_string(max_chain) +
                                " rules each begin with the next");
    }
    for (int32_t callee : callees[r]) {
      const auto c = static_cast<size_t>(callee);
      chain[c] = std::max(chain[c], chain[r] + 1);
      if (--num_callers[c] == 0) ready.push_back(callee);
    }
  }
  CHECK(ready.size() == num_rules);  // left recursion is gone
  return ok_status();
}

// Bytes that no edge tells apart are one class.
void make_byte_classes(const std::vector<StateGraph>& graphs, Automaton& automaton) {
  std::array<bool, 257> is_border{};
  is_border[0] = true;
  for (const StateGraph& graph : graphs) {
    for (const GraphState& state : graph.states) {
      for (const GraphEdge& edge : state.edges) {
        if (edge.kind != Kind::kBytes) continue;
        is_border[edge.first] = true;
        is_border[static_cast<size_t>(edge.last) + 1] = true;
      }
    }
  }
  int num_classes = 0;
  for (size_t byte = 0; byte < 256; ++byte) {
    if (is_border[byte]) ++num_classes;
    automaton.class_of_byte[byte] = static_cast<uint8_t>(num_classes - 1);
  }
  automaton.num_classes = num_classes;
}

void flatten(const std::vector<StateGraph>& graphs, Automaton& automaton) {
  int32_t offset = 0;
  for (size_t r = 0; r < graphs.size(); ++r) {
    automaton.rules[r].start = offset + graphs[r].start;
    automaton.first_state_of_rule.push_back(offset);
    automaton.rule_of_state.resize(automaton.rule_of_state.size() + graphs[r].states.size(), static_cast<int32_t>(r));
    for (const GraphState& state : graphs[r].states) {
      automaton.states.push_back({.first_byte_edge = static_cast<uint32_t>(automaton.byte_edges.size()),
                                  .first_call_edge = static_cast<uint32_t>(automaton.call_edges.size()),
                                  .first_special_edge = static_cast<uint32_t>(automaton.special_edges.size()),
                                  .is_final = state.is_final,
                                  .has_edges = !state.edges.empty()});
      for (const GraphEdge& edge : state.edges) {
        const int32_t target = offset + edge.target;
        const GraphState& target_state = graphs[r].state(edge.target);
        if (edge.kind == Kind::kBytes) {
          automaton.byte_edges.push_back(
              {automaton.class_of_byte[edge.first], automaton.class_of_byte[edge.last], target});
        } else if (edge.kind == Kind::kCall) {
          const bool is_tail = target_state.is_final && target_state.edges.empty();
          automaton.call_edges.push_back({edge.index, target, is_tail});
        } else {
          automaton.special_edges.push_back({edge.index, target});
        }
      }
    }
    offset += static_cast<int32_t>(graphs[r].states.size());
  }
  automaton.first_state_of_rule.push_back(offset);
  automaton.states.push_back({.first_byte_edge = static_cast<uint32_t>(automaton.byte_edges.size()),
                              .first_call_edge = static_cast<uint32_t>(automaton.call_edges.size()),
                              .first_special_edge = static_cast<uint32_t>(automaton.special_edges.size()),
                              .is_final = false,
                              .has_edges = false});
}

}  // namespace

Result<Automaton> compile_grammar(const NodePool& pool, NodeIndex root) {
  RETURN_IF_ERROR(check_sources(pool));
  const auto max_states = static_cast<size_t>(pool.limits().max_states);
  ASSIGN_OR_RETURN(LoweredGrammar lowered, lower_grammar(pool, root));
  CompileWork& work = pool.work();
  RETURN_IF_ERROR(remove_left_recursion(lowered, max_states, work));

  Automaton automaton;
  automaton.root_rule = lowered.root_rule;
  automaton.may_be_empty = lowered.rules[static_cast<size_t>(lowered.root_rule)].may_be_empty;
  automaton.specials = pool.specials();
  std::vector<StateGraph> graphs;
  size_t num_states = 0;
  for (LoweredRule& rule : lowered.rules) {
    graphs.push_back(simplify(rule.graph, work));
    automaton.rules.push_back({.start = 0, .rank = 0, .only_without_special = rule.only_without_special});
    num_states += graphs.back().states.size();
    rule.graph = StateGraph();
    RETURN_IF_ERROR(work.status());
    if (num_states > max_states) {
      return resource_exhausted("the grammar needs more than " + std::to_string(max_states) + " states");
    }
  }
  DeadEndRemoval removal(graphs);
  removal.run();
  const StateGraph& root_graph = graphs[static_cast<size_t>(automaton.root_rule)];
  if (accepts_nothing(root_graph) && !automaton.may_be_empty) {
    return invalid_argument("the grammar matches no text at all: it contradicts itself, or its rules never end");
  }
  RETURN_IF_ERROR(rank_rules(graphs, pool.limits().max_depth * 4, automaton.rules));
  make_byte_classes(graphs, automaton);
  flatten(graphs, automaton);
  automaton.num_compile_steps = work.num_steps();
  return automaton;
}

}  // namespace quire::grammar_internal

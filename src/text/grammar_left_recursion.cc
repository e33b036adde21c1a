#include "text/grammar_left_recursion.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace quire::grammar_internal {
namespace {

using Kind = GraphEdge::Kind;

// The edges that leave the start, behind any number of empty ones, go to a new start.
void make_plain_start(LoweredRule& rule, CompileWork& work) {
  StateGraph& graph = rule.graph;
  std::vector<bool> is_seen(graph.states.size(), false);
  std::vector<int32_t> open{graph.start};
  is_seen[static_cast<size_t>(graph.start)] = true;
  std::vector<GraphEdge> edges;
  while (!open.empty()) {
    const int32_t state = open.back();
    open.pop_back();
    for (const GraphEdge& edge : graph.state(state).edges) {
      if (edge.kind != Kind::kEmpty) {
        edges.push_back(edge);
      } else if (!is_seen[static_cast<size_t>(edge.target)]) {
        is_seen[static_cast<size_t>(edge.target)] = true;
        open.push_back(edge.target);
      }
    }
  }
  work.spend(edges.size());
  graph.start = graph.add_state();
  graph.states.back().edges = std::move(edges);
}

// Groups of rules that begin with each other, by Tarjan's algorithm without recursion.
std::vector<std::vector<int32_t>> find_cycles(const LoweredGrammar& grammar) {
  const size_t num_rules = grammar.rules.size();
  std::vector<std::vector<int32_t>> callees(num_rules);
  for (size_t r = 0; r < num_rules; ++r) {
    const StateGraph& graph = grammar.rules[r].graph;
    for (const GraphEdge& edge : graph.state(graph.start).edges) {
      if (edge.kind == Kind::kCall) callees[r].push_back(edge.index);
    }
    std::sort(callees[r].begin(), callees[r].end());
    callees[r].erase(std::unique(callees[r].begin(), callees[r].end()), callees[r].end());
  }
  std::vector<int32_t> order(num_rules, -1), lowest(num_rules, 0);
  std::vector<bool> is_on_stack(num_rules, false);
  std::vector<int32_t> stack;
  struct Visit {
    int32_t rule;
    size_t next;
  };
  std::vector<Visit> visits;
  std::vector<std::vector<int32_t>> cycles;
  int32_t counter = 0;
  auto open = [&](int32_t rule) {
    const auto r = static_cast<size_t>(rule);
    order[r] = lowest[r] = counter++;
    stack.push_back(rule);
    is_on_stack[r] = true;
    visits.push_back({rule, 0});
  };
  for (size_t root = 0; root < num_rules; ++root) {
    if (order[root] >= 0) continue;
    open(static_cast<int32_t>(root));
    while (!visits.empty()) {
      const int32_t rule = visits.back().rule;
      const auto r = static_cast<size_t>(rule);
      if (visits.back().next < callees[r].size()) {
        const int32_t callee = callees[r][visits.back().next++];
        const auto c = static_cast<size_t>(callee);
        if (order[c] < 0) {
          open(callee);
        } else if (is_on_stack[c]) {
          lowest[r] = std::min(lowest[r], order[c]);
        }
        continue;
      }
      visits.pop_back();
      if (!visits.empty()) {
        int32_t& parent = lowest[static_cast<size_t>(visits.back().rule)];
        parent = std::min(parent, lowest[r]);
      }
      if (lowest[r] != order[r]) continue;
      std::vector<int32_t> group;
      int32_t member = -1;
      do {
        member = stack.back();
        stack.pop_back();
        is_on_stack[static_cast<size_t>(member)] = false;
        group.push_back(member);
      } while (member != rule);
      const bool calls_itself = std::binary_search(callees[r].begin(), callees[r].end(), rule);
      if (group.size() > 1 || calls_itself) cycles.push_back(std::move(group));
    }
  }
  return cycles;
}

// The targets of the start's calls of `callee`; the calls go.
std::vector<int32_t> take_calls(StateGraph& graph, int32_t callee) {
  std::vector<int32_t> targets;
  std::erase_if(graph.state(graph.start).edges, [&](const GraphEdge& edge) {
    if (edge.kind != Kind::kCall || edge.index != callee) return false;
    targets.push_back(edge.target);
    return true;
  });
  std::sort(targets.begin(), targets.end());
  targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
  return targets;
}

// Instead of calling `callee` at the start and going on at `target`, `graph` holds a copy of it. How many edges that
// took.
size_t copy_in(StateGraph& graph, const LoweredRule& callee, int32_t target) {
  size_t num_edges = 0;
  const auto offset = static_cast<int32_t>(graph.states.size());
  for (const GraphState& state : callee.graph.states) {
    const int32_t copy = graph.add_state();
    num_edges += state.edges.size() + 1;
    for (GraphEdge edge : state.edges) {
      edge.target += offset;
      graph.add_edge(copy, edge);
    }
  }
  graph.add_edge(callee.final_state + offset, GraphEdge::empty(target));
  for (GraphEdge edge : callee.graph.state(callee.graph.start).edges) {
    edge.target += offset;
    graph.add_edge(graph.start, edge);
  }
  return num_edges;
}

}  // namespace

Status remove_left_recursion(LoweredGrammar& grammar, size_t max_states, CompileWork& work) {
  size_t num_states = 0;
  for (LoweredRule& rule : grammar.rules) {
    make_plain_start(rule, work);
    num_states += rule.graph.states.size();
  }
  for (const std::vector<int32_t>& cycle : find_cycles(grammar)) {
    for (size_t i = 0; i < cycle.size(); ++i) {
      LoweredRule& rule = grammar.rules[static_cast<size_t>(cycle[i])];
      StateGraph& graph = rule.graph;
      // Afterwards the rule begins with none of those before it, which in turn begin with none of those before them.
      for (size_t j = 0; j < i; ++j) {
        const LoweredRule& earlier = grammar.rules[static_cast<size_t>(cycle[j])];
        for (int32_t target : take_calls(graph, cycle[j])) {
          num_states += earlier.graph.states.size();
          if (num_states > max_states) {
            return resource_exhausted(
                "the grammar's rules begin with each other in too many ways (left recursion); "
                "write them as repetitions");
          }
          work.spend(copy_in(graph, earlier, target));
          RETURN_IF_ERROR(work.status());
        }
      }
      // A = A x | y is A = y x*.
      for (int32_t target : take_calls(graph, cycle[i])) {
        graph.add_edge(rule.final_state, GraphEdge::empty(target));
      }
    }
  }
  return ok_status();
}

}  // namespace quire::grammar_internal

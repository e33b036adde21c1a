// A finite automaton whose edges are byte ranges, calls of rules and special tokens: what a rule is lowered to, and
// what regular parts (patterns with lengths, number ranges) are made of before they meet in an intersection. Plain data
// and a few algorithms, which end early, with whatever they have, once their work is spent. Internal to the grammar
// files.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/grammar_work.h"

namespace quire::grammar_internal {

struct GraphEdge {
  enum class Kind : uint8_t { kEmpty, kBytes, kCall, kSpecial };
  Kind kind = Kind::kEmpty;
  uint8_t first = 0, last = 0;  // kBytes, inclusive
  int32_t index = 0;            // kCall: the rule; kSpecial: the special token
  int32_t target = 0;

  static GraphEdge empty(int32_t target) { return {.target = target}; }
  static GraphEdge bytes(uint8_t first, uint8_t last, int32_t target) {
    return {.kind = Kind::kBytes, .first = first, .last = last, .target = target};
  }
  static GraphEdge call(int32_t rule, int32_t target) { return {.kind = Kind::kCall, .index = rule, .target = target}; }
  static GraphEdge special(int32_t special, int32_t target) {
    return {.kind = Kind::kSpecial, .index = special, .target = target};
  }
};

struct GraphState {
  std::vector<GraphEdge> edges;
  bool is_final = false;
};

struct StateGraph {
  std::vector<GraphState> states;
  int32_t start = 0;

  int32_t add_state(bool is_final = false) {
    states.push_back({.edges = {}, .is_final = is_final});
    return static_cast<int32_t>(states.size()) - 1;
  }
  void add_edge(int32_t from, GraphEdge edge) { states[static_cast<size_t>(from)].edges.push_back(edge); }
  GraphState& state(int32_t index) { return states[static_cast<size_t>(index)]; }
  const GraphState& state(int32_t index) const { return states[static_cast<size_t>(index)]; }
};

// The same language without empty edges; at most one target for each byte, rule and special token; no state from
// which no final state can be reached (calls count as passable). Nothing if that takes more than max_states.
std::optional<StateGraph> determinize(const StateGraph& graph, size_t max_states, CompileWork& work);
// The same language without empty edges; several targets for a byte are possible. Never more states than before.
StateGraph remove_empty_edges(const StateGraph& graph, CompileWork& work);
// Of a graph without empty edges: drops states that are not on a path from the start to a final state. Keeps the order.
StateGraph remove_dead_states(StateGraph graph);
// Of a graph without empty edges: joins states that have the same edges, from the ends backwards, in one pass. Enough
// for words that end alike; states of loops stay apart.
StateGraph join_equal_ends(StateGraph graph, CompileWork& work);

// What both accept. Bytes only. Nothing above max_states.
std::optional<StateGraph> intersect(const StateGraph& a, const StateGraph& b, size_t max_states, CompileWork& work);
// What the graph does not accept, of all byte strings. Bytes only. Nothing above max_states.
std::optional<StateGraph> complement(const StateGraph& graph, size_t max_states, CompileWork& work);
// Of a graph without empty edges, bytes only.
bool accepts_text(const StateGraph& graph, std::string_view text, CompileWork& work);
bool accepts_nothing(const StateGraph& without_dead_states);

// The bytes of UTF-8 for the code points first to last (no surrogates inside), between two states.
void add_utf8_range(StateGraph& graph, int32_t from, int32_t to, char32_t first, char32_t last);

}  // namespace quire::grammar_internal

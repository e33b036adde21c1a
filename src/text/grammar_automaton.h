// A compiled grammar: rules as finite automata over classes of bytes, with edges that call other rules. A matcher walks
// it with a stack of calls (grammar_configurations.h). Invariants that the walk relies on: no rule matches empty text
// (may_be_empty says it of the whole grammar), no rule calls itself before it has read something, and from every state
// the end can be reached. Plain data, immutable once compiled; internal to the grammar files.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace quire::grammar_internal {

struct ByteEdge {
  uint8_t first_class = 0, last_class = 0;  // inclusive
  int32_t target = 0;
};

struct CallEdge {
  int32_t rule = 0;
  int32_t target = 0;    // where to go on when the rule has matched
  bool is_tail = false;  // the target only returns
};

struct SpecialEdge {
  int32_t special = 0;
  int32_t target = 0;
};

struct AutomatonState {
  uint32_t first_byte_edge = 0, first_call_edge = 0, first_special_edge = 0;  // up to the next state's
  bool is_final = false;
  bool has_edges = false;
};

struct Automaton {
  std::vector<AutomatonState> states;  // and one more, that ends the lists of the last
  std::vector<ByteEdge> byte_edges;
  std::vector<CallEdge> call_edges;
  std::vector<SpecialEdge> special_edges;

  struct Rule {
    int32_t start = 0;
    int32_t rank = 0;                   // greater than that of every rule that may call it before reading anything
    int32_t only_without_special = -1;  // spells this special token's text: for vocabularies that lack the token
  };
  std::vector<Rule> rules;
  std::vector<int32_t> first_state_of_rule;  // and one more, the number of states
  std::vector<int32_t> rule_of_state;
  int32_t root_rule = 0;
  bool may_be_empty = false;
  int64_t num_compile_steps = 0;

  std::array<uint8_t, 256> class_of_byte{};
  int num_classes = 0;
  std::vector<std::string> specials;  // their texts

  int32_t num_states() const { return static_cast<int32_t>(states.size()) - 1; }
  const AutomatonState& state(int32_t index) const { return states[static_cast<size_t>(index)]; }
  std::span<const ByteEdge> byte_edges_of(int32_t index) const {
    return slice(byte_edges, state(index).first_byte_edge, state(index + 1).first_byte_edge);
  }
  std::span<const CallEdge> call_edges_of(int32_t index) const {
    return slice(call_edges, state(index).first_call_edge, state(index + 1).first_call_edge);
  }
  std::span<const SpecialEdge> special_edges_of(int32_t index) const {
    return slice(special_edges, state(index).first_special_edge, state(index + 1).first_special_edge);
  }
  size_t num_bytes() const {
    return sizeof(*this) + states.size() * sizeof(AutomatonState) + byte_edges.size() * sizeof(ByteEdge) +
           call_edges.size() * sizeof(CallEdge) + special_edges.size() * sizeof(SpecialEdge) +
           rules.size() * (sizeof(Rule) + sizeof(int32_t)) + rule_of_state.size() * sizeof(int32_t);
  }

 private:
  template <typename T>
  static std::span<const T> slice(const std::vector<T>& all, uint32_t begin, uint32_t end) {
    return {all.data() + begin, end - begin};
  }
};

}  // namespace quire::grammar_internal

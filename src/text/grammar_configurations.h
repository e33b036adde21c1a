// The walk of a grammar's automaton, byte by byte, with all ambiguities at once. A configuration is a set of (state,
// stack); a stack is a node of a graph that all share: where to go on when the rule at hand has matched, and with which
// stack. Equal stacks and equal configurations are the same number, and every step is remembered, so that the regular
// parts of a grammar become a table of transitions as they are met. Polynomial in the text however ambiguous the
// grammar (a rule that several states call at one place has one stack). Internal to the grammar files; one thread at a
// time.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "text/grammar_automaton.h"
#include "text/grammar_intern_table.h"

namespace quire::grammar_internal {

using ConfigurationId = int32_t;
using StackId = int32_t;

// In a configuration: a state and the stack under it. In a stack: the state to return to, and the stack under that.
struct WalkItem {
  int32_t state = 0;
  StackId stack = 0;
  bool operator==(const WalkItem&) const = default;
  auto operator<=>(const WalkItem&) const = default;
};

class Configurations {
 public:
  static constexpr ConfigurationId kDead = 0;  // nothing can follow, not even the end
  static constexpr StackId kBottom = 0;        // returning to it: the whole is matched

  // For each special token of the automaton, whether the vocabulary has it.
  Configurations(const Automaton& automaton, std::vector<bool> has_special);

  ConfigurationId start();                    // of the whole grammar
  ConfigurationId from_state(int32_t state);  // of the rest of one rule, with nothing known of what called it

  // Remembered: a few nanoseconds the second time.
  ConfigurationId step(ConfigurationId from, uint8_t byte) {
    const int32_t row = rows_[static_cast<size_t>(from)];
    if (row >= 0) {
      const ConfigurationId to = transitions_[static_cast<size_t>(row) + automaton_.class_of_byte[byte]];
      if (to != kUnknown) return to;
    }
    return compute_step(from, automaton_.class_of_byte[byte]);
  }
  ConfigurationId step_special(ConfigurationId from, int32_t special);
  // Appends the special tokens that may come next, with repetitions.
  void list_specials(ConfigurationId from, std::vector<int32_t>& specials);

  bool may_end(ConfigurationId configuration) const { return sets_.tag(configuration); }
  // Has items: something besides the end may follow.
  bool may_go_on(ConfigurationId configuration) const { return !sets_.get(configuration).empty(); }
  std::span<const WalkItem> items(ConfigurationId configuration) const { return sets_.get(configuration); }

  // Steps that were never taken before cost fuel, about one for an item of the configurations that they lead from and
  // to. Without it they lead to kDead, and what they tell is worth nothing.
  void set_fuel(int64_t fuel) { fuel_ = fuel; }
  int64_t fuel() const { return fuel_; }
  void spend(int64_t fuel) { fuel_ -= fuel; }

  size_t num_bytes() const;
  // The same configuration in another walk of the same automaton.
  ConfigurationId copy_from(const Configurations& other, ConfigurationId configuration);

  // A configuration with more items than this is taken for dead: the grammar is too ambiguous to follow.
  static constexpr size_t kMaxItems = 20'000;

 private:
  static constexpr ConfigurationId kUnknown = -1;

  ConfigurationId compute_step(ConfigurationId from, uint8_t byte_class);
  void close(ConfigurationId configuration);  // fills closure_: the items and all that they call
  void add(int32_t state, StackId stack);     // to the set that is being made
  void return_to(StackId stack);
  ConfigurationId finish_set();

  const Automaton& automaton_;
  std::vector<bool> has_special_;
  int64_t fuel_ = std::numeric_limits<int64_t>::max();
  InternTable<WalkItem> stacks_;
  InternTable<WalkItem> sets_;  // the tag: may end
  std::vector<int32_t> rows_;   // by configuration: where its transitions begin; -1: none yet
  std::vector<ConfigurationId> transitions_;

  // Closures of configurations, kept because a configuration is left by many bytes.
  struct Closure {
    uint32_t begin = 0, size = 0;
    bool is_known = false;
  };
  std::vector<Closure> closures_;
  std::vector<WalkItem> closure_items_;

  // Working memory.
  std::vector<WalkItem> next_;
  bool next_may_end_ = false;
  std::vector<StackId> returns_;        // stacks returned to in this step, each once
  std::vector<uint32_t> return_epoch_;  // by stack
  uint32_t epoch_ = 0;
  std::vector<std::vector<WalkItem>> pending_calls_;  // by rule
  std::vector<std::pair<int32_t, int32_t>> heap_;     // (rank, rule) of rules with pending calls
};

}  // namespace quire::grammar_internal

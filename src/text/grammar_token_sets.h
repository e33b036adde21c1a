// For a state of a rule, the tokens that may come next whatever called the rule, and those for which the callers must
// be asked because the rule ends inside them. Computed once per state and vocabulary, when a matcher first stands
// there, and shared by all grammars that have an equal rule. Internal to the grammar files; any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/grammar_automaton.h"
#include "text/grammar_configurations.h"
#include "text/grammar_vocabulary.h"

namespace quire::grammar_internal {

// Nodes of the vocabulary's tree, [begin, end), whose parents are the same or inside.
struct NodeRange {
  uint32_t begin = 0, end = 0;
};

struct TokenSet {
  std::vector<int32_t> tokens;  // those that may come, or
  std::vector<uint32_t> mask;   // the same as bits where there are many
  std::vector<NodeRange> open;  // tokens here may come or not: the callers' stack decides

  size_t num_bytes() const {
    return sizeof(*this) + tokens.capacity() * 4 + mask.capacity() * 4 + open.capacity() * sizeof(NodeRange);
  }
};

// The sets of the states of one rule.
class RuleTokenSets {
 public:
  explicit RuleTokenSets(size_t num_states) : sets_(num_states) {}
  ~RuleTokenSets();
  RuleTokenSets(const RuleTokenSets&) = delete;
  RuleTokenSets& operator=(const RuleTokenSets&) = delete;

  const TokenSet* find(size_t state) const { return sets_[state].load(std::memory_order_acquire); }
  // The state whose set serves for this one too. find_all is asked once.
  size_t representative(size_t state, const std::function<std::vector<int32_t>()>& find_all);
  // The one that was there first stays.
  const TokenSet* publish(size_t state, std::unique_ptr<TokenSet> set);
  size_t num_bytes() const {
    return sizeof(*this) + sets_.size() * sizeof(sets_[0]) + num_set_bytes_.load(std::memory_order_relaxed);
  }

 private:
  std::vector<std::atomic<const TokenSet*>> sets_;
  std::atomic<size_t> num_set_bytes_{0};
  std::once_flag representatives_once_;
  std::vector<int32_t> representatives_;  // by state; empty: each stands for itself
};

// Sets by the text of their rules, for one vocabulary. Keeps the latest used up to a bound in bytes; what grammars
// still use lives on with them.
class TokenSetStore {
 public:
  std::shared_ptr<RuleTokenSets> get(const std::string& rule_text, size_t num_states);
  size_t num_bytes() const;

 private:
  static constexpr size_t kMaxBytes = GrammarVocabulary::kMaxTokenSetBytes;
  static constexpr size_t kMaxEntries = 4096;  // their bytes are counted anew when one is added
  struct Entry {
    std::string rule_text;
    std::shared_ptr<RuleTokenSets> sets;
  };
  size_t num_bytes_locked() const;

  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // latest used first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> by_text_;
};

// A grammar's automaton together with a vocabulary.
class TokenSetTable {
 public:
  // The automaton must outlive the table.
  TokenSetTable(const Automaton& automaton, GrammarVocabulary::Ptr vocabulary);

  const GrammarVocabulary& vocabulary() const { return *vocabulary_; }
  const Automaton& automaton() const { return automaton_; }
  // The id of the automaton's special token, or -1.
  int32_t special_id(int32_t special) const { return special_ids_[static_cast<size_t>(special)]; }
  int32_t find_special_by_id(int32_t token_id) const;  // -1: no special token of the grammar
  std::vector<bool> has_special() const;

  // `walk` is the caller's, for the computation. A set that is over the bound on memory, or that lacks tokens because
  // the walk's fuel ran out, goes into `spare` and lives until the next call with the same.
  const TokenSet& get(int32_t state, Configurations& walk, std::unique_ptr<TokenSet>& spare) const;
  size_t num_bytes() const;

 private:
  static constexpr size_t kMaxBytes = size_t{64} << 20;
  RuleTokenSets& sets_of(size_t rule, Configurations& walk) const;

  const Automaton& automaton_;
  const GrammarVocabulary::Ptr vocabulary_;
  std::vector<int32_t> special_ids_;
  // By rule, from when a matcher first stands in it: a grammar may have many rules of which an answer meets few.
  mutable std::vector<std::atomic<RuleTokenSets*>> sets_of_rule_;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<RuleTokenSets>> owned_;  // what those point at
};

}  // namespace quire::grammar_internal

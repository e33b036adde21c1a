// What a Grammar holds: its automaton, and the token sets for the vocabularies that it has met (one, in a server).
// Internal to the grammar files.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "text/grammar.h"
#include "text/grammar_automaton.h"
#include "text/grammar_token_sets.h"
#include "text/grammar_vocabulary.h"

namespace quire {

struct Grammar::Impl {
  explicit Impl(grammar_internal::Automaton compiled) : automaton(std::move(compiled)) {}

  const grammar_internal::Automaton automaton;

  std::shared_ptr<const grammar_internal::TokenSetTable> table_for(const GrammarVocabulary::Ptr& vocabulary);
  size_t num_bytes();

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<const grammar_internal::TokenSetTable>> tables_;
};

}  // namespace quire

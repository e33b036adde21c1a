// Where one answer stands in its grammar: which tokens may come next, and whether it may end. Belongs to one choice of
// a request; one thread at a time. Not an engine TokenConstraint: the server adapts it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "text/grammar.h"
#include "text/grammar_vocabulary.h"

namespace quire {

class GrammarMatcher {
 public:
  // End tokens are allowed exactly where the grammar may end. Ids outside the vocabulary are never allowed.
  static std::unique_ptr<GrammarMatcher> create(Grammar::Ptr grammar, GrammarVocabulary::Ptr vocabulary,
                                                std::vector<int32_t> end_token_ids);
  ~GrammarMatcher();
  GrammarMatcher(const GrammarMatcher&) = delete;
  GrammarMatcher& operator=(const GrammarMatcher&) = delete;

  // Sets the bit of every token that may come next (bit id % 32 of word id / 32), clears all others, also those above
  // the vocabulary. The mask may be longer than the vocabulary, and must not be shorter than num_mask_words().
  // All bits are clear when the answer has ended, where no token of the vocabulary can continue it, or once the matcher
  // has given up.
  void fill_mask(std::span<uint32_t> mask);
  // The grammar takes too much work: it can be read in too many ways at once, so that a step would take seconds, with
  // everybody waiting for it. There are no masks from here on, and no token is accepted.
  bool has_given_up() const;

  // False, with nothing changed, if the token may not come next.
  bool accept(int32_t token_id);
  // Takes back the last accepted tokens, an end token too. At most num_accepted().
  void rollback(int num_tokens);
  int num_accepted() const;

  bool may_end() const;    // what was accepted so far is a whole answer (or an end token was accepted)
  bool has_ended() const;  // an end token was accepted
  // Nothing but the end may follow.
  bool must_end() const;

  // The same state, on its own from here on.
  std::unique_ptr<GrammarMatcher> clone() const;

 private:
  struct Impl;
  explicit GrammarMatcher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

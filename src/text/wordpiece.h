// WordPiece: the longest token that a word begins with, then the longest continuation ("##…"), and so on; a word that
// cannot be covered is one unknown token. Immutable, shared by threads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/subword_model.h"
#include "text/token_table.h"

namespace quire {

struct WordPieceOptions {
  std::string continuation_prefix = "##";
  size_t max_word_characters = 100;  // a longer word is unknown
  int32_t unknown_id = -1;
};

class WordPieceModel : public SubwordModel {
 public:
  WordPieceModel(const TokenTable& vocabulary, WordPieceOptions options);
  void encode(std::string_view piece, SubwordScratch& scratch, std::vector<int32_t>& ids) const override;

 private:
  ByteTrie trie_;
  uint32_t continuation_node_ = ByteTrie::kNoNode;  // where "##" leads
  WordPieceOptions options_;
};

}  // namespace quire

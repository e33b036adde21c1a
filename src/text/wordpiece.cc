// Greedy longest match over a trie.
#include "text/wordpiece.h"

#include <algorithm>

namespace quire {

WordPieceModel::WordPieceModel(const TokenTable& vocabulary, WordPieceOptions options) : options_(std::move(options)) {
  for (size_t id = 0; id < vocabulary.num_ids(); ++id) {
    const std::string& text = vocabulary.text(static_cast<int32_t>(id));
    if (text.empty() || vocabulary.find(text) != static_cast<int32_t>(id)) continue;
    trie_.insert(text, static_cast<int32_t>(id));
  }
  continuation_node_ = ByteTrie::kRoot;
  for (const char c : options_.continuation_prefix) {
    if (continuation_node_ != ByteTrie::kNoNode) continuation_node_ = trie_.step(continuation_node_, c);
  }
}

void WordPieceModel::encode(std::string_view piece, SubwordScratch&, std::vector<int32_t>& ids) const {
  const auto num_characters =
      std::count_if(piece.begin(), piece.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
  const size_t num_before = ids.size();
  const auto give_up = [&] {
    ids.resize(num_before);
    if (options_.unknown_id >= 0) ids.push_back(options_.unknown_id);
  };
  if (static_cast<size_t>(num_characters) > options_.max_word_characters) return give_up();
  for (size_t begin = 0; begin < piece.size();) {
    uint32_t node = begin == 0 ? ByteTrie::kRoot : continuation_node_;
    int32_t best = ByteTrie::kNoValue;
    size_t best_end = begin;
    for (size_t i = begin; i < piece.size() && node != ByteTrie::kNoNode; ++i) {
      node = trie_.step(node, piece[i]);
      if (node != ByteTrie::kNoNode && trie_.value(node) != ByteTrie::kNoValue) {
        best = trie_.value(node);
        best_end = i + 1;
      }
    }
    if (best == ByteTrie::kNoValue) return give_up();
    ids.push_back(best);
    begin = best_end;
  }
}

}  // namespace quire

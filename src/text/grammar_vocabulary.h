// The bytes of every token of a vocabulary, as a tree in reading order, for computing which tokens a grammar allows.
// Made once per model (some ten milliseconds) and shared by all matchers; immutable, any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"

namespace quire {

class Tokenizer;

namespace grammar_internal {
class TokenSetStore;
}

class GrammarVocabulary {
 public:
  using Ptr = std::shared_ptr<const GrammarVocabulary>;

  // Of what is computed for rules as they are met, and kept for all grammars that have them.
  static constexpr size_t kMaxTokenSetBytes = size_t{64} << 20;

  ~GrammarVocabulary();
  GrammarVocabulary(const GrammarVocabulary&) = delete;
  GrammarVocabulary& operator=(const GrammarVocabulary&) = delete;

  struct Token {
    std::string bytes;        // empty: never allowed as text
    bool is_special = false;  // never allowed as text, only where a grammar names it by `bytes`
  };

  // Token i has id i.
  static Result<Ptr> create(std::span<const Token> tokens);
  static Result<Ptr> create(const Tokenizer& tokenizer);

  int32_t num_tokens() const { return static_cast<int32_t>(token_node_.size()); }
  // Words of 32 bits that a mask over the vocabulary needs.
  size_t num_mask_words() const { return (token_node_.size() + 31) / 32; }
  // The control token with this text, or -1.
  int32_t find_special(std::string_view text) const;
  // Empty for control tokens, tokens without text, and ids outside.
  std::string_view token_bytes(int32_t id) const;
  size_t max_token_bytes() const { return max_token_bytes_; }
  size_t num_bytes() const;  // with the token sets that it keeps

  // What matchers have computed with this vocabulary. Locks inside.
  grammar_internal::TokenSetStore& token_set_store() const { return *token_set_store_; }

  // The tree in preorder. A node stands for the bytes from the root to it; its subtree is [node, subtree_end(node)).
  // Node 0 is the root and has no byte.
  size_t num_nodes() const { return node_byte_.size(); }
  uint8_t node_byte(size_t node) const { return node_byte_[node]; }
  uint16_t node_depth(size_t node) const { return node_depth_[node]; }
  uint32_t subtree_end(size_t node) const { return subtree_end_[node]; }
  uint32_t node_parent(size_t node) const { return node_parent_[node]; }
  // Which classes of bytes occur below the node: bit byte_class(b) is set if byte b may.
  uint64_t classes_below(size_t node) const { return classes_below_[node]; }
  static int byte_class(uint8_t byte);  // 0 to 63
  // The ids of all tokens below the node, itself aside.
  std::span<const int32_t> tokens_below(size_t node) const {
    return {node_token_ids_.data() + first_token_[node + 1], first_token_[subtree_end_[node]] - first_token_[node + 1]};
  }
  // The ids of the tokens with exactly the bytes of the node.
  std::span<const int32_t> node_tokens(size_t node) const {
    return {node_token_ids_.data() + first_token_[node], first_token_[node + 1] - first_token_[node]};
  }

 private:
  GrammarVocabulary();
  void add_texts(std::span<const Token> tokens, std::span<const int32_t> text_ids);
  void add_tree(std::span<const Token> tokens, std::span<const int32_t> sorted_ids);

  std::vector<uint8_t> node_byte_;
  std::vector<uint16_t> node_depth_;
  std::vector<uint32_t> subtree_end_;
  std::vector<uint32_t> node_parent_;
  std::vector<uint64_t> classes_below_;
  std::vector<uint32_t> first_token_;  // num_nodes + 1
  std::vector<int32_t> node_token_ids_;
  std::vector<int32_t> token_node_;   // by id; -1: none
  std::string text_;                  // the bytes of all tokens, one behind the other
  std::vector<uint32_t> text_begin_;  // num_tokens + 1
  std::unordered_map<std::string, int32_t> special_ids_;
  size_t max_token_bytes_ = 0;
  std::unique_ptr<grammar_internal::TokenSetStore> token_set_store_;
};

}  // namespace quire

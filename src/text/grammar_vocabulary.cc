#include "text/grammar_vocabulary.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "text/grammar_token_sets.h"
#include "text/tokenizer.h"

namespace quire {
namespace {

// A depth fits 16 bits. Longer tokens are never allowed, which no vocabulary notices.
constexpr size_t kMaxTokenBytes = 4096;

}  // namespace

GrammarVocabulary::GrammarVocabulary() : token_set_store_(std::make_unique<grammar_internal::TokenSetStore>()) {}
GrammarVocabulary::~GrammarVocabulary() = default;

Result<GrammarVocabulary::Ptr> GrammarVocabulary::create(std::span<const Token> tokens) {
  if (tokens.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return invalid_argument("a vocabulary of more than 2^31 tokens");
  }
  std::shared_ptr<GrammarVocabulary> vocabulary(new GrammarVocabulary());
  size_t num_text_bytes = 0;
  std::vector<int32_t> ids;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const Token& token = tokens[i];
    const auto id = static_cast<int32_t>(i);
    const bool is_text = !token.is_special && !token.bytes.empty() && token.bytes.size() <= kMaxTokenBytes;
    if (token.is_special && !token.bytes.empty()) vocabulary->special_ids_.try_emplace(token.bytes, id);
    if (is_text) {
      ids.push_back(id);
      num_text_bytes += token.bytes.size();
      vocabulary->max_token_bytes_ = std::max(vocabulary->max_token_bytes_, token.bytes.size());
    }
  }
  if (num_text_bytes > std::numeric_limits<uint32_t>::max() / 2) {
    return invalid_argument("a vocabulary with more than 2 GB of text");
  }
  vocabulary->add_texts(tokens, ids);
  std::sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
    const std::string& left = tokens[static_cast<size_t>(a)].bytes;
    const std::string& right = tokens[static_cast<size_t>(b)].bytes;
    return left != right ? left < right : a < b;
  });
  vocabulary->add_tree(tokens, ids);
  return Ptr(std::move(vocabulary));
}

Result<GrammarVocabulary::Ptr> GrammarVocabulary::create(const Tokenizer& tokenizer) {
  std::vector<Token> tokens(static_cast<size_t>(tokenizer.vocab_size()));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    tokens[i].bytes = tokenizer.piece(id);
    // The unknown token stands for no text of its own.
    tokens[i].is_special = tokenizer.is_special(id) || id == tokenizer.unknown_id();
  }
  return create(tokens);
}

void GrammarVocabulary::add_texts(std::span<const Token> tokens, std::span<const int32_t> text_ids) {
  token_node_.assign(tokens.size(), -1);
  text_begin_.reserve(tokens.size() + 1);
  size_t next = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    text_begin_.push_back(static_cast<uint32_t>(text_.size()));
    if (next == text_ids.size() || text_ids[next] != static_cast<int32_t>(i)) continue;
    text_ += tokens[i].bytes;
    ++next;
  }
  text_begin_.push_back(static_cast<uint32_t>(text_.size()));
}

void GrammarVocabulary::add_tree(std::span<const Token> tokens, std::span<const int32_t> sorted_ids) {
  std::vector<uint32_t> path{0};  // the nodes from the root to the latest token's
  auto open_node = [this](uint8_t byte, uint16_t depth, uint32_t parent) {
    node_byte_.push_back(byte);
    node_depth_.push_back(depth);
    node_parent_.push_back(parent);
    subtree_end_.push_back(0);
    first_token_.push_back(static_cast<uint32_t>(node_token_ids_.size()));
    return static_cast<uint32_t>(node_byte_.size()) - 1;
  };
  open_node(0, 0, 0);
  auto close_to = [&](size_t depth) {
    while (path.size() > depth + 1) {
      subtree_end_[path.back()] = static_cast<uint32_t>(node_byte_.size());
      path.pop_back();
    }
  };
  std::string_view previous;
  for (int32_t id : sorted_ids) {
    const std::string_view bytes = tokens[static_cast<size_t>(id)].bytes;
    const auto [a, b] = std::mismatch(previous.begin(), previous.end(), bytes.begin(), bytes.end());
    close_to(static_cast<size_t>(b - bytes.begin()));
    for (size_t depth = path.size(); depth <= bytes.size(); ++depth) {
      path.push_back(open_node(static_cast<uint8_t>(bytes[depth - 1]), static_cast<uint16_t>(depth), path.back()));
    }
    node_token_ids_.push_back(id);
    token_node_[static_cast<size_t>(id)] = static_cast<int32_t>(path.back());
    previous = bytes;
  }
  close_to(0);
  subtree_end_[0] = static_cast<uint32_t>(node_byte_.size());
  first_token_.push_back(static_cast<uint32_t>(node_token_ids_.size()));
  classes_below_.assign(node_byte_.size(), 0);
  for (size_t node = node_byte_.size(); node-- > 1;) {
    classes_below_[node_parent_[node]] |= classes_below_[node] | uint64_t{1} << byte_class(node_byte_[node]);
  }
}

// Letters and digits are three classes, each other sign of ASCII one, so that what ends a word or a string stands
// alone.
int GrammarVocabulary::byte_class(uint8_t byte) {
  if (byte >= 'a' && byte <= 'z') return 0;
  if (byte >= 'A' && byte <= 'Z') return 1;
  if (byte >= '0' && byte <= '9') return 2;
  if (byte >= 0xC0) return 3;
  if (byte >= 0x80) return 4;
  if (byte == '\t' || byte == '\n' || byte == '\r') return 5 + (byte == '\t') + 2 * (byte == '\n');
  if (byte < 0x20 || byte == 0x7F) return 8;
  // 33 signs in four stretches.
  const int sign = byte < '0'   ? byte - 0x20
                   : byte < 'A' ? byte - '9' + 15
                   : byte < 'a' ? byte - 'Z' + 22
                                : byte - 'z' + 28;
  return 9 + sign;
}

int32_t GrammarVocabulary::find_special(std::string_view text) const {
  const auto it = special_ids_.find(std::string(text));
  return it == special_ids_.end() ? -1 : it->second;
}

std::string_view GrammarVocabulary::token_bytes(int32_t id) const {
  if (id < 0 || id >= num_tokens()) return {};
  const auto i = static_cast<size_t>(id);
  return std::string_view(text_).substr(text_begin_[i], text_begin_[i + 1] - text_begin_[i]);
}

size_t GrammarVocabulary::num_bytes() const {
  return sizeof(*this) + num_nodes() * (1 + 2 + 4 + 4 + 4 + 8) + node_token_ids_.size() * 4 + token_node_.size() * 8 +
         text_.size() + token_set_store_->num_bytes();
}

}  // namespace quire

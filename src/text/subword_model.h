// The last stage of encoding: one piece of pre-tokenized text → ids. BPE, unigram and WordPiece implement it; Tokenizer
// calls it for each piece. Models are immutable; all working memory sits in the caller's SubwordScratch.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "text/token_table.h"

namespace quire {

// Remembers the ids of short pieces: most words of a text repeat. Direct-mapped, one cache line a slot, fixed size.
class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 22;
  static constexpr size_t kMaxIds = 8;

  // Appends the ids and says true where the word is known.
  bool lookup(std::string_view word, uint64_t hash, std::vector<int32_t>& ids) const {
    if (slots_.empty()) return false;
    const Slot& slot = slots_[hash % kNumSlots];
    if (slot.hash != hash || slot.num_bytes != word.size() || slot.num_ids == kVacant ||
        std::memcmp(slot.bytes, word.data(), word.size()) != 0) {
      return false;
    }
    ids.insert(ids.end(), slot.ids, slot.ids + slot.num_ids);
    return true;
  }

  void store(std::string_view word, uint64_t hash, const int32_t* ids, size_t num_ids) {
    if (num_ids > kMaxIds) return;
    if (slots_.empty()) slots_.resize(kNumSlots);
    Slot& slot = slots_[hash % kNumSlots];
    slot.hash = hash;
    slot.num_bytes = static_cast<uint8_t>(word.size());
    slot.num_ids = static_cast<uint8_t>(num_ids);
    std::memcpy(slot.bytes, word.data(), word.size());
    std::memcpy(slot.ids, ids, num_ids * sizeof(int32_t));
  }

 private:
  static constexpr size_t kNumSlots = 8192;
  static constexpr uint8_t kVacant = 0xFF;
  struct Slot {
    uint64_t hash = 0;
    uint8_t num_bytes = 0;
    uint8_t num_ids = kVacant;
    char bytes[kMaxWordBytes] = {};
    int32_t ids[kMaxIds] = {};
  };
  static_assert(sizeof(Slot) == 64);
  std::vector<Slot> slots_;
};

struct SubwordScratch {
  WordCache cache;
  bool use_cache = true;

  // A possible merge of a long piece: the pair it joins and where.
  struct Candidate {
    uint32_t rank;
    uint32_t position;
    int32_t left_id;
    int32_t right_id;
    int32_t merged_id;
  };
  std::vector<int32_t> symbols;
  std::vector<uint32_t> previous;
  std::vector<uint32_t> next;
  std::vector<Candidate> candidates;

  // Unigram: the best way to reach each byte.
  struct PathNode {
    double score;
    uint32_t begin;
    int32_t id;
  };
  std::vector<PathNode> path;
  std::vector<int32_t> reversed_ids;
};

class SubwordModel {
 public:
  virtual ~SubwordModel() = default;

  // Appends the ids of one piece of valid UTF-8.
  virtual void encode(std::string_view piece, SubwordScratch& scratch, std::vector<int32_t>& ids) const = 0;
};

}  // namespace quire

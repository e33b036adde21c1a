// Byte-pair encoding of one piece: symbols, then the merge of lowest rank (leftmost among equals) until none applies.
// One engine serves byte-level BPE (symbols are bytes), character BPE with byte fallback, and SentencePiece BPE, whose
// merge ranks come from token scores. O(n log n) in the piece, no recursion. Immutable, shared by threads.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/subword_model.h"
#include "text/token_table.h"

namespace quire {

struct BpeOptions {
  bool is_byte_level = false;      // token texts are raw bytes and any byte string may be a token
  bool has_byte_fallback = false;  // a character without a token becomes its <0xNN> tokens
  bool fuses_unknown = false;      // neighbouring unknown characters become one unknown token
  bool ignores_merges = false;     // a piece that is itself a token is taken as it is
  int32_t unknown_id = -1;
};

struct BpeMerge {
  int32_t left_id;
  int32_t right_id;
  int32_t merged_id;
  uint32_t rank;
};

class BpeModel : public SubwordModel {
 public:
  // `vocabulary` outlives the model. `byte_ids` are the <0xNN> tokens (-1: none), for byte fallback. Of two merges of
  // the same pair the first stays.
  BpeModel(const TokenTable& vocabulary, const std::vector<BpeMerge>& merges, const std::array<int32_t, 256>& byte_ids,
           BpeOptions options);

  void encode(std::string_view piece, SubwordScratch& scratch, std::vector<int32_t>& ids) const override;

 private:
  void encode_chunk(std::string_view chunk, SubwordScratch& scratch, std::vector<int32_t>& ids) const;
  void make_symbols(std::string_view chunk, std::vector<int32_t>& symbols) const;
  void merge_short(std::vector<int32_t>& symbols) const;
  void merge_long(SubwordScratch& scratch) const;
  void add_fallback(std::string_view character, bool& has_pending_unknown, std::vector<int32_t>& symbols) const;
  bool can_join(char32_t left, char32_t right) const;

  const TokenTable& vocabulary_;
  BpeOptions options_;
  PairTable merges_;                   // (left, right) → rank, merged
  std::array<int32_t, 256> byte_ids_;  // byte level: the token of each byte; else: the <0xNN> token
  bool has_all_bytes_ = false;

  // Character BPE splits a text where no merge can ever join, so that words stay short and repeat. A boundary is such a
  // place when no merge has this last and first character at its seam.
  bool splits_at_seams_ = false;
  PairTable seams_;
  std::array<bool, 128 * 128> ascii_seams_ = {};
};

}  // namespace quire

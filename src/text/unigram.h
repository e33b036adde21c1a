// Unigram segmentation: of all ways to cut a piece into tokens the one whose scores sum highest (Viterbi). Linear in
// the piece for a given vocabulary; no recursion. Immutable, shared by threads.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/subword_model.h"
#include "text/token_table.h"

namespace quire {

struct UnigramOptions {
  bool has_byte_fallback = false;  // unknown characters become their <0xNN> tokens
  int32_t unknown_id = -1;
};

class UnigramModel : public SubwordModel {
 public:
  // `vocabulary` outlives the model; its findable texts are the pieces. `scores` are log-probabilities by id.
  UnigramModel(const TokenTable& vocabulary, std::vector<double> scores, const std::array<int32_t, 256>& byte_ids,
               UnigramOptions options);

  void encode(std::string_view piece, SubwordScratch& scratch, std::vector<int32_t>& ids) const override;

 private:
  void encode_chunk(std::string_view chunk, SubwordScratch& scratch, std::vector<int32_t>& ids) const;

  std::vector<double> scores_;
  ByteTrie trie_;
  std::array<int32_t, 256> byte_ids_;
  UnigramOptions options_;
  double unknown_score_ = 0;
};

}  // namespace quire

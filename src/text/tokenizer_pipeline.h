// A tokenizer as data: what the readers of GGUF vocabularies and of tokenizer.json make, and what Tokenizer runs.
// Nothing here decides anything; const once built.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/added_tokens.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/subword_model.h"
#include "text/token_table.h"
#include "text/tokenizer_data.h"

namespace quire {

struct TokenizerPipeline {
  std::string kind;  // for people: "byte-level BPE (llama-bpe)", …

  std::unique_ptr<TokenTable> vocabulary = std::make_unique<TokenTable>();  // as the model matches them
  std::vector<AddedToken> added_tokens;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<SubwordModel> model;

  std::vector<int32_t> prefix_ids;  // BOS where the model wants it
  std::vector<int32_t> suffix_ids;  // EOS likewise

  // Decoding: the bytes that each id stands for (added tokens: their content), and what happens around them.
  std::vector<std::string> pieces;
  std::vector<bool> is_special;
  size_t num_spaces_stripped_at_start = 0;  // SentencePiece: the space that encoding put in front
  std::string piece_separator;              // WordPiece and vocabularies without a decoder: a space between tokens
  std::string continuation_prefix;          // a piece with this prefix joins the one before ("##")
  bool cleans_up_spaces = false;            // WordPiece: no space before punctuation and inside contractions

  int32_t bos_id = TokenizerData::kNoId;
  int32_t eos_id = TokenizerData::kNoId;
  int32_t unknown_id = TokenizerData::kNoId;
  int32_t padding_id = TokenizerData::kNoId;
  std::vector<int32_t> end_of_turn_ids;  // eos, eot, eom, and control tokens known to end a turn
};

// From a GGUF file's metadata (tokenizer_gguf.cc).
Result<TokenizerPipeline> make_pipeline(const TokenizerData& data);
// From tokenizer.json and, where there is one, tokenizer_config.json (tokenizer_json.cc).
Result<TokenizerPipeline> make_pipeline_from_json(std::string_view tokenizer_json,
                                                  std::string_view tokenizer_config_json);

// Fills end_of_turn_ids: the given ids (-1: none), and control tokens whose text is one with which chat models end
// their turn.
void collect_end_of_turn_ids(std::vector<int32_t> named_ids, TokenizerPipeline& pipe);

// GPT-2's printable alphabet for bytes: the text of a byte-level token → its bytes.
class ByteAlphabet {
 public:
  ByteAlphabet();
  // False where a character is not in the alphabet.
  bool decode(std::string_view text, std::string& bytes) const;

 private:
  std::array<int16_t, 0x144> byte_of_;
};

// "<0x0A>" → 10; -1 for anything else.
int parse_byte_token(std::string_view text);

}  // namespace quire

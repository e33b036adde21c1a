// Text → token ids and back. The one interface that the server, the commands and the app see: byte-level BPE,
// SentencePiece BPE, unigram and WordPiece vocabularies, from a GGUF file's metadata or from a Hugging Face
// tokenizer.json. For text as it streams out of a model use Detokenizer (detokenizer.h). Immutable: any number of
// threads may use one Tokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer_data.h"

namespace quire {

struct TokenizerPipeline;

// A stretch of a prompt. Only bytes that may be special become control tokens: the bytes of a chat template may, those
// of messages and tool results may not, so that no user can forge the end of a turn. Words may run across the borders
// of spans.
struct TextSpan {
  std::string_view text;
  bool may_be_special = false;
};

struct EncodeOptions {
  // BOS in front and EOS behind, where the vocabulary asks for them.
  bool adds_bos_eos = true;
  // No BOS in front of text that opens with the BOS marker itself, as rendered chat templates do. Raw prompts leave it
  // off and get what Hugging Face gives.
  bool keeps_single_bos = false;
  // encode(text) only: control tokens in the text are recognised. Off: all of it is plain text.
  bool recognizes_special = true;
};

struct DecodeOptions {
  bool skips_special = true;
  // The ids begin a text: SentencePiece's leading space goes. Off for ids that continue one.
  bool is_at_start = true;
};

// Working memory of encode, for reuse between calls of one thread at a time: with it repeated words cost little.
// Belongs to the Tokenizer that made it.
class EncodeScratch {
 public:
  ~EncodeScratch();

 private:
  friend class Tokenizer;
  EncodeScratch();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class Tokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> create(const TokenizerData& data);
  // The config's text may be empty.
  static Result<std::unique_ptr<Tokenizer>> create_from_json(std::string_view tokenizer_json,
                                                             std::string_view tokenizer_config_json);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Ill-formed UTF-8 counts as U+FFFD, one for each sequence that Unicode calls maximal; NUL is a character like any
  // other. Fails for text above 1 GiB, and where a pattern of the file's own proves too hard.
  Result<std::vector<int32_t>> encode(std::string_view text, const EncodeOptions& options = {},
                                      EncodeScratch* scratch = nullptr) const;
  Result<std::vector<int32_t>> encode(std::span<const TextSpan> spans, const EncodeOptions& options,
                                      EncodeScratch* scratch = nullptr) const;
  std::unique_ptr<EncodeScratch> create_scratch() const;

  // Always valid UTF-8: what a sequence of ids leaves ill-formed is U+FFFD. Ids outside the vocabulary give nothing.
  std::string decode(std::span<const int32_t> ids, const DecodeOptions& options = {}) const;

  // The bytes that an id adds to a text; empty for ids outside the vocabulary. Not always whole characters.
  std::string_view piece(int32_t id) const;
  // Control tokens: BOS, markers of turns and the like.
  bool is_special(int32_t id) const;
  // The id of a token by its exact text ("<|im_end|>"), or -1. Plain tokens are named by the bytes they stand for.
  int32_t find_token(std::string_view text) const;

  // One above the highest id. A model's embedding may have more rows.
  int32_t vocab_size() const;
  int32_t bos_id() const;  // -1: none, here and below
  int32_t eos_id() const;
  int32_t unknown_id() const;
  int32_t padding_id() const;
  // Ids that end a turn, ascending: EOS, and control tokens with which chat models close theirs.
  const std::vector<int32_t>& end_of_turn_ids() const;
  bool adds_bos() const;
  bool adds_eos() const;
  // What it is, for people: "byte-level BPE (smollm)".
  const std::string& kind() const;

 private:
  friend class Detokenizer;
  struct Impl;

  explicit Tokenizer(TokenizerPipeline pipeline);
  Status encode_marked(std::string& text, std::string& marks, EncodeScratch::Impl& scratch,
                       std::vector<int32_t>& ids) const;
  Status encode_between(std::string_view text, std::string_view marks, bool is_at_start, EncodeScratch::Impl& scratch,
                        std::vector<int32_t>& ids) const;
  Status encode_plain(std::string_view text, bool is_at_start, EncodeScratch::Impl& scratch,
                      std::vector<int32_t>& ids) const;
  const TokenizerPipeline& pipeline() const;

  std::unique_ptr<const Impl> impl_;
};

}  // namespace quire

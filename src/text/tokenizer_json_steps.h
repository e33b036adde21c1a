// The parts of a tokenizer.json that are lists of steps, normalizers and pre-tokenizers, and what is gathered while
// such a file is read. Shared by tokenizer_json.cc, which owns the rest, and tokenizer_json_steps.cc; nobody else.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/json_reader.h"
#include "text/tokenizer_pipeline.h"

namespace quire {

// What is gathered while the file is read, beside the pipeline itself.
struct JsonTokenizer {
  TokenizerPipeline pipe;
  std::vector<std::string> vocabulary_texts;  // by id, as the file spells them; empty: no token
  std::vector<double> scores;                 // unigram
  int64_t id_limit = 0;                       // ids at or above it are refused
  bool is_byte_level = false;
  std::vector<NormalizerStep> normalizer_steps;
  std::vector<PreTokenizerStep> pre_tokenizer_steps;
};

// The error for what the reader does not know.
Status unknown_part(const std::string& part, std::string_view type);

Status read_normalizer(const JsonValue& value, JsonTokenizer& out);
Status read_pre_tokenizer(const JsonValue& value, JsonTokenizer& out);

// {"String": "…"} or {"Regex": "…"}: fills one of the two.
Status read_pattern(const JsonValue& pattern, const std::string& what, std::string& literal,
                    std::shared_ptr<const SplitRegex>& regex);

// Of a Metaspace, pre-tokenizer or decoder.
Result<PreTokenizerStep::PrependScheme> read_prepend_scheme(const JsonValue& value);

}  // namespace quire

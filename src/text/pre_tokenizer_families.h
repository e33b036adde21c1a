// The pre-tokenizers of model families, by the name that GGUF files give in tokenizer.ggml.pre. Names and patterns are
// facts of the published tokenizers. Called when a tokenizer is made.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/pre_tokenizer.h"

namespace quire {

struct PreTokenizerFamily {
  std::vector<PreTokenizerStep> steps;
  bool ignores_merges = false;       // a whole piece that is a token is taken as it is
  bool adds_bos_by_default = false;  // where the file does not say
  bool normalizes_nfc = false;
};

// An unknown name is an error that names it.
Result<PreTokenizerFamily> find_pre_tokenizer_family(std::string_view name);

// GPT-2's pattern, which ByteLevel uses by itself.
std::string_view gpt2_split_pattern();

}  // namespace quire

// What a GGUF file says about its tokenizer, as plain data: the app copies it from the metadata keys named below, and
// Tokenizer::create reads it. Text does not include weights, so this struct is the whole contract between the two.
// Not for tokenizer.json, which has a reader of its own (tokenizer_json.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace quire {

// tokenizer.ggml.token_type
enum class TokenType : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

struct TokenizerData {
  static constexpr int32_t kNoId = -1;

  std::string model;  // tokenizer.ggml.model: "gpt2", "llama", "t5", "gemma4", "bert"
  std::string pre;    // tokenizer.ggml.pre: the family of the pre-tokenizer; empty where the key is absent

  std::vector<std::string> tokens;            // tokenizer.ggml.tokens
  std::vector<float> scores;                  // tokenizer.ggml.scores; empty where absent
  std::vector<int32_t> token_types;           // tokenizer.ggml.token_type; empty where absent
  std::vector<std::string> merges;            // tokenizer.ggml.merges: "left right"
  std::vector<uint8_t> precompiled_charsmap;  // tokenizer.ggml.precompiled_charsmap

  // tokenizer.ggml.{bos,eos,eot,eom,unknown,padding,seperator,cls,mask}_token_id
  int32_t bos_id = kNoId;
  int32_t eos_id = kNoId;
  int32_t eot_id = kNoId;
  int32_t eom_id = kNoId;
  int32_t unknown_id = kNoId;
  int32_t padding_id = kNoId;
  int32_t separator_id = kNoId;
  int32_t cls_id = kNoId;
  int32_t mask_id = kNoId;

  // tokenizer.ggml.{add_bos_token,add_eos_token,add_space_prefix,remove_extra_whitespaces}; absent: the model's custom
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  std::optional<bool> add_space_prefix;
  std::optional<bool> remove_extra_whitespaces;
};

// Counts that agree, ids inside the vocabulary, flags that can be obeyed. The message names the key that is wrong.
// A token text that occurs twice is no error: the lowest id is the one that encoding gives, and each id decodes.
Status validate(const TokenizerData& data);

}  // namespace quire

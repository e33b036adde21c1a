// The checks that every GGUF vocabulary passes before any of it is used.
#include "text/tokenizer_data.h"

#include <cmath>
#include <limits>

namespace quire {
namespace {

// Searches cost up to the longest token at each byte; real vocabularies stay under 300 bytes.
constexpr size_t kMaxTokenBytes = 1024;

Status check_count(const char* key, size_t count, size_t num_tokens) {
  if (count == 0 || count == num_tokens) return ok_status();
  return invalid_argument("the tokenizer's " + std::string(key) + " has " + std::to_string(count) + " entries for " +
                          std::to_string(num_tokens) +
                          " tokens; the file is damaged or was converted wrongly: convert or download it again");
}

Status check_id(const char* key, int32_t id, size_t num_tokens) {
  if (id == TokenizerData::kNoId || (id >= 0 && static_cast<size_t>(id) < num_tokens)) return ok_status();
  return invalid_argument("the tokenizer's " + std::string(key) + " is " + std::to_string(id) +
                          ", outside its vocabulary of " + std::to_string(num_tokens) + " tokens");
}

}  // namespace

Status validate(const TokenizerData& data) {
  const size_t num_tokens = data.tokens.size();
  if (data.model.empty()) return invalid_argument("the file has no tokenizer (tokenizer.ggml.model is missing)");
  if (num_tokens == 0)
    return invalid_argument("the tokenizer has no tokens (tokenizer.ggml.tokens is missing or empty)");
  if (num_tokens > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return invalid_argument("the tokenizer has more than 2^31 tokens");
  }
  RETURN_IF_ERROR(check_count("scores", data.scores.size(), num_tokens));
  RETURN_IF_ERROR(check_count("token_type", data.token_types.size(), num_tokens));
  for (size_t i = 0; i < data.scores.size(); ++i) {
    if (std::isnan(data.scores[i])) {
      return invalid_argument("the tokenizer's score of token " + std::to_string(i) + " is not a number");
    }
  }
  for (size_t i = 0; i < data.token_types.size(); ++i) {
    if (data.token_types[i] < 0 || data.token_types[i] > static_cast<int32_t>(TokenType::kByte)) {
      return invalid_argument("the tokenizer's token_type of token " + std::to_string(i) + " is " +
                              std::to_string(data.token_types[i]) + "; types 1 to 6 are known");
    }
  }
  for (size_t i = 0; i < num_tokens; ++i) {
    if (data.tokens[i].size() > kMaxTokenBytes) {
      return invalid_argument("the tokenizer's token " + std::to_string(i) + " is longer than 1024 bytes");
    }
  }
  RETURN_IF_ERROR(check_id("bos_token_id", data.bos_id, num_tokens));
  RETURN_IF_ERROR(check_id("eos_token_id", data.eos_id, num_tokens));
  RETURN_IF_ERROR(check_id("eot_token_id", data.eot_id, num_tokens));
  RETURN_IF_ERROR(check_id("eom_token_id", data.eom_id, num_tokens));
  RETURN_IF_ERROR(check_id("unknown_token_id", data.unknown_id, num_tokens));
  RETURN_IF_ERROR(check_id("padding_token_id", data.padding_id, num_tokens));
  RETURN_IF_ERROR(check_id("seperator_token_id", data.separator_id, num_tokens));
  RETURN_IF_ERROR(check_id("cls_token_id", data.cls_id, num_tokens));
  RETURN_IF_ERROR(check_id("mask_token_id", data.mask_id, num_tokens));
  if (data.add_bos.value_or(false) && data.bos_id == TokenizerData::kNoId && data.cls_id == TokenizerData::kNoId) {
    return invalid_argument("the tokenizer asks for a BOS token (add_bos_token) but names none (bos_token_id)");
  }
  if (data.add_eos.value_or(false) && data.eos_id == TokenizerData::kNoId &&
      data.separator_id == TokenizerData::kNoId) {
    return invalid_argument("the tokenizer asks for an EOS token (add_eos_token) but names none (eos_token_id)");
  }
  return ok_status();
}

}  // namespace quire

// Small vocabularies for the tests of this folder. Test code only.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer_data.h"
#include "text/utf8.h"

namespace quire::test {

// GPT-2's printable spelling of one byte.
inline std::string spell_byte(int byte) {
  std::string out;
  const auto is_printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
  };
  if (is_printable(byte)) {
    append_utf8(static_cast<char32_t>(byte), out);
    return out;
  }
  char32_t next = 0x100;
  for (int b = 0; b < byte; ++b) next += is_printable(b) ? 0 : 1;
  append_utf8(next, out);
  return out;
}

inline std::string spell_bytes(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) out += spell_byte(static_cast<unsigned char>(c));
  return out;
}

// Bytes 0-255 have the ids 0-255; then one token a merge; then markers of the given types.
inline TokenizerData byte_level_data(const std::vector<std::pair<std::string, std::string>>& merges,
                                     const std::vector<std::pair<std::string, TokenType>>& markers,
                                     const std::string& pre = "qwen2") {
  TokenizerData data;
  data.model = "gpt2";
  data.pre = pre;
  for (int byte = 0; byte < 256; ++byte) data.tokens.push_back(spell_byte(byte));
  for (const auto& [left, right] : merges) {
    data.tokens.push_back(spell_bytes(left + right));
    data.merges.push_back(spell_bytes(left) + " " + spell_bytes(right));
  }
  data.token_types.assign(data.tokens.size(), static_cast<int32_t>(TokenType::kNormal));
  for (const auto& [text, type] : markers) {
    data.tokens.push_back(text);
    data.token_types.push_back(static_cast<int32_t>(type));
  }
  return data;
}

// <unk>, <s>, </s>, the 256 byte tokens, then (text, score).
inline TokenizerData sentencepiece_data(const std::vector<std::pair<std::string, float>>& pieces) {
  TokenizerData data;
  data.model = "llama";
  data.tokens = {"<unk>", "<s>", "</s>"};
  data.token_types = {2, 3, 3};
  const char* digits = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte) {
    data.tokens.push_back(std::string("<0x") + digits[byte / 16] + digits[byte % 16] + ">");
    data.token_types.push_back(6);
  }
  data.scores.assign(data.tokens.size(), 0.0f);
  for (const auto& [text, score] : pieces) {
    data.tokens.push_back(text);
    data.scores.push_back(score);
    data.token_types.push_back(1);
  }
  data.unknown_id = 0;
  data.bos_id = 1;
  data.eos_id = 2;
  return data;
}

}  // namespace quire::test

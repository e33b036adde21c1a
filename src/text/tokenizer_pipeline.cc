// Small helpers that both readers of tokenizer files share.
#include "text/tokenizer_pipeline.h"

#include <algorithm>
#include <iterator>

#include "text/utf8.h"

namespace quire {

namespace {

bool is_end_of_turn_text(std::string_view text) {
  static constexpr std::string_view kTexts[] = {"<|eot_id|>",
                                                "<|im_end|>",
                                                "<|end|>",
                                                "<end_of_turn>",
                                                "<|endoftext|>",
                                                "<|eom_id|>",
                                                "<EOT>",
                                                "_<EOT>",
                                                "<|return|>",
                                                "<|call|>",
                                                "<|end_of_text|>",
                                                "<turn|>",
                                                "<|END_OF_TURN_TOKEN|>",
                                                "<|eot|>",
                                                "<|eom|>",
                                                "<end_of_utterance>",
                                                "<｜end▁of▁sentence｜>",
                                                "<|end_of_turn|>",
                                                "<|endofturn|>",
                                                "</s>"};
  return std::find(std::begin(kTexts), std::end(kTexts), text) != std::end(kTexts);
}

}  // namespace

void collect_end_of_turn_ids(std::vector<int32_t> named_ids, TokenizerPipeline& pipe) {
  const bool has_return = std::any_of(pipe.added_tokens.begin(), pipe.added_tokens.end(),
                                      [](const AddedToken& token) { return token.content == "<|return|>"; });
  std::vector<int32_t> ends;
  for (const int32_t id : named_ids) {
    if (id >= 0) ends.push_back(id);
  }
  for (const AddedToken& token : pipe.added_tokens) {
    if (!token.is_special || !is_end_of_turn_text(token.content)) continue;
    // Where a vocabulary closes turns with <|return|>, <|end|> closes a message inside a turn.
    if (has_return && token.content == "<|end|>") continue;
    ends.push_back(token.id);
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  pipe.end_of_turn_ids = std::move(ends);
}

ByteAlphabet::ByteAlphabet() {
  // Bytes that print as themselves in Latin-1 stand for themselves; the others are U+0100 and on, in order.
  const auto is_printable = [](size_t byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
  };
  byte_of_.fill(-1);
  size_t next = 0x100;
  for (size_t byte = 0; byte < 256; ++byte) byte_of_[is_printable(byte) ? byte : next++] = static_cast<int16_t>(byte);
}

bool ByteAlphabet::decode(std::string_view text, std::string& bytes) const {
  bytes.clear();
  if (!is_valid_utf8(text)) return false;
  for (size_t i = 0; i < text.size();) {
    const DecodedCodePoint c = decode_code_point(text, i);
    if (c.value >= byte_of_.size() || byte_of_[c.value] < 0) return false;
    bytes.push_back(static_cast<char>(byte_of_[c.value]));
    i += c.num_bytes;
  }
  return true;
}

int parse_byte_token(std::string_view text) {
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
  const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; };
  const int high = digit(text[3]);
  const int low = digit(text[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace quire

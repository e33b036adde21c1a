#include "server/answer_text.h"

#include <algorithm>
#include <cstdio>

#include "text/utf8.h"

namespace quire {

std::string AnswerPiece::joined() const {
  std::string text;
  for (const Segment& segment : segments) text += segment.text;
  return text;
}

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; });
}

std::string shown_token(const Tokenizer& tokenizer, int32_t token_id) {
  const std::string_view bytes = tokenizer.piece(token_id);
  if (is_valid_utf8(bytes)) return std::string(bytes);
  std::string text = "bytes:";
  for (const char byte : bytes) {
    char escaped[8];
    std::snprintf(escaped, sizeof(escaped), "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(byte)));
    text += escaped;
  }
  return text;
}

Result<AnswerText> AnswerText::create(const Tokenizer& tokenizer, Options options) {
  ASSIGN_OR_RETURN(StopStringMatcher matcher,
                   StopStringMatcher::create(options.stop_strings, options.includes_stop_string));
  return AnswerText(tokenizer, std::move(options), std::move(matcher));
}

AnswerText::AnswerText(const Tokenizer& tokenizer, Options options, StopStringMatcher matcher)
    : tokenizer_(&tokenizer),
      options_(std::make_shared<const Options>(std::move(options))),
      // An answer goes on where the prompt ended.
      detokenizer_(tokenizer, {.skips_special = options_->skips_special, .is_at_start = false}),
      matcher_(std::move(matcher)) {}

bool AnswerText::add(int32_t token_id, const TokenLogprobs* logprobs, AnswerPiece& piece) {
  if (matcher_.is_stopped()) return true;
  ++num_tokens_;
  if (options_->has_logprobs && logprobs != nullptr) waiting_.push_back({*logprobs, num_characters_});
  std::string released;
  if (options_->is_marker && tokenizer_->is_special(token_id) && options_->is_marker(tokenizer_->piece(token_id))) {
    // A stop string does not reach across a marker.
    matcher_.finish(released);
    release(released, piece);
    piece.segments.push_back({std::string(tokenizer_->piece(token_id)), true});
  } else {
    const std::string text = detokenizer_.add(token_id);
    num_characters_ += count_characters(text);
    if (num_tokens_ <= options_->min_tokens) {
      released = text;
    } else {
      matcher_.add(text, released);
    }
    release(released, piece);
  }
  release_tokens(piece, matcher_.is_stopped());
  return matcher_.is_stopped();
}

void AnswerText::add_textless(const TokenLogprobs* logprobs) {
  if (matcher_.is_stopped()) return;
  ++num_tokens_;
  if (options_->has_logprobs && logprobs != nullptr) waiting_.push_back({*logprobs, num_characters_});
}

void AnswerText::finish(AnswerPiece& piece) {
  if (matcher_.is_stopped()) return;
  std::string released;
  const std::string text = detokenizer_.finish();
  num_characters_ += count_characters(text);
  if (!matcher_.add(text, released)) matcher_.finish(released);
  release(released, piece);
  release_tokens(piece, true);
}

const std::string* AnswerText::stop_string() const {
  if (!matcher_.is_stopped()) return nullptr;
  return &options_->stop_strings[static_cast<size_t>(matcher_.matched_index())];
}

void AnswerText::release(const std::string& text, AnswerPiece& piece) {
  if (text.empty()) return;
  num_released_ += count_characters(text);
  if (!piece.segments.empty() && !piece.segments.back().is_special) {
    piece.segments.back().text += text;
  } else {
    piece.segments.push_back({text, false});
  }
}

// A token goes with its first character. At the end those go too that had no text of their own, but not those of which
// a stop string took the text.
void AnswerText::release_tokens(AnswerPiece& piece, bool is_end) {
  size_t num_ready = 0;
  while (num_ready < waiting_.size() &&
         (waiting_[num_ready].text_offset < num_released_ || (is_end && !matcher_.is_stopped()))) {
    ++num_ready;
  }
  const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(num_ready);
  std::move(waiting_.begin(), end, std::back_inserter(piece.tokens));
  waiting_.erase(waiting_.begin(), end);
}

}  // namespace quire

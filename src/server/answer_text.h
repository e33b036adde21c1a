// Tokens of one choice become the text that a client gets: detokenized, cut at a stop string, with what the API tells
// of each token beside it. Knows nothing of JSON. One per choice; used by the request's strand. A copy of one that has
// seen nothing yet is a cheap way to another: what stop strings take is shared.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/request.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"

namespace quire {

// A token of the answer, told together with the text that it begins.
struct AnswerToken {
  TokenLogprobs logprobs;
  int64_t text_offset = 0;  // in characters, from the beginning of the answer's text
};

// What has become certain.
struct AnswerPiece {
  // Stretches of text; a control token that the reader of the answer wants to see stands alone.
  struct Segment {
    std::string text;
    bool is_special = false;
  };
  std::vector<Segment> segments;
  std::vector<AnswerToken> tokens;  // where log-probabilities were asked for

  bool is_empty() const { return segments.empty() && tokens.empty(); }
  std::string joined() const;
};

class AnswerText {
 public:
  struct Options {
    std::vector<std::string> stop_strings = {};
    bool includes_stop_string = false;
    int64_t min_tokens = 0;  // stop strings are looked for in what comes after so many
    bool skips_special = true;
    bool has_logprobs = false;
    // Which control tokens are segments of their own although they are skipped. Empty: none.
    std::function<bool(std::string_view piece)> is_marker = nullptr;
  };
  // The tokenizer must outlive it.
  static Result<AnswerText> create(const Tokenizer& tokenizer, Options options);

  // One token more. `logprobs` is null where there are none. True: a stop string is complete; later tokens do not
  // count.
  bool add(int32_t token_id, const TokenLogprobs* logprobs, AnswerPiece& piece);
  // A token that belongs to the answer and has no text: the one that stopped it. finish follows.
  void add_textless(const TokenLogprobs* logprobs);
  // The answer has ended without a stop string.
  void finish(AnswerPiece& piece);

  // Tokens that were added, up to the one that completed a stop string.
  int64_t num_tokens() const { return num_tokens_; }
  // The stop string that was found, or nullptr.
  const std::string* stop_string() const;

 private:
  AnswerText(const Tokenizer& tokenizer, Options options, StopStringMatcher matcher);
  void release(const std::string& text, AnswerPiece& piece);
  void release_tokens(AnswerPiece& piece, bool is_end);

  const Tokenizer* tokenizer_;
  std::shared_ptr<const Options> options_;
  Detokenizer detokenizer_;
  StopStringMatcher matcher_;
  std::vector<AnswerToken> waiting_;  // tokens whose text is not certain yet
  int64_t num_characters_ = 0;        // detokenized
  int64_t num_released_ = 0;          // of them
  int64_t num_tokens_ = 0;
};

// A token as the API shows it: its text, or "bytes:\xe2\x80" where it is a part of a character.
std::string shown_token(const Tokenizer& tokenizer, int32_t token_id);

int64_t count_characters(std::string_view text);

}  // namespace quire

// Text as it streams out of a model: feed ids, take text. Holds back the bytes of a character until it is whole, so
// that no piece ever ends inside one, and what comes out, joined, is what Tokenizer::decode gives. One per choice of a
// request; one thread at a time. For stop strings put StopStringMatcher (stop_strings.h) behind it.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace quire {

class Detokenizer {
 public:
  // The tokenizer must outlive it.
  explicit Detokenizer(const Tokenizer& tokenizer, const DecodeOptions& options = {});

  // Appends the text that is now certain to `out`.
  void add(int32_t id, std::string& out);
  std::string add(int32_t id);
  // The end: what is still held back is U+FFFD. The next add begins a new text.
  void finish(std::string& out);
  std::string finish();

 private:
  void add_bytes(std::string_view bytes, std::string& out);

  const Tokenizer* tokenizer_;
  DecodeOptions options_;
  std::string held_;                // the beginning of a character, at most three bytes
  size_t num_spaces_to_strip_ = 0;  // at the start of the text
  bool is_first_piece_ = true;
};

}  // namespace quire

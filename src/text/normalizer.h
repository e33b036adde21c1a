// What a tokenizer does to text before it looks for words: Unicode normal forms, case, accents, replacements,
// SentencePiece's compiled character map. A list of steps as data, built by the readers of tokenizer files; immutable,
// shared by threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/marked_text.h"
#include "text/precompiled_charsmap.h"
#include "text/split_regex.h"

namespace quire {

struct NormalizerStep {
  enum class Kind {
    kNfc,
    kNfd,
    kNfkc,
    kNfkd,
    kLowercase,
    kStripAccents,        // drops all marks (M*)
    kStripNonspacing,     // drops nonspacing marks (Mn)
    kPrepend,             // `content` before a text that is not empty
    kReplace,             // `pattern`, or matches of `regex`, become `content`
    kStripSpaces,         // white space at the ends
    kCharsmapGraphemes,   // Hugging Face: grapheme by grapheme, then character by character
    kNmt,                 // drops control characters, other spaces become ' '
    kBertCleanText,       // drops control characters, white space becomes ' '
    kBertSpaceIdeographs  // a space on both sides of each CJK ideograph
  };
  Kind kind;
  std::string pattern;
  std::string content;
  std::shared_ptr<const SplitRegex> regex;
  std::shared_ptr<const PrecompiledCharsmap> charsmap;
  bool strips_left = true;
  bool strips_right = true;
};

class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

  bool is_identity() const { return steps_.empty(); }

  // Fails only where a pattern of the tokenizer is too hard for the text.
  Status apply(MarkedText& text, SplitRegexScratch& scratch) const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace quire

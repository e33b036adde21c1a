// Cuts normalized text into the pieces that the subword model encodes one by one: words, numbers, runs of punctuation.
// A list of steps as data; each family of models has its own (pre_tokenizer_families.h), tokenizer.json spells its own
// out. Immutable, shared by threads; PreTokenizedText and the scratch belong to one call.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/split_regex.h"

namespace quire {

// What happens to the matches of a pattern and the text between them.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct PreTokenizerStep {
  enum class Kind {
    kSplitRegex,
    kSplitLiteral,
    kSplitPunctuation,  // ASCII punctuation and general category P*
    kSplitDigits,       // category N*
    kSplitWhiteSpace,   // White_Space
    kPrefixSpace,       // a space before each piece that does not begin with one
    kMetaspace          // ' ' becomes `content`; see `scheme`
  };
  enum class PrependScheme { kNever, kFirst, kAlways };

  Kind kind;
  std::shared_ptr<const SplitRegex> regex;
  std::string content;  // the literal, or the metaspace character
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool is_inverted = false;  // the text between the matches counts as the match
  PrependScheme scheme = PrependScheme::kNever;
  bool splits = true;  // metaspace: a piece begins at each metaspace character
};

struct PreTokenizedText {
  struct Range {
    size_t begin;
    size_t end;
  };
  std::string_view text;  // the input, or `storage` once a step has rewritten it
  std::string storage;
  std::vector<Range> pieces;
  // Working memory of the steps.
  std::vector<Range> next_pieces;
  std::string next_storage;
};

class PreTokenizer {
 public:
  PreTokenizer() = default;
  explicit PreTokenizer(std::vector<PreTokenizerStep> steps);

  // `text` must outlive `out`. `is_at_start`: the piece opens the whole input (Metaspace's scheme "first").
  Status apply(std::string_view text, bool is_at_start, PreTokenizedText& out, SplitRegexScratch& scratch) const;

 private:
  std::vector<PreTokenizerStep> steps_;
  bool has_regex_ = false;
};

}  // namespace quire

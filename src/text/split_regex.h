// One compiled pattern of a pre-tokenizer or normalizer (PCRE2 with JIT), in the dialect of tokenizer files: Unicode
// properties, `$` at line ends, `\s` = White_Space, `\p{Han}` and other scripts by bare name. Matching is bounded by a
// step limit: a pattern that explodes is an error, not a hang or a deep stack. The pattern is immutable and may be
// shared by threads; a SplitRegexScratch belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace quire {

class SplitRegexScratch {
 public:
  SplitRegexScratch();
  ~SplitRegexScratch();
  SplitRegexScratch(const SplitRegexScratch&) = delete;
  SplitRegexScratch& operator=(const SplitRegexScratch&) = delete;

 private:
  friend class SplitRegex;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class SplitRegex {
 public:
  static Result<std::shared_ptr<const SplitRegex>> compile(std::string_view pattern);
  ~SplitRegex();
  SplitRegex(const SplitRegex&) = delete;
  SplitRegex& operator=(const SplitRegex&) = delete;

  // A subject may hold characters newer than PCRE2's Unicode tables. This gives a copy of equal length in which each is
  // replaced by an older one of the same kind, or an empty string where the text itself will do. Matches of the copy
  // are matches of the text.
  static std::string with_known_characters(std::string_view valid_text);

  enum class Outcome { kMatch, kNoMatch, kTooHard };
  struct Match {
    Outcome outcome;
    size_t begin;
    size_t end;
  };
  // The first match at or after `offset` of valid UTF-8.
  Match find(std::string_view valid_text, size_t offset, SplitRegexScratch& scratch) const;

  const std::string& pattern() const { return pattern_; }

 private:
  SplitRegex() = default;

  std::string pattern_;
  void* code_ = nullptr;
  bool has_jit_ = false;
};

}  // namespace quire

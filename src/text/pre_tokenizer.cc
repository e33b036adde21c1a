// The steps of a pre-tokenizer. Each reads the pieces of the step before and writes the next ones; ranges into one
// string, no copies, except for the two steps that rewrite text.
#include "text/pre_tokenizer.h"

#include <algorithm>

#include "text/utf8.h"

namespace quire {
namespace {

using Kind = PreTokenizerStep::Kind;
using Range = PreTokenizedText::Range;

// Collects the alternating matches and gaps of one piece under a SplitBehavior.
class Splitter {
 public:
  Splitter(SplitBehavior behavior, bool is_inverted, std::vector<Range>& out)
      : behavior_(behavior), is_inverted_(is_inverted), first_(out.size()), out_(out) {}

  void add(size_t begin, size_t end, bool is_match) {
    if (begin == end) return;
    is_match = is_match != is_inverted_;
    switch (behavior_) {
      case SplitBehavior::kRemoved:
        if (!is_match) out_.push_back({begin, end});
        break;
      case SplitBehavior::kIsolated:
        out_.push_back({begin, end});
        break;
      case SplitBehavior::kContiguous:
        if (has_previous_ && is_match == was_match_) {
          out_.back().end = end;
        } else {
          out_.push_back({begin, end});
        }
        break;
      case SplitBehavior::kMergedWithPrevious:
        if (is_match && !was_match_ && out_.size() > first_) {
          out_.back().end = end;
        } else {
          out_.push_back({begin, end});
        }
        break;
      case SplitBehavior::kMergedWithNext:
        // A match joins the gap after it; of several matches in a row only the last does.
        if (!is_match && has_previous_ && was_match_) {
          out_.back().end = end;
        } else {
          out_.push_back({begin, end});
        }
        break;
    }
    was_match_ = is_match;
    has_previous_ = true;
  }

 private:
  SplitBehavior behavior_;
  bool is_inverted_;
  size_t first_;
  std::vector<Range>& out_;
  bool was_match_ = false;
  bool has_previous_ = false;
};

Status split_by_regex(const PreTokenizerStep& step, std::string_view subject, Range piece, SplitRegexScratch& scratch,
                      std::vector<Range>& out) {
  Splitter splitter(step.behavior, step.is_inverted, out);
  const std::string_view text = subject.substr(piece.begin, piece.end - piece.begin);
  size_t position = 0;
  size_t search_from = 0;
  while (search_from < text.size()) {
    const SplitRegex::Match match = step.regex->find(text, search_from, scratch);
    if (match.outcome == SplitRegex::Outcome::kTooHard) {
      return invalid_argument("the tokenizer's pattern \"" + step.regex->pattern() + "\" takes too long on this text");
    }
    if (match.outcome == SplitRegex::Outcome::kNoMatch) break;
    if (match.begin == match.end) {
      if (match.end >= text.size()) break;
      search_from = match.end + utf8_sequence_length(text[match.end]);
      continue;
    }
    splitter.add(piece.begin + position, piece.begin + match.begin, false);
    splitter.add(piece.begin + match.begin, piece.begin + match.end, true);
    position = search_from = match.end;
  }
  splitter.add(piece.begin + position, piece.end, false);
  return ok_status();
}

void split_by_literal(const PreTokenizerStep& step, std::string_view text, Range piece, std::vector<Range>& out) {
  Splitter splitter(step.behavior, step.is_inverted, out);
  size_t position = piece.begin;
  while (position < piece.end) {
    const size_t found = text.substr(0, piece.end).find(step.content, position);
    if (found == std::string_view::npos) break;
    splitter.add(position, found, false);
    splitter.add(found, found + step.content.size(), true);
    position = found + step.content.size();
  }
  splitter.add(position, piece.end, false);
}

// Every character of the kind is a match of its own; Contiguous joins them.
template <typename IsMatch>
void split_by_character(const PreTokenizerStep& step, std::string_view text, Range piece, std::vector<Range>& out,
                        IsMatch is_match) {
  Splitter splitter(step.behavior, step.is_inverted, out);
  size_t gap_begin = piece.begin;
  for (size_t i = piece.begin; i < piece.end;) {
    const DecodedCodePoint c = decode_code_point(text, i);
    if (is_match(c.value)) {
      splitter.add(gap_begin, i, false);
      splitter.add(i, i + c.num_bytes, true);
      gap_begin = i + c.num_bytes;
    }
    i += c.num_bytes;
  }
  splitter.add(gap_begin, piece.end, false);
}

bool is_split_punctuation(char32_t c) {
  const bool is_ascii = (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
  return is_ascii || (c >= 0x80 && is_punctuation(c));
}

void prefix_spaces(PreTokenizedText& out) {
  out.next_storage.clear();
  for (Range& piece : out.pieces) {
    const std::string_view text = out.text.substr(piece.begin, piece.end - piece.begin);
    piece.begin = out.next_storage.size();
    if (text.front() != ' ') out.next_storage.push_back(' ');
    out.next_storage.append(text);
    piece.end = out.next_storage.size();
  }
  std::swap(out.storage, out.next_storage);
  out.text = out.storage;
}

void apply_metaspace(const PreTokenizerStep& step, bool is_at_start, PreTokenizedText& out) {
  using Scheme = PreTokenizerStep::PrependScheme;
  std::string& storage = out.next_storage;
  storage.clear();
  out.next_pieces.clear();
  for (const Range& piece : out.pieces) {
    const std::string_view text = out.text.substr(piece.begin, piece.end - piece.begin);
    const bool is_first = is_at_start && piece.begin == 0;
    const size_t begin = storage.size();
    const bool prepends = step.scheme == Scheme::kAlways || (step.scheme == Scheme::kFirst && is_first);
    if (prepends && text.front() != ' ' && text.substr(0, step.content.size()) != step.content) storage += step.content;
    for (const char c : text) {
      if (c == ' ') {
        storage += step.content;
      } else {
        storage.push_back(c);
      }
    }
    if (!step.splits) {
      out.next_pieces.push_back({begin, storage.size()});
      continue;
    }
    PreTokenizerStep split = step;
    split.behavior = SplitBehavior::kMergedWithNext;
    split.is_inverted = false;
    split_by_literal(split, storage, {begin, storage.size()}, out.next_pieces);
  }
  std::swap(out.storage, out.next_storage);
  std::swap(out.pieces, out.next_pieces);
  out.text = out.storage;
}

}  // namespace

PreTokenizer::PreTokenizer(std::vector<PreTokenizerStep> steps) : steps_(std::move(steps)) {
  has_regex_ =
      std::any_of(steps_.begin(), steps_.end(), [](const auto& step) { return step.kind == Kind::kSplitRegex; });
}

Status PreTokenizer::apply(std::string_view text, bool is_at_start, PreTokenizedText& out,
                           SplitRegexScratch& scratch) const {
  out.text = text;
  out.pieces.clear();
  if (text.empty()) return ok_status();
  out.pieces.push_back({0, text.size()});
  std::string known = has_regex_ ? SplitRegex::with_known_characters(text) : std::string();
  for (const PreTokenizerStep& step : steps_) {
    if (step.kind == Kind::kPrefixSpace || step.kind == Kind::kMetaspace) {
      if (step.kind == Kind::kPrefixSpace) {
        prefix_spaces(out);
      } else {
        apply_metaspace(step, is_at_start, out);
      }
      if (has_regex_) known = SplitRegex::with_known_characters(out.text);
      continue;
    }
    out.next_pieces.clear();
    const std::string_view subject = known.empty() ? out.text : std::string_view(known);
    for (const Range& piece : out.pieces) {
      switch (step.kind) {
        case Kind::kSplitRegex:
          RETURN_IF_ERROR(split_by_regex(step, subject, piece, scratch, out.next_pieces));
          break;
        case Kind::kSplitLiteral:
          split_by_literal(step, out.text, piece, out.next_pieces);
          break;
        case Kind::kSplitPunctuation:
          split_by_character(step, out.text, piece, out.next_pieces, is_split_punctuation);
          break;
        case Kind::kSplitDigits:
          split_by_character(step, out.text, piece, out.next_pieces, is_numeric);
          break;
        default:
          split_by_character(step, out.text, piece, out.next_pieces, is_white_space);
          break;
      }
    }
    std::swap(out.pieces, out.next_pieces);
  }
  return ok_status();
}

}  // namespace quire

// The steps, each text → text. Marks follow: a byte of the output is open only if all bytes that it came from are.
#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>

#include "text/unicode_updates.h"
#include "text/utf8.h"

namespace quire {
namespace {

using Kind = NormalizerStep::Kind;

// Replacements may lengthen a text, but a tokenizer that makes it this much longer is out to fill the memory.
constexpr size_t kMaxGrowth = 32;
constexpr size_t kMaxGrowthBase = size_t{64} << 20;

bool is_too_long(const MarkedText& out, const MarkedText& in) {
  return out.text.size() > kMaxGrowthBase + kMaxGrowth * in.text.size();
}

Status growth_error() {
  return invalid_argument("the tokenizer's normalizer makes the text far longer than it is");
}

utf8proc_int32_t as_utf8proc(char32_t c) {
  return static_cast<utf8proc_int32_t>(c);
}

// Calls visit(code point, its bytes, its mark) for each character and collects what it appends.
template <typename Visit>
void map_characters(MarkedText& text, Visit visit) {
  MarkedText out;
  out.text.reserve(text.text.size() + text.text.size() / 8);
  const bool keeps_marks = text.has_marks();
  for (size_t i = 0; i < text.text.size();) {
    const DecodedCodePoint c = decode_code_point(text.text, i);
    const char mark = text.mark_of(i, i + c.num_bytes);
    const auto put = [&](std::string_view bytes) { out.append(bytes, mark, keeps_marks); };
    visit(c.value, std::string_view(text.text).substr(i, c.num_bytes), put);
    i += c.num_bytes;
  }
  text = std::move(out);
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

// Canonical ordering of the marks after each starter, by a stable sort, so that a long run of marks costs n log n.
void order_marks(std::vector<utf8proc_int32_t>& code_points) {
  const auto combining_class = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  for (size_t i = 0; i < code_points.size();) {
    if (combining_class(code_points[i]) == 0) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < code_points.size() && combining_class(code_points[end]) != 0) ++end;
    std::stable_sort(code_points.begin() + static_cast<ptrdiff_t>(i), code_points.begin() + static_cast<ptrdiff_t>(end),
                     [&](utf8proc_int32_t a, utf8proc_int32_t b) { return combining_class(a) < combining_class(b); });
    i = end;
  }
}

// Appends what has been decomposed so far, ordered and, if wanted, composed.
void flush_normal_form(bool composes, std::vector<utf8proc_int32_t>& code_points, std::string& out) {
  order_marks(code_points);
  auto length = static_cast<utf8proc_ssize_t>(code_points.size());
  if (composes && length > 1) {
    length = utf8proc_normalize_utf32(code_points.data(), length,
                                      static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  }
  for (utf8proc_ssize_t i = 0; i < length; ++i) {
    append_utf8(static_cast<char32_t>(code_points[static_cast<size_t>(i)]), out);
  }
  code_points.clear();
}

// A stretch of text in a normal form. utf8proc decomposes and composes; its own ordering is quadratic. Characters that
// take no part are barriers: nothing moves or composes across them.
void append_normal_form(std::string_view text, Kind kind, std::vector<utf8proc_int32_t>& code_points,
                        std::string& out) {
  code_points.clear();
  const bool is_compatible = kind == Kind::kNfkc || kind == Kind::kNfkd;
  const bool composes = kind == Kind::kNfc || kind == Kind::kNfkc;
  int options = UTF8PROC_DECOMPOSE | UTF8PROC_STABLE;
  if (is_compatible) options |= UTF8PROC_COMPAT;
  int boundary = 0;
  for (size_t i = 0; i < text.size();) {
    const DecodedCodePoint c = decode_code_point(text, i);
    i += c.num_bytes;
    if (stays_unnormalized(c.value)) {
      flush_normal_form(composes, code_points, out);
      append_utf8(c.value, out);
      continue;
    }
    utf8proc_int32_t parts[32];
    const auto count =
        utf8proc_decompose_char(as_utf8proc(c.value), parts, 32, static_cast<utf8proc_option_t>(options), &boundary);
    if (count > 0 && count <= 32) {
      code_points.insert(code_points.end(), parts, parts + count);
    } else {
      code_points.push_back(as_utf8proc(c.value));
    }
  }
  flush_normal_form(composes, code_points, out);
}

// Normal forms act on stretches between ASCII characters that nothing composes onto: an ASCII character followed by
// another one is a safe place to cut, and most text needs no work at all.
void apply_normal_form(MarkedText& text, Kind kind) {
  if (is_ascii(text.text)) return;
  const std::string_view in = text.text;
  const bool keeps_marks = text.has_marks();
  MarkedText out;
  out.text.reserve(in.size() + in.size() / 8);
  std::vector<utf8proc_int32_t> code_points;
  std::string normal;
  const auto is_ascii_at = [&](size_t i) { return static_cast<unsigned char>(in[i]) < 0x80; };
  for (size_t i = 0; i < in.size();) {
    size_t end = i;
    while (end < in.size() && is_ascii_at(end)) ++end;
    if (end < in.size() && end > i) --end;  // the last ASCII character may be the base of a mark
    if (end > i) {
      out.text.append(in.substr(i, end - i));
      if (keeps_marks) out.marks.append(text.marks, i, end - i);
      i = end;
      continue;
    }
    end = i + 1;
    while (end < in.size() && !is_ascii_at(end)) ++end;
    const std::string_view stretch = in.substr(i, end - i);
    normal.clear();
    append_normal_form(stretch, kind, code_points, normal);
    if (keeps_marks && normal == stretch) {
      out.text.append(stretch);
      out.marks.append(text.marks, i, end - i);
    } else {
      out.append(normal, text.mark_of(i, end), keeps_marks);
    }
    i = end;
  }
  text = std::move(out);
}

void apply_lowercase(MarkedText& text) {
  map_characters(text, [](char32_t c, std::string_view bytes, auto put) {
    if (c == 0x130) {  // the one character whose lower case is two
      put("i\xCC\x87");
      return;
    }
    const auto lower = static_cast<char32_t>(utf8proc_tolower(as_utf8proc(c)));
    if (lower == c) {
      put(bytes);
    } else {
      std::string encoded;
      append_utf8(lower, encoded);
      put(encoded);
    }
  });
}

void drop_marks(MarkedText& text, bool only_nonspacing) {
  map_characters(text, [&](char32_t c, std::string_view bytes, auto put) {
    const utf8proc_category_t category = utf8proc_category(as_utf8proc(c));
    const bool is_mark = category == UTF8PROC_CATEGORY_MN ||
                         (!only_nonspacing && (category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME));
    if (!is_mark) put(bytes);
  });
}

Status apply_replace(MarkedText& text, const NormalizerStep& step, SplitRegexScratch& scratch) {
  if (step.regex == nullptr && step.pattern.empty()) return ok_status();
  const bool keeps_marks = text.has_marks();
  MarkedText out;
  out.text.reserve(text.text.size() + text.text.size() / 8);
  const std::string known = step.regex == nullptr ? std::string() : SplitRegex::with_known_characters(text.text);
  const std::string_view subject = known.empty() ? std::string_view(text.text) : std::string_view(known);
  const auto copy = [&](size_t begin, size_t end) {
    out.text.append(text.text, begin, end - begin);
    if (keeps_marks) out.marks.append(text.marks, begin, end - begin);
  };
  size_t position = 0;
  size_t search_from = 0;
  while (search_from <= subject.size()) {
    size_t begin, end;
    if (step.regex == nullptr) {
      begin = subject.find(step.pattern, search_from);
      if (begin == std::string_view::npos) break;
      end = begin + step.pattern.size();
    } else {
      const SplitRegex::Match match = step.regex->find(subject, search_from, scratch);
      if (match.outcome == SplitRegex::Outcome::kTooHard) {
        return invalid_argument("the tokenizer's pattern \"" + step.regex->pattern() +
                                "\" takes too long on this text");
      }
      if (match.outcome == SplitRegex::Outcome::kNoMatch) break;
      begin = match.begin;
      end = match.end;
    }
    copy(position, begin);
    if (is_too_long(out, text)) return growth_error();
    out.append(step.content, end > begin ? text.mark_of(begin, end) : MarkedText::kClosed, keeps_marks);
    position = end;
    search_from = end;
    if (end == begin) {
      if (end >= subject.size()) break;
      search_from = end + utf8_sequence_length(subject[end]);
    }
  }
  copy(position, text.text.size());
  text = std::move(out);
  return ok_status();
}

void keep_range(MarkedText& text, size_t begin, size_t end) {
  text.text = text.text.substr(begin, end - begin);
  if (text.has_marks()) text.marks = text.marks.substr(begin, end - begin);
}

void strip_spaces(MarkedText& text, bool strips_left, bool strips_right) {
  const std::string_view view = text.text;
  size_t begin = 0;
  size_t end = view.size();
  while (strips_left && begin < end) {
    const DecodedCodePoint c = decode_code_point(view, begin);
    if (!is_white_space(c.value)) break;
    begin += c.num_bytes;
  }
  while (strips_right && end > begin) {
    size_t last = end - 1;
    while (last > begin && (static_cast<unsigned char>(view[last]) & 0xC0) == 0x80) --last;
    if (!is_white_space(decode_code_point(view, last).value)) break;
    end = last;
  }
  keep_range(text, begin, end);
}

Status apply_charsmap_graphemes(MarkedText& text, const PrecompiledCharsmap& charsmap) {
  constexpr size_t kMaxWholeGraphemeBytes = 5;
  MarkedText out;
  const bool keeps_marks = text.has_marks();
  const std::string_view view = text.text;
  for (size_t begin = 0; begin < view.size();) {
    utf8proc_int32_t state = 0;
    DecodedCodePoint c = decode_code_point(view, begin);
    size_t end = begin + c.num_bytes;
    while (end < view.size()) {
      const DecodedCodePoint following = decode_code_point(view, end);
      if (utf8proc_grapheme_break_stateful(as_utf8proc(c.value), as_utf8proc(following.value), &state)) break;
      c = following;
      end += c.num_bytes;
    }
    if (is_too_long(out, text)) return growth_error();
    const std::string_view grapheme = view.substr(begin, end - begin);
    const auto whole = grapheme.size() <= kMaxWholeGraphemeBytes ? charsmap.find_prefix(grapheme) : std::nullopt;
    if (whole) {
      out.append(*whole, text.mark_of(begin, end), keeps_marks);
    } else {
      for (size_t i = begin; i < end;) {
        const size_t num_bytes = utf8_sequence_length(view[i]);
        const std::string_view character = view.substr(i, num_bytes);
        const auto match = charsmap.find_prefix(character);
        out.append(match ? *match : character, text.mark_of(i, i + num_bytes), keeps_marks);
        i += num_bytes;
      }
    }
    begin = end;
  }
  text = std::move(out);
  return ok_status();
}

void apply_nmt(MarkedText& text) {
  map_characters(text, [](char32_t c, std::string_view bytes, auto put) {
    if ((c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F)
      return;
    const bool is_space = c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
                          (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF ||
                          c == 0xFFFD;
    put(is_space ? std::string_view(" ") : bytes);
  });
}

void bert_clean_text(MarkedText& text) {
  map_characters(text, [](char32_t c, std::string_view bytes, auto put) {
    const bool is_space = c == '\t' || c == '\n' || c == '\r' || is_white_space(c);
    const utf8proc_category_t category = utf8proc_category(as_utf8proc(c));
    const bool is_other =
        category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF || category == UTF8PROC_CATEGORY_CO;
    if (c == 0 || c == kReplacementCharacter || (is_other && c != '\t' && c != '\n' && c != '\r')) return;
    put(is_space ? std::string_view(" ") : bytes);
  });
}

void bert_space_ideographs(MarkedText& text) {
  map_characters(text, [](char32_t c, std::string_view bytes, auto put) {
    const bool is_ideograph = (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
                              (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
                              (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
                              (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
    if (is_ideograph) put(" ");
    put(bytes);
    if (is_ideograph) put(" ");
  });
}

}  // namespace

Status Normalizer::apply(MarkedText& text, SplitRegexScratch& scratch) const {
  for (const NormalizerStep& step : steps_) {
    switch (step.kind) {
      case Kind::kNfc:
      case Kind::kNfd:
      case Kind::kNfkc:
      case Kind::kNfkd:
        apply_normal_form(text, step.kind);
        break;
      case Kind::kLowercase:
        apply_lowercase(text);
        break;
      case Kind::kStripAccents:
        drop_marks(text, false);
        break;
      case Kind::kStripNonspacing:
        drop_marks(text, true);
        break;
      case Kind::kPrepend:
        if (!text.text.empty()) {
          text.text.insert(0, step.content);
          if (text.has_marks()) text.marks.insert(0, step.content.size(), MarkedText::kClosed);
        }
        break;
      case Kind::kReplace:
        RETURN_IF_ERROR(apply_replace(text, step, scratch));
        break;
      case Kind::kStripSpaces:
        strip_spaces(text, step.strips_left, step.strips_right);
        break;
      case Kind::kCharsmapGraphemes:
        RETURN_IF_ERROR(apply_charsmap_graphemes(text, *step.charsmap));
        break;
      case Kind::kNmt:
        apply_nmt(text);
        break;
      case Kind::kBertCleanText:
        bert_clean_text(text);
        break;
      case Kind::kBertSpaceIdeographs:
        bert_space_ideographs(text);
        break;
    }
  }
  return ok_status();
}

}  // namespace quire

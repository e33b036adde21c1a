// Translation of Oniguruma's dialect, which tokenizer files are written in, to PCRE2's, and bounded matching.
#include "text/split_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <iterator>

#include "text/unicode_updates.h"
#include "text/utf8.h"

namespace quire {
namespace {

constexpr size_t kMaxPatternBytes = 64 * 1024;
// Backtracking steps of one match: linear work never needs more than a few for each byte.
constexpr uint32_t kMatchLimitBase = 1'000'000;
constexpr uint32_t kMatchLimitPerByte = 2;
constexpr uint32_t kHeapLimitKib = 256 * 1024;
constexpr size_t kJitStackMin = 32 * 1024;
constexpr size_t kJitStackMax = 1024 * 1024;  // beyond it the interpreter takes over

// The property White_Space; PCRE2 10.42's own \s also takes U+180E, which left it in Unicode 6.3.
constexpr const char* kWhiteSpace =
    "\\x09-\\x0D\\x20\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}";

bool is_general_category(std::string_view name) {
  static constexpr std::string_view kNames[] = {
      "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe",
      "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Cs", "Co", "Cn"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

struct Translation {
  std::string pattern;
  std::string error;
};

Translation translate(std::string_view source) {
  Translation out;
  int class_depth = 0;
  for (size_t i = 0; i < source.size(); ++i) {
    const char c = source[i];
    if (c == '\\' && i + 1 < source.size()) {
      const char next = source[++i];
      if (next == 's') {
        out.pattern += class_depth > 0 ? kWhiteSpace : "[" + std::string(kWhiteSpace) + "]";
      } else if (next == 'S' && class_depth == 0) {
        out.pattern += "[^" + std::string(kWhiteSpace) + "]";
      } else if (next == 'h') {
        out.pattern += class_depth > 0 ? "0-9A-Fa-f" : "[0-9A-Fa-f]";
      } else if (next == 'u' && i + 4 < source.size() && source[i + 1] != '{') {
        out.pattern += "\\x{" + std::string(source.substr(i + 1, 4)) + "}";
        i += 4;
      } else if ((next == 'p' || next == 'P') && i + 1 < source.size() && source[i + 1] == '{') {
        const size_t close = source.find('}', i);
        if (close == std::string_view::npos) return {"", "a \\p{ without its }"};
        std::string name(source.substr(i + 2, close - i - 2));
        const bool is_negated = !name.empty() && name[0] == '^';
        if (is_negated) name.erase(0, 1);
        const bool keeps_name = is_general_category(name) || name.find('=') != std::string::npos ||
                                name.find(':') != std::string::npos || name == "Any" || name == "L&";
        out.pattern += std::string("\\") + ((next == 'P') != is_negated ? 'P' : 'p') + "{" +
                       (keeps_name ? name : "sc:" + name) + "}";
        i = close;
      } else {
        out.pattern += c;
        out.pattern += next;
      }
      continue;
    }
    if (class_depth > 0 && c == '&' && i + 1 < source.size() && source[i + 1] == '&') {
      return {"", "a class intersection (&&)"};
    }
    if (c == '[') {
      if (class_depth > 0) {
        if (i + 1 < source.size() && source[i + 1] == ':') {
          out.pattern += c;  // [:alpha:]
          continue;
        }
        // Oniguruma nests classes, here only ever as a union; PCRE2 does not.
        if (i + 1 < source.size() && source[i + 1] == '^') return {"", "a negated class inside a class"};
        ++class_depth;
        continue;
      }
      ++class_depth;
      out.pattern += c;
      if (i + 1 < source.size() && source[i + 1] == '^') out.pattern += source[++i];
      if (i + 1 < source.size() && source[i + 1] == ']') {
        out.pattern += "\\]";
        ++i;
      }
      continue;
    }
    if (c == ']' && class_depth > 0) {
      if (out.pattern.size() >= 2 && out.pattern.back() == ':' && class_depth > 0 &&
          out.pattern.rfind("[:") != std::string::npos && out.pattern.rfind("[:") + 2 < out.pattern.size() &&
          out.pattern.find(']', out.pattern.rfind("[:")) == std::string::npos) {
        out.pattern += c;
        continue;
      }
      --class_depth;
      if (class_depth == 0) out.pattern += c;
      continue;
    }
    out.pattern += c;
  }
  return out;
}

std::string error_text(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

struct SplitRegexScratch::Impl {
  pcre2_match_data* match_data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* jit_stack = pcre2_jit_stack_create(kJitStackMin, kJitStackMax, nullptr);

  Impl() {
    pcre2_set_heap_limit(context, kHeapLimitKib);
    if (jit_stack != nullptr) pcre2_jit_stack_assign(context, nullptr, jit_stack);
  }
  ~Impl() {
    pcre2_jit_stack_free(jit_stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(match_data);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
};

SplitRegexScratch::SplitRegexScratch() : impl_(std::make_unique<Impl>()) {}
SplitRegexScratch::~SplitRegexScratch() = default;

Result<std::shared_ptr<const SplitRegex>> SplitRegex::compile(std::string_view pattern) {
  const auto fail = [&](const std::string& why) {
    return invalid_argument("the tokenizer's pattern \"" + replace_invalid_utf8(pattern.substr(0, 200)) +
                            "\" cannot be used: " + why);
  };
  if (pattern.size() > kMaxPatternBytes) return fail("it is longer than 64 KiB");
  if (!is_valid_utf8(pattern)) return fail("it is not UTF-8");
  Translation translation = translate(pattern);
  if (!translation.error.empty()) return fail("it holds " + translation.error + ", which is not supported");
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  pcre2_set_parens_nest_limit(context, 100);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translation.pattern.data()), translation.pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_UTF_CHECK, &error,
                    &error_offset, context);
  pcre2_compile_context_free(context);
  if (code == nullptr) return fail(error_text(error));
  auto regex = std::shared_ptr<SplitRegex>(new SplitRegex());
  regex->pattern_ = std::string(pattern);
  regex->code_ = code;
  regex->has_jit_ = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
  return std::shared_ptr<const SplitRegex>(std::move(regex));
}

SplitRegex::~SplitRegex() {
  pcre2_code_free(static_cast<pcre2_code*>(code_));
}

SplitRegex::Match SplitRegex::find(std::string_view text, size_t offset, SplitRegexScratch& scratch) const {
  const auto* code = static_cast<const pcre2_code*>(code_);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  auto& impl = *scratch.impl_;
  pcre2_set_match_limit(impl.context,
                        kMatchLimitBase + kMatchLimitPerByte * static_cast<uint32_t>(text.size() - offset));
  int count = has_jit_ ? pcre2_jit_match(code, subject, text.size(), offset, 0, impl.match_data, impl.context)
                       : PCRE2_ERROR_JIT_STACKLIMIT;
  if (count == PCRE2_ERROR_JIT_STACKLIMIT) {  // the interpreter keeps its frames on the heap, within kHeapLimitKib
    count = pcre2_match(code, subject, text.size(), offset, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, impl.match_data,
                        impl.context);
  }
  if (count == PCRE2_ERROR_NOMATCH) return {Outcome::kNoMatch, text.size(), text.size()};
  if (count < 0) return {Outcome::kTooHard, offset, offset};
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(impl.match_data);
  return {Outcome::kMatch, ends[0], std::max(ends[0], ends[1])};
}

std::string SplitRegex::with_known_characters(std::string_view) {
  return {};
}

}  // namespace quire

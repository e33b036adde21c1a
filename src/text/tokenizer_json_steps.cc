// Normalizers and pre-tokenizers of tokenizer.json. Each type that is known is one branch; all others are errors that
// name them.
#include "text/tokenizer_json_steps.h"

#include "text/pre_tokenizer_families.h"
#include "text/utf8.h"

namespace quire {
namespace {

constexpr size_t kMaxSteps = 64;
constexpr std::string_view kMetaspace = "\xE2\x96\x81";

NormalizerStep normalizer_step(NormalizerStep::Kind kind) {
  return {.kind = kind, .pattern = {}, .content = {}, .regex = nullptr, .charsmap = nullptr};
}

PreTokenizerStep pre_tokenizer_step(PreTokenizerStep::Kind kind, SplitBehavior behavior = SplitBehavior::kIsolated) {
  return {.kind = kind, .regex = nullptr, .content = {}, .behavior = behavior};
}

Result<SplitBehavior> read_behavior(const JsonValue& value, const std::string& what) {
  if (!value.has("behavior")) return SplitBehavior::kIsolated;
  ASSIGN_OR_RETURN(const std::string name, value.get_string("behavior", what));
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return unknown_part("split behavior", name);
}

Status read_byte_level(const JsonValue& value, JsonTokenizer& out) {
  ASSIGN_OR_RETURN(const bool adds_space, value.get_bool_or("add_prefix_space", true, "ByteLevel pre-tokenizer"));
  ASSIGN_OR_RETURN(const bool uses_regex, value.get_bool_or("use_regex", true, "ByteLevel pre-tokenizer"));
  if (adds_space) out.pre_tokenizer_steps.push_back(pre_tokenizer_step(PreTokenizerStep::Kind::kPrefixSpace));
  if (uses_regex) {
    PreTokenizerStep step = pre_tokenizer_step(PreTokenizerStep::Kind::kSplitRegex);
    ASSIGN_OR_RETURN(step.regex, SplitRegex::compile(gpt2_split_pattern()));
    out.pre_tokenizer_steps.push_back(std::move(step));
  }
  out.is_byte_level = true;
  return ok_status();
}

}  // namespace

Status unknown_part(const std::string& part, std::string_view type) {
  return unimplemented("tokenizer.json: the " + part + " \"" + replace_invalid_utf8(type.substr(0, 100)) +
                       "\" is not supported");
}

Status read_pattern(const JsonValue& pattern, const std::string& what, std::string& literal,
                    std::shared_ptr<const SplitRegex>& regex) {
  if (pattern.has("Regex")) {
    ASSIGN_OR_RETURN(const std::string text, pattern.get_string("Regex", what));
    ASSIGN_OR_RETURN(regex, SplitRegex::compile(text));
    return ok_status();
  }
  if (pattern.is_string()) {
    literal = pattern.as_string();
  } else {
    ASSIGN_OR_RETURN(literal, pattern.get_string("String", what));
  }
  if (literal.empty()) return invalid_argument("tokenizer.json: an empty pattern in the " + what);
  return ok_status();
}

Status read_normalizer(const JsonValue& value, JsonTokenizer& out) {
  using Kind = NormalizerStep::Kind;
  if (value.is_null()) return ok_status();
  if (out.normalizer_steps.size() > kMaxSteps) return invalid_argument("tokenizer.json: too many normalizers");
  ASSIGN_OR_RETURN(const std::string type, value.get_string("type", "normalizer"));
  std::vector<NormalizerStep>& steps = out.normalizer_steps;
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const std::vector<JsonValue> parts, value.get_array("normalizers", "normalizer"));
    for (const JsonValue& part : parts) RETURN_IF_ERROR(read_normalizer(part, out));
    return ok_status();
  }
  constexpr std::pair<std::string_view, Kind> kPlain[] = {{"NFC", Kind::kNfc},
                                                          {"NFD", Kind::kNfd},
                                                          {"NFKC", Kind::kNfkc},
                                                          {"NFKD", Kind::kNfkd},
                                                          {"Lowercase", Kind::kLowercase},
                                                          {"StripAccents", Kind::kStripAccents},
                                                          {"Nmt", Kind::kNmt}};
  for (const auto& [name, kind] : kPlain) {
    if (type == name) {
      steps.push_back(normalizer_step(kind));
      return ok_status();
    }
  }
  if (type == "Prepend") {
    NormalizerStep step = normalizer_step(Kind::kPrepend);
    ASSIGN_OR_RETURN(step.content, value.get_string("prepend", "Prepend normalizer"));
    steps.push_back(std::move(step));
  } else if (type == "Replace") {
    NormalizerStep step = normalizer_step(Kind::kReplace);
    ASSIGN_OR_RETURN(const JsonValue pattern, value.get("pattern", "Replace normalizer"));
    RETURN_IF_ERROR(read_pattern(pattern, "Replace normalizer", step.pattern, step.regex));
    ASSIGN_OR_RETURN(step.content, value.get_string("content", "Replace normalizer"));
    steps.push_back(std::move(step));
  } else if (type == "Strip") {
    NormalizerStep step = normalizer_step(Kind::kStripSpaces);
    ASSIGN_OR_RETURN(step.strips_left, value.get_bool_or("strip_left", true, "Strip normalizer"));
    ASSIGN_OR_RETURN(step.strips_right, value.get_bool_or("strip_right", true, "Strip normalizer"));
    steps.push_back(std::move(step));
  } else if (type == "Precompiled") {
    NormalizerStep step = normalizer_step(Kind::kCharsmapGraphemes);
    ASSIGN_OR_RETURN(const std::string base64, value.get_string("precompiled_charsmap", "Precompiled normalizer"));
    const std::optional<std::string> bytes = decode_base64(base64);
    if (!bytes) return invalid_argument("tokenizer.json: the precompiled_charsmap is not base64");
    ASSIGN_OR_RETURN(step.charsmap, PrecompiledCharsmap::create(*bytes));
    steps.push_back(std::move(step));
  } else if (type == "BertNormalizer") {
    const std::string what = "BertNormalizer";
    ASSIGN_OR_RETURN(const bool cleans, value.get_bool_or("clean_text", true, what));
    ASSIGN_OR_RETURN(const bool spaces, value.get_bool_or("handle_chinese_chars", true, what));
    ASSIGN_OR_RETURN(const bool lowers, value.get_bool_or("lowercase", true, what));
    ASSIGN_OR_RETURN(const bool strips, value.get_bool_or("strip_accents", lowers, what));
    if (cleans) steps.push_back(normalizer_step(Kind::kBertCleanText));
    if (spaces) steps.push_back(normalizer_step(Kind::kBertSpaceIdeographs));
    if (strips) steps.push_back(normalizer_step(Kind::kNfd));
    if (strips) steps.push_back(normalizer_step(Kind::kStripNonspacing));
    if (lowers) steps.push_back(normalizer_step(Kind::kLowercase));
  } else if (type == "ByteLevel") {
    out.is_byte_level = true;
  } else {
    return unknown_part("normalizer", type);
  }
  return ok_status();
}

Result<PreTokenizerStep::PrependScheme> read_prepend_scheme(const JsonValue& value) {
  using Scheme = PreTokenizerStep::PrependScheme;
  if (value.has("prepend_scheme")) {
    ASSIGN_OR_RETURN(const std::string scheme, value.get_string("prepend_scheme", "Metaspace"));
    if (scheme == "always") return Scheme::kAlways;
    if (scheme == "first") return Scheme::kFirst;
    if (scheme == "never") return Scheme::kNever;
    return unknown_part("Metaspace prepend_scheme", scheme);
  }
  ASSIGN_OR_RETURN(const bool adds_space, value.get_bool_or("add_prefix_space", true, "Metaspace"));
  return adds_space ? Scheme::kAlways : Scheme::kNever;
}

Status read_pre_tokenizer(const JsonValue& value, JsonTokenizer& out) {
  using Kind = PreTokenizerStep::Kind;
  if (value.is_null()) return ok_status();
  std::vector<PreTokenizerStep>& steps = out.pre_tokenizer_steps;
  if (steps.size() > kMaxSteps) return invalid_argument("tokenizer.json: too many pre-tokenizers");
  ASSIGN_OR_RETURN(const std::string type, value.get_string("type", "pre_tokenizer"));
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const std::vector<JsonValue> parts, value.get_array("pretokenizers", "pre_tokenizer"));
    for (const JsonValue& part : parts) {
      // ByteLevel rewrites the text in its alphabet, which a later step would have to look through.
      if (out.is_byte_level && steps.size() > 0) return unknown_part("pre-tokenizer after ByteLevel", "Sequence");
      RETURN_IF_ERROR(read_pre_tokenizer(part, out));
    }
    return ok_status();
  }
  if (type == "ByteLevel") return read_byte_level(value, out);
  if (type == "Split") {
    PreTokenizerStep step = pre_tokenizer_step(Kind::kSplitRegex);
    ASSIGN_OR_RETURN(const JsonValue pattern, value.get("pattern", "Split pre-tokenizer"));
    RETURN_IF_ERROR(read_pattern(pattern, "Split pre-tokenizer", step.content, step.regex));
    if (step.regex == nullptr) step.kind = Kind::kSplitLiteral;
    ASSIGN_OR_RETURN(step.behavior, read_behavior(value, "Split pre-tokenizer"));
    ASSIGN_OR_RETURN(step.is_inverted, value.get_bool_or("invert", false, "Split pre-tokenizer"));
    steps.push_back(std::move(step));
  } else if (type == "Metaspace") {
    PreTokenizerStep step = pre_tokenizer_step(Kind::kMetaspace);
    step.content = kMetaspace;
    if (value.has("replacement")) {
      ASSIGN_OR_RETURN(step.content, value.get_string("replacement", "Metaspace"));
    }
    if (step.content.empty() || step.content.size() > 4) {
      return invalid_argument("tokenizer.json: Metaspace's replacement is not one character");
    }
    ASSIGN_OR_RETURN(step.scheme, read_prepend_scheme(value));
    ASSIGN_OR_RETURN(step.splits, value.get_bool_or("split", true, "Metaspace"));
    steps.push_back(std::move(step));
  } else if (type == "Digits") {
    ASSIGN_OR_RETURN(const bool is_individual, value.get_bool_or("individual_digits", false, "Digits"));
    steps.push_back(
        pre_tokenizer_step(Kind::kSplitDigits, is_individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous));
  } else if (type == "Punctuation") {
    ASSIGN_OR_RETURN(const SplitBehavior behavior, read_behavior(value, "Punctuation"));
    steps.push_back(pre_tokenizer_step(Kind::kSplitPunctuation, behavior));
  } else if (type == "WhitespaceSplit") {
    steps.push_back(pre_tokenizer_step(Kind::kSplitWhiteSpace, SplitBehavior::kRemoved));
  } else if (type == "BertPreTokenizer") {
    steps.push_back(pre_tokenizer_step(Kind::kSplitWhiteSpace, SplitBehavior::kRemoved));
    steps.push_back(pre_tokenizer_step(Kind::kSplitPunctuation));
  } else if (type == "Whitespace") {
    PreTokenizerStep step = pre_tokenizer_step(Kind::kSplitRegex, SplitBehavior::kRemoved);
    ASSIGN_OR_RETURN(step.regex, SplitRegex::compile(R"(\w+|[^\w\s]+)"));
    step.is_inverted = true;
    steps.push_back(std::move(step));
  } else if (type == "CharDelimiterSplit") {
    PreTokenizerStep step = pre_tokenizer_step(Kind::kSplitLiteral, SplitBehavior::kRemoved);
    ASSIGN_OR_RETURN(step.content, value.get_string("delimiter", "CharDelimiterSplit"));
    if (step.content.empty()) return invalid_argument("tokenizer.json: CharDelimiterSplit has an empty delimiter");
    steps.push_back(std::move(step));
  } else {
    return unknown_part("pre-tokenizer", type);
  }
  return ok_status();
}

}  // namespace quire

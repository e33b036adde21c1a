// UTF-8, normal forms, patterns, pre-tokenizing.
#include <gtest/gtest.h>

#include "text/normalizer.h"
#include "text/pre_tokenizer_families.h"
#include "text/split_regex.h"
#include "text/unicode_updates.h"
#include "text/utf8.h"

namespace quire {
namespace {

TEST(Utf8, ReplacesMaximalSubparts) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(replace_invalid_utf8("a\x80"
                                 "b"),
            "a" + r + "b");
  EXPECT_EQ(replace_invalid_utf8("\xE4\xB8"), r);
  EXPECT_EQ(replace_invalid_utf8("\xE4\xB8"
                                 "A"),
            r + "A");
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\xA6"), r);
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF"), r + r);
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), r + r + r);          // a surrogate
  EXPECT_EQ(replace_invalid_utf8("\xF4\x90\x80\x80"), r + r + r + r);  // above U+10FFFF
  EXPECT_TRUE(is_valid_utf8(std::string_view("a\0\xF4\x8F\xBF\xBF", 6)));
  EXPECT_FALSE(is_valid_utf8("aaaaaaaaaaaa\xF5"));
}

std::string normalize(NormalizerStep::Kind kind, std::string text) {
  SplitRegexScratch scratch;
  MarkedText marked{.text = std::move(text), .marks = {}};
  const Normalizer normalizer({{.kind = kind, .pattern = {}, .content = {}, .regex = nullptr, .charsmap = nullptr}});
  EXPECT_TRUE(normalizer.apply(marked, scratch).is_ok());
  return marked.text;
}

TEST(Normalizer, NormalForms) {
  using Kind = NormalizerStep::Kind;
  EXPECT_EQ(normalize(Kind::kNfc, "cafe\xCC\x81!"), "caf\xC3\xA9!");
  EXPECT_EQ(normalize(Kind::kNfc, "\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB"), "\xED\x95\x9C");
  EXPECT_EQ(normalize(Kind::kNfd, "\xC3\xA9"), "e\xCC\x81");
  EXPECT_EQ(normalize(Kind::kNfkc, "\xEF\xAC\x81"), "fi");
  EXPECT_EQ(normalize(Kind::kNfd, "a\xCC\x81\xCC\xA3"), "a\xCC\xA3\xCC\x81");  // by class
  EXPECT_EQ(normalize(Kind::kNfc, "plain"), "plain");
}

TEST(Normalizer, NewerMarksStayWhereTheyAre) {
  using Kind = NormalizerStep::Kind;
  // U+1AC1 (Unicode 13, class 230) would go before U+0345 (class 240) if it took part.
  EXPECT_EQ(normalize(Kind::kNfc, "k\xCD\x85\xE1\xAB\x81"), "k\xCD\x85\xE1\xAB\x81");
  EXPECT_EQ(normalize(Kind::kNfc, "k\xCD\x85\xCC\x81"), "\xE1\xB8\xB1\xCD\x85");
  EXPECT_EQ(normalize(Kind::kNfkc, "\xE3\x8B\xBF"), "\xE3\x8B\xBF");  // U+32FF, Unicode 12
  EXPECT_TRUE(is_numeric(0x10D40));                                   // Unicode 16
  EXPECT_TRUE(is_numeric(0xBD));
  EXPECT_FALSE(is_punctuation(0x2E5D));  // newer than the Punctuation pre-tokenizer
  EXPECT_TRUE(is_punctuation(0x3002));
}

TEST(Normalizer, MarksFollowTheBytes) {
  SplitRegexScratch scratch;
  const Normalizer nfc(
      {{.kind = NormalizerStep::Kind::kNfc, .pattern = {}, .content = {}, .regex = nullptr, .charsmap = nullptr}});
  MarkedText text{.text = "<e\xCC\x81>", .marks = {1, 1, 0, 0, 1}};
  ASSERT_TRUE(nfc.apply(text, scratch).is_ok());
  EXPECT_EQ(text.text, "<\xC3\xA9>");
  EXPECT_EQ(text.marks, std::string({1, 0, 0, 1}));
  const Normalizer replace({{.kind = NormalizerStep::Kind::kReplace,
                             .pattern = "ab",
                             .content = "<|x|>",
                             .regex = nullptr,
                             .charsmap = nullptr}});
  text = {.text = "abab", .marks = {1, 0, 1, 1}};
  ASSERT_TRUE(replace.apply(text, scratch).is_ok());
  EXPECT_EQ(text.text, "<|x|><|x|>");
  EXPECT_EQ(text.marks, std::string({0, 0, 0, 0, 0, 1, 1, 1, 1, 1}));
}

SplitRegex::Match find(const std::string& pattern, std::string_view text) {
  auto regex = SplitRegex::compile(pattern);
  EXPECT_TRUE(regex.is_ok()) << (regex.is_ok() ? "" : regex.status().message());
  SplitRegexScratch scratch;
  return regex.value()->find(text, 0, scratch);
}

TEST(SplitRegex, DialectOfTokenizerFiles) {
  using Outcome = SplitRegex::Outcome;
  EXPECT_EQ(find(R"(\s)", "\xE1\xA0\x8E").outcome, Outcome::kNoMatch);  // U+180E is no white space any more
  EXPECT_EQ(find(R"([^\s])", "\xE1\xA0\x8E").outcome, Outcome::kMatch);
  EXPECT_EQ(find(R"(\S)", "\xC2\x85").outcome, Outcome::kNoMatch);  // U+0085 is
  EXPECT_EQ(find(R"([\p{Han}]+)", "ab\xE4\xB8\xAD").begin, 2u);
  EXPECT_EQ(find(R"(\s+$)", "a  \nb").begin, 1u);  // $ at line ends
  EXPECT_EQ(find(R"(\u00e9)", "e\xC3\xA9").begin, 1u);
  EXPECT_EQ(find(R"((?i:'s))", "'\xC5\xBF").outcome, Outcome::kMatch);  // long s
}

TEST(SplitRegex, HardPatternsEnd) {
  EXPECT_EQ(find(R"((?:a+)+$)", std::string(64, 'a') + "b").outcome, SplitRegex::Outcome::kTooHard);
  EXPECT_FALSE(SplitRegex::compile(R"([a&&b])").is_ok());
  EXPECT_FALSE(SplitRegex::compile(R"((a)").is_ok());
  EXPECT_FALSE(SplitRegex::compile(std::string(1000, '(') + std::string(1000, ')')).is_ok());
}

TEST(SplitRegex, NewerCharactersHaveStandIns) {
  EXPECT_EQ(replace_newer_characters("plain \xE4\xB8\xAD"), "");
  const std::string text = "ab\xF0\xB1\x8D\x90z";  // U+31350, Unicode 15
  const std::string known = replace_newer_characters(text);
  ASSERT_EQ(known.size(), text.size());
  EXPECT_EQ(known, "ab\xF0\xA0\x80\x80z");
}

std::vector<std::string> cut(const std::string& family_name, std::string_view text) {
  auto family = find_pre_tokenizer_family(family_name);
  EXPECT_TRUE(family.is_ok());
  const PreTokenizer pre_tokenizer(std::move(family.value().steps));
  PreTokenizedText out;
  SplitRegexScratch scratch;
  EXPECT_TRUE(pre_tokenizer.apply(text, true, out, scratch).is_ok());
  std::vector<std::string> pieces;
  for (const auto& piece : out.pieces) pieces.emplace_back(out.text.substr(piece.begin, piece.end - piece.begin));
  return pieces;
}

TEST(PreTokenizer, Families) {
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(cut("gpt-2", "It's  1234 ok!\n"), (Pieces{"It", "'s", " ", " 1234", " ok", "!", "\n"}));
  EXPECT_EQ(cut("smollm", "a 12b"), (Pieces{"a", " ", "1", "2", "b"}));
  EXPECT_EQ(cut("llama-bpe", "IT'S 1234 ok!\n\nx"), (Pieces{"IT", "'S", " ", "123", "4", " ok", "!\n\n", "x"}));
  EXPECT_EQ(cut("qwen2", "x 12"), (Pieces{"x", " ", "1", "2"}));
  EXPECT_EQ(cut("gpt-4o", "HelloWorld isn't/"), (Pieces{"Hello", "World", " isn't", "/"}));
  EXPECT_EQ(cut("deepseek-v3",
                "\xE4\xB8\xAD"
                "a"),
            (Pieces{"\xE4\xB8\xAD", "a"}));
  EXPECT_EQ(cut("qwen2", ""), (Pieces{}));
}

TEST(PreTokenizer, EveryFamilyCompiles) {
  for (const char* name : {"gpt-2",          "smollm",
                           "starcoder",      "refact",
                           "command-r",      "llama-bpe",
                           "qwen2",          "qwen35",
                           "gpt-4o",         "tekken",
                           "kimi-k2",        "bailingmoe",
                           "seed-coder",     "deepseek-llm",
                           "deepseek-coder", "deepseek-v3",
                           "falcon",         "bloom",
                           "viking",         "mpt",
                           "default",        ""}) {
    EXPECT_FALSE(cut(name, "Hello, w\xC3\xB6rld 123!").empty()) << name;
  }
  EXPECT_FALSE(find_pre_tokenizer_family("nobody").is_ok());
}

}  // namespace
}  // namespace quire

#include <chrono>

#include "text/grammar_test_helpers.h"

namespace quire {
namespace {

struct RegexCase {
  std::string pattern;
  std::vector<std::string> yes, no;
};

class GrammarRegexTest : public ::testing::TestWithParam<RegexCase> {};

TEST_P(GrammarRegexTest, AcceptsExactlyItsTexts) {
  const auto grammar = Grammar::from_regex(GetParam().pattern);
  ASSERT_TRUE(grammar.is_ok()) << GetParam().pattern << ": " << grammar.status().message();
  for (const std::string& text : GetParam().yes) EXPECT_TRUE(accepts(grammar.value(), text)) << text;
  for (const std::string& text : GetParam().no) EXPECT_FALSE(accepts(grammar.value(), text)) << text;
}

const RegexCase kCases[] = {
    {"", {""}, {"a"}},
    {"abc", {"abc"}, {"", "ab", "abcd", "xabc"}},
    {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
    {"(?:a|b)*c", {"c", "abac"}, {"ab", "acb"}},
    {"a{2}", {"aa"}, {"a", "aaa"}},
    {"a{2,}", {"aa", "aaaaa"}, {"a"}},
    {"a{,2}", {"", "a", "aa"}, {"aaa"}},
    {"a{2,3}?b", {"aab", "aaab"}, {"ab", "aaaab"}},
    {"a{x}", {"a{x}"}, {"a", "axx"}},
    {"x{}", {"x{}"}, {"x"}},
    {"^a+$", {"a", "aaa"}, {"", "b"}},
    {"^(a|b)$|^c$", {"a", "b", "c"}, {"ac", ""}},
    {"\\Aab\\Z", {"ab"}, {"a"}},
    {"\\d+\\.\\d{2}", {"1.00", "123.45"}, {"1.0", ".00", "\xD9\xA1.00"}},
    {"[a-c-]+", {"a-b", "-"}, {"d"}},
    {"[]a]", {"]", "a"}, {"b"}},
    {"[^]a]", {"b", "\n", "\xC3\xA9"}, {"]", "a", "\xC3"}},
    {"[\\d\\-x]", {"5", "-", "x"}, {"y"}},
    {".", {"a", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"}, {"\n", "", "\xC3", "\xE2\x82", "\xED\xA0\x80"}},
    {"[\\u00e0-\\u00ff]", {"\xC3\xA9"}, {"e", "\xC4\x80"}},
    {"\\u{1F600}|\\ud83d\\ude01", {"\xF0\x9F\x98\x80", "\xF0\x9F\x98\x81"}, {"\xF0\x9F\x98\x82"}},
    {"\\x41\\t\\\\\\.", {"A\t\\."}, {"A\t\\x"}},
    {"\\s\\S\\w\\W", {" xa-", "\xE3\x80\x80xa-"}, {"xxa-"}},
    {"\\p{Lu}\\p{Ll}*\\P{L}", {"Abc1", "\xC3\x89\xC3\xA9 "}, {"abc1", "AbcD"}},
    {"(?P<year>\\d{4})-(?<month>\\d\\d)", {"2024-05"}, {"24-05"}},
    {"((a*)*)*b", {"b", "aaaab"}, {"a"}},
    {"(a?){3}a{3}", {"aaa", "aaaaaa"}, {"aa", "aaaaaaa"}},
    {"(a|b)*a(a|b){6}", {"abbbbbb", "bbabbbbba"}, {"bbbbbbb"}},
};

INSTANTIATE_TEST_SUITE_P(All, GrammarRegexTest, ::testing::ValuesIn(kCases));

// F084, F086.
TEST(GrammarRegexErrorTest, SaysWhatIsWrong) {
  const std::pair<std::string, std::string> cases[] = {
      {"foo**", "repetition of a repetition"},
      {"*a", "nothing to repeat"},
      {"a|+", "nothing to repeat"},
      {"{2}", "nothing to repeat"},
      {"a*+", "repetition of a repetition"},
      {"(a", "'(' without ')'"},
      {"a)", "')' without '('"},
      {"[a", "'[' without ']'"},
      {"[z-a]", "runs backwards"},
      {"a{3,2}", "below its minimum"},
      {"(?=a)b", "lookaround"},
      {"(?<!a)b", "lookaround"},
      {"(?i)a", "not supported"},
      {"(a)\\1", "back-references"},
      {"\\bword", "word boundaries"},
      {"\\q", "unknown escape"},
      {"a\\", "backslash"},
      {"\\xZZ", "hexadecimal"},
      {"a^b", "beginning and the end"},
      {"(a$)*", "beginning and the end"},
      {"\\p{Klingon}", "Klingon"},
      {"a{1000}{1000}", "repetition of a repetition"},
      {"(a{1000}){1000}", "multiply to more than"},
      {"a{999999999}", "multiply to more than"},
      {"\xFF", "UTF-8"},
      {std::string(50'000, '('), "too deep"},
      {"[^\\u0000-\\U0010FFFF]", "unknown escape"},
      {"[^\\s\\S]", "no text at all"},
  };
  for (const auto& [pattern, message] : cases) {
    const auto grammar = Grammar::from_regex(pattern);
    ASSERT_FALSE(grammar.is_ok()) << pattern;
    EXPECT_NE(grammar.status().message().find(message), std::string::npos)
        << pattern << ": " << grammar.status().message();
  }
}

TEST(GrammarRegexErrorTest, BoundsTheAutomaton) {
  GrammarLimits limits;
  limits.max_states = 1000;
  const auto grammar = Grammar::from_regex("(abcdefghij){500}", limits);
  ASSERT_TRUE(grammar.is_ok()) << "a part that repeats often is stored once";
  const auto larger = Grammar::from_regex("(abcdefghij){5000}", limits);
  ASSERT_FALSE(larger.is_ok());
  EXPECT_EQ(larger.status().code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace quire

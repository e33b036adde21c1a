#include "text/grammar_test_helpers.h"

namespace quire {
namespace {

struct EbnfCase {
  std::string text;
  std::vector<std::string> yes, no;
};

class GrammarEbnfTest : public ::testing::TestWithParam<EbnfCase> {};

TEST_P(GrammarEbnfTest, AcceptsExactlyItsTexts) {
  const auto grammar = Grammar::from_ebnf(GetParam().text);
  ASSERT_TRUE(grammar.is_ok()) << GetParam().text << ": " << grammar.status().message();
  for (const std::string& text : GetParam().yes) EXPECT_TRUE(accepts(grammar.value(), text)) << text;
  for (const std::string& text : GetParam().no) EXPECT_FALSE(accepts(grammar.value(), text)) << text;
}

const EbnfCase kCases[] = {
    {"root ::= \"a\"", {"a"}, {"", "b", "aa"}},
    {"root ::= \"a\" | \"bc\"\n", {"a", "bc"}, {"b"}},
    {"root ::= (\"a\"\n  | \"b\")+ # comment\nother ::= \"x\"", {"a", "abab"}, {"", "x"}},
    {"root ::= x{2,3} y?\nx ::= [a-c]\ny ::= [^\\n]", {"ab", "abc", "abz", "abcz"}, {"a", "abcd2", "ab\n"}},
    {"root ::= x{,2} \".\"\nx ::= \"q\"", {".", "q.", "qq."}, {"qqq."}},
    {"root ::= \"\\x41\\u00e9\\\"\\n\"", {"A\xC3\xA9\"\n"}, {"A"}},
    {"root ::= .*", {"", "a\n\xC3\xA9"}, {"\xC3"}},
    // Recursion in the middle, on the right, on the left, by way of others and behind what may be empty.
    {"root ::= \"(\" root \")\" | \"\"", {"", "()", "((()))"}, {"(", "())"}},
    {"root ::= \"a\" root | \"b\"", {"b", "aaab"}, {"", "a"}},
    {"root ::= root \"a\" | \"b\"", {"b", "baaa"}, {"", "a", "ab"}},
    {"root ::= sum\nsum ::= sum [+-] product | product\nproduct ::= product [*/] atom | atom\n"
     "atom ::= [0-9]+ | \"(\" sum \")\"",
     {"1", "1+2*3", "(1+2)*(3-4)/5"},
     {"", "1+", "()", "1+*2"}},
    {"root ::= a | \"x\"\na ::= b \"1\" | \"y\"\nb ::= root \"2\"", {"x", "y", "x21", "y2121"}, {"1", "x2", "x12"}},
    {"root ::= blank root \"a\" | \"b\"\nblank ::= \" \"*", {"b", " ba", "  baa", " ba"}, {"a", " b"}},
    {"root ::= root root | \"a\"", {"a", "aa", "aaaaaaa"}, {"", "b"}},
    {"root ::= \"\" | root", {""}, {"a"}},
    {"root ::= x x x\nx ::= \"a\"? \"b\"?", {"", "ab", "abab", "aaa", "bbb", "ababab"}, {"abababa", "c"}},
    {"root ::= 'say \"hi\"'", {"say \"hi\""}, {"say"}},
};

INSTANTIATE_TEST_SUITE_P(All, GrammarEbnfTest, ::testing::ValuesIn(kCases));

// F084.
TEST(GrammarEbnfErrorTest, SaysWhatIsWrong) {
  std::string chain = "root ::= r0\n";
  for (int i = 0; i < 5000; ++i) {
    chain += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + " | \"" + std::to_string(i) + "\" r0\n";
  }
  chain += "r5000 ::= \"x\"\n";
  const std::pair<std::string, std::string> cases[] = {
      {"", "no rule \"root\""},
      {"x ::= \"a\"", "no rule \"root\""},
      {"root ::= y", "\"y\" is not defined"},
      {"root ::= \"a\"\nroot ::= \"b\"", "defined twice"},
      {"root ::= (\"a\"", "'(' without ')'"},
      {"root ::= \"a\")", "')' without '('"},
      {"root ::= \"a", "closing quote"},
      {"root ::= [a", "'[' without ']'"},
      {"root ::= \"a\"{3,1}", "below its minimum"},
      {"root ::= \"a\"{1000}{1000}", "multiply to more than"},
      {"root ::= *", "unexpected"},
      {"root ::= \"\\q\"", "unknown escape"},
      {"start: \"a\" \"b\"", "Lark"},
      {"root ::= root \"a\"", "no text at all"},
      {"root ::= \"a\" x\nx ::= \"b\" x", "no text at all"},
      {"root ::= " + std::string(60'000, '(') + "\"a\"" + std::string(60'000, ')'), "too deep"},
      {chain, "too deep"},
  };
  for (const auto& [text, message] : cases) {
    const auto grammar = Grammar::from_ebnf(text);
    ASSERT_FALSE(grammar.is_ok()) << text.substr(0, 100);
    EXPECT_NE(grammar.status().message().find(message), std::string::npos)
        << text.substr(0, 100) << ": " << grammar.status().message();
  }
}

}  // namespace
}  // namespace quire

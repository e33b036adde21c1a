// The parts under the interpreter: marked text, UTF-8, case mapping, float printing, JSON.
#include <gtest/gtest.h>

#include "text/jinja_format.h"
#include "text/jinja_json.h"
#include "text/jinja_unicode.h"

namespace quire::jinja {
namespace {

TEST(JinjaText, KeepsMarksThroughAppendAndSubstr) {
  Text text("ab", true);
  text.append("cd", false);
  text.append("ef", false);
  text.append("gh", true);
  EXPECT_EQ(text.bytes(), "abcdefgh");
  std::string marks;
  for (size_t i = 0; i < text.size(); ++i) marks += text.is_trusted_at(i) ? 'T' : 'd';
  EXPECT_EQ(marks, "TTddddTT");
  const Text middle = text.substr(1, 7);
  EXPECT_EQ(middle.bytes(), "bcdefg");
  EXPECT_TRUE(middle.is_trusted_at(0));
  EXPECT_FALSE(middle.is_trusted_at(1));
  EXPECT_TRUE(middle.is_trusted_at(5));
  EXPECT_TRUE(text.substr(3, 3).is_empty());
  Text joined = text.substr(2, 4);
  joined.append(text, 4, 6);
  EXPECT_FALSE(joined.is_trusted_at(3));
}

TEST(JinjaText, WalksUtf8BothWays) {
  const std::string text =
      "aß你😀\xFF"
      "b\xE4\xBD";
  std::vector<size_t> forward;
  for (size_t i = 0; i < text.size(); i += code_point_at(text, i).num_bytes) forward.push_back(i);
  EXPECT_EQ(forward, (std::vector<size_t>{0, 1, 3, 6, 10, 11, 12, 13}));
  std::vector<size_t> backward;
  for (size_t i = text.size(); i > 0;) backward.insert(backward.begin(), i = previous_offset(text, i));
  EXPECT_EQ(backward, forward);
  EXPECT_FALSE(is_valid_utf8(text));
  EXPECT_TRUE(is_valid_utf8("aß你😀"));
  EXPECT_FALSE(is_valid_utf8("\xC0\x80"));
  EXPECT_FALSE(is_valid_utf8("\xF4\x90\x80\x80"));
}

TEST(JinjaUnicode, MapsCaseAsPython) {
  const auto mapped = [](std::string_view text, CaseMapping mapping) {
    return std::string(map_case(Text(std::string(text), false), mapping).bytes());
  };
  EXPECT_EQ(mapped("straße ŉ", CaseMapping::kUpper), "STRASSE ʼN");
  EXPECT_EQ(mapped("ΑΣ ΑΣΑ Σ", CaseMapping::kLower), "ας ασα σ");
  EXPECT_EQ(mapped("İ", CaseMapping::kLower), "i̇");
  EXPECT_EQ(mapped("ǆungla they're", CaseMapping::kTitle), "ǅungla They'Re");
  EXPECT_EQ(mapped("ǆUNGLA", CaseMapping::kCapitalize), "ǅungla");
  EXPECT_EQ(mapped("Straße", CaseMapping::kFold), "strasse");
  EXPECT_EQ(mapped("aBß", CaseMapping::kSwap), "AbSS");
}

TEST(JinjaFormat, PrintsFloatsAsPython) {
  const std::pair<double, const char*> cases[] = {
      {0.0, "0.0"},
      {-0.0, "-0.0"},
      {1.0, "1.0"},
      {0.1, "0.1"},
      {1e16, "1e+16"},
      {1e15, "1000000000000000.0"},
      {123456789012345680.0, "1.2345678901234568e+17"},
      {1e-4, "0.0001"},
      {1e-5, "1e-05"},
      {1.5e300, "1.5e+300"},
      {5e-324, "5e-324"},
      {100.0, "100.0"},
      {1234.5, "1234.5"},
      {-2.5, "-2.5"},
  };
  for (const auto& [value, text] : cases) EXPECT_EQ(float_repr(value), text);
}

TEST(JinjaJson, ReadsWhatIsJsonAndNothingElse) {
  EXPECT_TRUE(from_json(" {\"a\": [1, -2.5e3, true, null, \"\\u00e9\\ud83d\\ude00\\n\"]} ").is_ok());
  EXPECT_EQ(from_json("\"\\ud83d\\ude00\"").value().bytes(), "😀");
  EXPECT_EQ(from_json("{\"a\": 1, \"b\": 2, \"a\": 3}").value().dict_object().entries.size(), 2u);
  EXPECT_EQ(from_json("{\"a\": 1, \"b\": 2, \"a\": 3}").value().dict_object().find("a")->int_value(), 3);
  EXPECT_EQ(from_json("9223372036854775808").value().kind(), Kind::kBigInt);
  for (const char* bad :
       {"",        "{",      "[1,]",  "{\"a\" 1}", "01",        "1.",  "1e",       "+1",     "nul", "\"",
        "\"\\x\"", "\"\n\"", "[1] 2", "NaN",       "\"\\u12\"", "'a'", "\"\xFF\"", "{1: 2}", "-",   "[1 2]"}) {
    EXPECT_FALSE(from_json(bad).is_ok()) << bad;
  }
}

}  // namespace
}  // namespace quire::jinja

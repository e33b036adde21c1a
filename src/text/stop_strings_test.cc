#include "text/stop_strings.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

StopStringMatcher make(const std::vector<std::string>& strings, bool includes_match = false) {
  auto result = StopStringMatcher::create(strings, includes_match);
  EXPECT_TRUE(result.is_ok());
  return std::move(result).value();
}

TEST(StopStrings, MatchAcrossTokenBorders) {
  StopStringMatcher matcher = make({"DEFGHIJ"});
  std::string out;
  EXPECT_FALSE(matcher.add("DEF", out));
  EXPECT_FALSE(matcher.add("G", out));
  EXPECT_FALSE(matcher.add("HI", out));
  EXPECT_EQ(out, "");
  EXPECT_TRUE(matcher.add("J", out));
  EXPECT_EQ(out, "");
  EXPECT_EQ(matcher.matched_index(), 0);
}

TEST(StopStrings, HoldBackOnlyWhatMayMatch) {
  StopStringMatcher matcher = make({"DEFGHIJ", "stop"});
  std::string out;
  EXPECT_FALSE(matcher.add("abcDE", out));
  EXPECT_EQ(out, "abc");
  EXPECT_FALSE(matcher.add("Dst", out));
  EXPECT_EQ(out, "abcDED");
  matcher.finish(out);
  EXPECT_EQ(out, "abcDEDst");
}

TEST(StopStrings, CutExactly) {
  StopStringMatcher matcher = make({"\xE3\x80\x82", "xy"});
  std::string out;
  EXPECT_TRUE(matcher.add("\xE4\xBD\xA0\xE3\x80\x82rest", out));
  EXPECT_EQ(out, "\xE4\xBD\xA0");
  EXPECT_TRUE(matcher.add("more", out));
  EXPECT_EQ(out, "\xE4\xBD\xA0");
  StopStringMatcher including = make({"xy"}, true);
  out.clear();
  EXPECT_TRUE(including.add("axyz", out));
  EXPECT_EQ(out, "axy");
}

TEST(StopStrings, BoundsAreErrors) {
  EXPECT_FALSE(StopStringMatcher::create({""}).is_ok());
  EXPECT_FALSE(StopStringMatcher::create(std::vector<std::string>(257, "a")).is_ok());
  EXPECT_FALSE(StopStringMatcher::create({std::string(65537, 'a')}).is_ok());
  StopStringMatcher none = make({});
  std::string out;
  EXPECT_FALSE(none.add("text", out));
  EXPECT_EQ(out, "text");
}

// Random texts over two letters, cut at random, against a search of the whole text.
TEST(StopStrings, AgreeWithSearch) {
  uint64_t state = 99;
  const auto next = [&](uint64_t bound) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (state >> 33) % bound;
  };
  const auto word = [&](size_t length) {
    std::string out;
    for (size_t i = 0; i < length; ++i) out.push_back(static_cast<char>('a' + next(2)));
    return out;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> strings;
    for (size_t i = 0; i < 1 + next(4); ++i) strings.push_back(word(2 + next(7)));
    const std::string text = word(next(60));
    size_t first_end = std::string::npos, begin_of_longest = 0;
    for (const std::string& string : strings) {
      const size_t at = text.find(string);
      if (at == std::string::npos) continue;
      const size_t end = at + string.size();
      if (first_end == std::string::npos || end < first_end || (end == first_end && at < begin_of_longest)) {
        first_end = end;
        begin_of_longest = at;
      }
    }
    StopStringMatcher matcher = make(strings);
    std::string out;
    bool is_stopped = false;
    for (size_t i = 0; i < text.size();) {
      const size_t length = 1 + next(5);
      is_stopped = matcher.add(std::string_view(text).substr(i, length), out);
      i += length;
    }
    matcher.finish(out);
    EXPECT_EQ(is_stopped, first_end != std::string::npos);
    EXPECT_EQ(out, is_stopped ? text.substr(0, begin_of_longest) : text);
  }
}

// The choices of a request share what the strings became, and nothing else.
TEST(StopStrings, CopiesMatchOnTheirOwn) {
  StopStringMatcher first = make({"abc"});
  StopStringMatcher second = first;
  std::string out_of_first, out_of_second;
  EXPECT_FALSE(first.add("xab", out_of_first));
  EXPECT_FALSE(second.add("ca", out_of_second));
  EXPECT_TRUE(first.add("c", out_of_first));
  EXPECT_FALSE(second.add("c", out_of_second));
  second.finish(out_of_second);
  EXPECT_EQ(out_of_first, "x");
  EXPECT_EQ(out_of_second, "cac");
}

}  // namespace
}  // namespace quire

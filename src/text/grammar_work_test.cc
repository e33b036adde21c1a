// What compiling costs: sources that once took seconds, and that whatever is asked for ends within the limit.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "text/grammar.h"
#include "text/grammar_test_helpers.h"

namespace quire {
namespace {

std::string joined(int count, const std::string& separator, const std::function<std::string(int)>& part) {
  std::string text;
  for (int i = 0; i < count; ++i) text += (i > 0 ? separator : "") + part(i);
  return text;
}

std::string object_schema(int num_properties, const std::function<bool(int)>& is_required,
                          const std::string& further = {}) {
  std::string required;
  for (int i = 0; i < num_properties; ++i) {
    if (is_required(i)) required += (required.empty() ? "\"key " : ",\"key ") + std::to_string(i) + "\"";
  }
  return R"({"type":"object","properties":{)" +
         joined(num_properties, ",", [](int i) { return "\"key " + std::to_string(i) + R"(":{"type":"integer"})"; }) +
         "},\"required\":[" + required + "]" + further + "}";
}

int64_t steps_of(const Result<Grammar::Ptr>& grammar) {
  EXPECT_TRUE(grammar.is_ok()) << grammar.status().message();
  return grammar.is_ok() ? grammar.value()->num_compile_steps() : 0;
}

// An object with many members that may be left out accepts what a list of them says: in their order, with all that are
// required, others last.
void compare_with_list(int num_properties, const std::function<bool(int)>& is_required, bool has_others) {
  const std::string schema =
      object_schema(num_properties, is_required, has_others ? R"(,"additionalProperties":{"type":"null"})" : "");
  const auto grammar = Grammar::from_json_schema(schema).value();
  const GrammarVocabulary::Ptr vocabulary = byte_vocabulary();
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> members;
    bool is_valid = true;
    // Few members or many; at times one that is required is left out, or two change places, or one comes twice.
    const unsigned spread = 1u << random() % 9;
    for (int i = 0; i < num_properties; ++i) {
      const bool must_come = is_required(i) && random() % 400 != 0;
      if (!must_come && random() % spread != 0) {
        is_valid = is_valid && !is_required(i);
        continue;
      }
      members.push_back("\"key " + std::to_string(i) + "\":1");
    }
    if (members.size() > 1 && random() % 4 == 0) {
      const size_t i = random() % (members.size() - 1);
      if (random() % 2 == 0) {
        std::swap(members[i], members[i + 1]);
      } else {
        members[i] = members[i + 1];
      }
      is_valid = false;
    }
    if (random() % 4 == 0) {
      members.push_back("\"ke\":null");
      members.push_back("\"key 1x\":null");
      is_valid = is_valid && has_others;
    }
    std::string text =
        "{" + joined(static_cast<int>(members.size()), ",", [&](int i) { return members[static_cast<size_t>(i)]; }) +
        "}";
    const auto matcher = GrammarMatcher::create(grammar, vocabulary, {kTestEndToken});
    const bool is_accepted = accepted_length(*matcher, text) == text.size() && matcher->may_end();
    ASSERT_EQ(is_accepted, is_valid) << num_properties << " properties: " << text;
  }
}

TEST(GrammarWorkTest, LongObjectsAreListsOfTheirMembers) {
  const auto none = [](int) { return false; };
  for (const bool has_others : {false, true}) {
    compare_with_list(48, none, has_others);  // a list
    compare_with_list(49, none, has_others);  // rules
    compare_with_list(700, none, has_others);
    compare_with_list(
        400, [](int i) { return i == 0; }, has_others);
    compare_with_list(
        400, [](int i) { return i == 399; }, has_others);
    compare_with_list(
        600, [](int i) { return i % 97 == 50 || i == 300 || i == 301; }, has_others);
  }
}

TEST(GrammarWorkTest, LongObjectsGrowWithTheirMembersNotWithTheSquare) {
  const auto none = [](int) { return false; };
  const int64_t steps = steps_of(Grammar::from_json_schema(object_schema(1000, none)));
  EXPECT_LT(steps_of(Grammar::from_json_schema(object_schema(4000, none))), 5 * steps);
  EXPECT_LT(Grammar::from_json_schema(object_schema(3000, none)).value()->num_bytes(), size_t{8} << 20);
}

TEST(GrammarWorkTest, ConstantsShareWhatTheirSchemaSays) {
  const auto schema = [](int num_constants) {
    return "{\"enum\":[" + joined(num_constants, ",", [](int i) { return "\"value " + std::to_string(i) + "\""; }) +
           R"(],"pattern":"^value [0-9]+$","maxLength":50})";
  };
  const int64_t steps = steps_of(Grammar::from_json_schema(schema(1000)));
  EXPECT_LT(steps_of(Grammar::from_json_schema(schema(10'000))), 12 * steps);
}

TEST(GrammarWorkTest, PartsThatMayBeEmptyRepeatCheaply) {
  for (const char* pattern : {"(a?){2000}a{2000}", "(a?b?){2000}", "(a|b?){20000}c", "(a*b*){5000}", "(a*){20000}"}) {
    EXPECT_LT(steps_of(Grammar::from_regex(pattern)), 1'000'000) << pattern;
  }
}

TEST(GrammarWorkTest, RepetitionsOfPartsThatMayBeEmpty) {
  struct Case {
    const char* pattern;
    std::vector<std::string> accepted, refused;
  };
  const Case cases[] = {
      {"(a?){3}", {"", "a", "aaa"}, {"aaaa"}},
      {"(a?){3,}", {"", "aaaaaaa"}, {"b"}},
      {"(a*){2,3}b", {"b", "aaaaab"}, {"a"}},
      {"((a{0,2}){0,2}){2}", {"", "aaaaaaaa"}, {"aaaaaaaaa"}},
      {"(a?b?){10}c", {"c", "ababc", "aaaaaaaaaac", "bababababababababac"}, {"aaaaaaaaaaac", "ab"}},
      {"(a?b?){10,}c", {"c", "abababababababababababababc"}, {""}},
      {"(a?b?){12,13}", {"", "ababababababababababababab"}, {"abababababababababababababa"}},
      {"((a?){10}b?){10}", {"", "aaaaaaaaaab", "bbbbbbbbbb"}, {"bbbbbbbbbbb", "aaaaaaaaaabbbbbbbbbba"}},
      {"(x|(a?b?){9}){9}y", {"y", "xababxy"}, {"xxxxxxxxxxy"}},
      {"((){10}){20}z", {"z"}, {"", "zz"}},
  };
  for (const Case& test : cases) {
    const auto grammar = Grammar::from_regex(test.pattern);
    ASSERT_TRUE(grammar.is_ok()) << test.pattern << ": " << grammar.status().message();
    for (const std::string& text : test.accepted) EXPECT_TRUE(accepts(grammar.value(), text)) << test.pattern << text;
    for (const std::string& text : test.refused) EXPECT_FALSE(accepts(grammar.value(), text)) << test.pattern << text;
  }
}

TEST(GrammarWorkTest, RefusesWhatTakesTooLongAndNamesTheLimit) {
  const std::string chain = joined(5000, "", [](int) { return std::string("[a-z]?\\d*"); });
  const std::string choices = joined(200, ",", [](int i) {
    return "{\"enum\":[" + joined(800, ",", [&](int j) { return std::to_string(i * 800 + j); }) + "]}";
  });
  const std::string integers = joined(3000, ",", [](int i) {
    return "\"k" + std::to_string(i) + R"(":{"type":"integer","multipleOf":7,"minimum":)" + std::to_string(i) +
           R"(,"maximum":)" + std::to_string(i * 100'003LL) + "}";
  });
  const Result<Grammar::Ptr> refused[] = {
      Grammar::from_regex(chain),
      Grammar::from_ebnf("root ::=" + joined(10'000, "", [](int i) { return " \"w" + std::to_string(i) + "\"?"; })),
      Grammar::from_json_schema("{\"oneOf\":[" + choices + "]}"),
      Grammar::from_json_schema(R"({"type":"object","properties":{)" + integers + "}}"),
      Grammar::from_json_schema(R"({"type":"string","pattern":")" +
                                joined(100'000, "", [](int) { return std::string("\\\\p{L}"); }) + "\"}"),
  };
  for (const Result<Grammar::Ptr>& grammar : refused) {
    ASSERT_FALSE(grammar.is_ok());
    EXPECT_EQ(grammar.status().code(), StatusCode::kResourceExhausted);
    EXPECT_NE(grammar.status().message().find("20000000 steps"), std::string::npos) << grammar.status().message();
    EXPECT_NE(grammar.status().message().find("make it smaller"), std::string::npos) << grammar.status().message();
  }
}

// Wherever the work runs out, the end is an error and not a grammar of something else.
TEST(GrammarWorkTest, EndsAtAnyStep) {
  const std::string schema =
      R"({"type":"object","properties":{"a":{"type":"string","pattern":"^[a-c]+x?","maxLength":9},
      "b":{"enum":["u","v",3,{"w":1}],"maxLength":1},"c":{"type":"number","minimum":0.5,"multipleOf":0.25},
      "d":{"oneOf":[{"const":1},{"const":"q"}]},"e":{"type":"array","items":{"$ref":"#"}}},
      "patternProperties":{"^x-":{"type":"null"}},"propertyNames":{"maxLength":5},"required":["a"]})";
  const std::function<Result<Grammar::Ptr>(const GrammarLimits&)> sources[] = {
      [&](const GrammarLimits& limits) { return Grammar::from_json_schema(schema, {}, limits); },
      [](const GrammarLimits& limits) { return Grammar::from_regex("(a?b|[^x-z]{2,5}|\\p{Lu}+)*c{3}", limits); },
      [](const GrammarLimits& limits) {
        return Grammar::from_ebnf("root ::= e\ne ::= e \"+\" t | t\nt ::= [0-9]+ | \"(\" e \")\"", limits);
      },
  };
  for (const auto& source : sources) {
    const int64_t steps = steps_of(source({}));
    ASSERT_GT(steps, 0);
    GrammarLimits limits;
    for (int64_t allowed = 0; allowed < steps; allowed += 1 + steps / 200) {
      limits.max_compile_steps = allowed;
      ASSERT_EQ(source(limits).status().code(), StatusCode::kResourceExhausted) << allowed << " of " << steps;
    }
    limits.max_compile_steps = steps;
    EXPECT_TRUE(source(limits).is_ok());
  }
}

}  // namespace
}  // namespace quire

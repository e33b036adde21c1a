#include "text/grammar_matcher.h"

#include <algorithm>
#include <random>

#include "text/grammar_builder.h"
#include "text/grammar_cache.h"
#include "text/grammar_test_helpers.h"

namespace quire {
namespace {

std::vector<std::string> json_like_tokens() {
  return {"{\"",   "\":",    "\": ", "\",",  "\", \"", "\"}",      "}}",     "]]",   "[[",  "true",
          "false", "null",   "12",   "123",  "0.5",    "e+",       "\\n",    "\\\"", "\\u", "00e",
          "abc",   "hello ", "  ",   "\n  ", ", ",     "],",       "\"],\"", "{}",   "[]",  "-1",
          "1,",    "2]",     "3}",   "\xC3", "\xA9x",  "\xE2\x82", "a\"",    "x\\",  "\"\""};
}

// The definition of the mask: a token may come if all its bytes are accepted one by one.
std::vector<int32_t> allowed_by_trial(const GrammarMatcher& matcher, const GrammarVocabulary& vocabulary) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < vocabulary.num_tokens(); ++id) {
    const auto trial = matcher.clone();
    if (trial->accept(id)) ids.push_back(id);
  }
  return ids;
}

// Random walks under the mask: each mask equals the definition, each walk that ends is a text of the grammar.
void check_random_walks(const Grammar::Ptr& grammar, int num_walks, int max_tokens, uint32_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  const GrammarVocabulary::Ptr vocabulary = byte_vocabulary(json_like_tokens());
  std::mt19937 random(seed);
  for (int walk = 0; walk < num_walks; ++walk) {
    const auto matcher = GrammarMatcher::create(grammar, vocabulary, {kTestEndToken});
    std::string text;
    for (int i = 0; i < max_tokens; ++i) {
      const std::vector<int32_t> allowed = allowed_tokens(*matcher, *vocabulary);
      ASSERT_EQ(allowed, allowed_by_trial(*matcher, *vocabulary)) << "after " << text;
      ASSERT_FALSE(allowed.empty()) << "after " << text;
      ASSERT_EQ(std::binary_search(allowed.begin(), allowed.end(), kTestEndToken), matcher->may_end());
      const int32_t token = allowed[random() % allowed.size()];
      ASSERT_TRUE(matcher->accept(token));
      if (token == kTestEndToken) {
        EXPECT_TRUE(accepts(grammar, text)) << text;
        break;
      }
      text += vocabulary->token_bytes(token);
    }
  }
}

TEST(GrammarMatcherTest, GivesUpWhereMasksWouldTakeSeconds) {
  // Where many optional letters stand before as many, each letter can be any of those.
  const GrammarVocabulary::Ptr vocabulary = byte_vocabulary({"aa", "aaa", "aaaa", "aaaaaaaa"});
  std::string pattern = "a{1200}";
  for (int i = 0; i < 1200; ++i) pattern.insert(0, "a?");
  const Grammar::Ptr grammar = Grammar::from_regex(pattern).value();
  auto matcher = GrammarMatcher::create(grammar, vocabulary, {kTestEndToken});
  EXPECT_TRUE(allowed_tokens(*matcher, *vocabulary).empty());
  EXPECT_TRUE(matcher->has_given_up());
  EXPECT_FALSE(matcher->accept('a'));
  EXPECT_TRUE(matcher->clone()->has_given_up());
  // What was not computed to its end is not there for the next one either.
  matcher = GrammarMatcher::create(grammar, vocabulary, {kTestEndToken});
  EXPECT_TRUE(allowed_tokens(*matcher, *vocabulary).empty());
  EXPECT_TRUE(matcher->has_given_up());
}

TEST(GrammarMatcherTest, WorkThatIsSpreadOverAnAnswerIsDone) {
  const GrammarVocabulary::Ptr vocabulary = byte_vocabulary(json_like_tokens());
  const Grammar::Ptr grammar = Grammar::from_regex("(.{1,200}x){1,20}").value();
  const auto matcher = GrammarMatcher::create(grammar, vocabulary, {kTestEndToken});
  for (int i = 0; i < 2000; ++i) {
    ASSERT_FALSE(allowed_tokens(*matcher, *vocabulary).empty()) << i;
    ASSERT_TRUE(matcher->accept(i % 7 == 6 ? 'x' : 'a')) << i;
  }
  EXPECT_FALSE(matcher->has_given_up());
}

TEST(GrammarMatcherTest, MasksEqualTheirDefinitionOnRandomWalks) {
  check_random_walks(Grammar::from_any_json_object().value(), 20, 40, 1);
  check_random_walks(Grammar::from_any_json_value(JsonWhitespace::kCompact).value(), 20, 40, 2);
  check_random_walks(Grammar::from_regex("(ab|a)*(hello |12){2,4}[^x]?").value(), 20, 40, 3);
  check_random_walks(Grammar::from_ebnf("root ::= root root | \"a\" | \"[\" root \"]\" | [^a]").value(), 10, 30, 4);
  check_random_walks(
      Grammar::from_ebnf("root ::= sum\nsum ::= sum \"+\" p | p\np ::= [0-9]+ | \"(\" sum \")\"").value(), 10, 30, 5);
}

TEST(GrammarMatcherTest, MasksEqualTheirDefinitionForSchemas) {
  const std::string schemas[] = {
      R"({"properties":{"abc":{"type":"string","maxLength":70},"x":{"type":"array","items":{"$ref":"#"}},
          "true":{"type":"number","minimum":-2,"maximum":123.5}},"required":["x"]})",
      R"({"type":"object","additionalProperties":{"type":["integer","null"]},"maxProperties":3})",
      R"({"anyOf":[{"type":"string","pattern":"^(abc|12)*$","maxLength":20},{"enum":["hello ","abc",[1,2],12]}]})",
      R"({"type":"array","prefixItems":[{"type":"string","format":"date"},{"type":"boolean"}],"minItems":1})"};
  uint32_t seed = 20;
  for (const std::string& schema : schemas) {
    check_random_walks(Grammar::from_json_schema(schema).value(), 8, 40, seed++);
  }
}

TEST(GrammarMatcherTest, GrammarsShareTheTokenSetsOfEqualRules) {
  const GrammarVocabulary::Ptr vocabulary = byte_vocabulary(json_like_tokens());
  auto use = [&](const std::string& schema) {
    const auto grammar = Grammar::from_json_schema(schema).value();
    const auto matcher = GrammarMatcher::create(grammar, vocabulary, {kTestEndToken});
    for (char c : std::string("{\"k\": \"x")) {
      (void)allowed_tokens(*matcher, *vocabulary);
      ASSERT_TRUE(matcher->accept(static_cast<unsigned char>(c)));
    }
    const std::vector<int32_t> allowed = allowed_tokens(*matcher, *vocabulary);
    EXPECT_EQ(std::binary_search(allowed.begin(), allowed.end(), 258 + 3), schema.find("\"j\"") != std::string::npos)
        << "\", may follow only where another property does";
  };
  use(R"({"properties":{"k":{"type":"string"}}})");
  use(R"({"properties":{"k":{"type":"string"},"j":{"type":"string"}}})");
}

TEST(GrammarMatcherTest, EndTokensOnlyWhereItMayEnd) {
  const auto grammar = Grammar::from_regex("ab?").value();
  const auto matcher = byte_matcher(grammar);
  EXPECT_FALSE(matcher->may_end());
  EXPECT_FALSE(matcher->accept(kTestEndToken));
  ASSERT_TRUE(matcher->accept('a'));
  EXPECT_TRUE(matcher->may_end());
  EXPECT_FALSE(matcher->must_end());
  ASSERT_TRUE(matcher->accept('b'));
  EXPECT_TRUE(matcher->must_end());
  ASSERT_TRUE(matcher->accept(kTestEndToken));
  EXPECT_TRUE(matcher->has_ended());
  EXPECT_FALSE(matcher->accept(kTestEndToken));
  EXPECT_TRUE(allowed_tokens(*matcher, *byte_vocabulary()).empty());
  matcher->rollback(1);
  EXPECT_FALSE(matcher->has_ended());
  EXPECT_EQ(allowed_tokens(*matcher, *byte_vocabulary()), std::vector<int32_t>{kTestEndToken});
}

TEST(GrammarMatcherTest, RollsBackAnyNumberOfTokens) {
  const auto grammar = Grammar::from_any_json_value().value();
  const GrammarVocabulary::Ptr vocabulary = byte_vocabulary(json_like_tokens());
  const auto matcher = GrammarMatcher::create(grammar, vocabulary, {kTestEndToken});
  std::mt19937 random(7);
  std::vector<std::vector<int32_t>> masks;
  std::vector<int32_t> tokens;
  for (int i = 0; i < 2000; ++i) {
    masks.push_back(allowed_tokens(*matcher, *vocabulary));
    std::vector<int32_t> choices = masks.back();
    if (choices.size() > 1) std::erase(choices, kTestEndToken);
    tokens.push_back(choices[random() % choices.size()]);
    ASSERT_TRUE(matcher->accept(tokens.back()));
    if (tokens.back() == kTestEndToken) break;
    if (random() % 8 == 0) {
      const int count = static_cast<int>(random() % std::min<size_t>(tokens.size() + 1, 10));
      matcher->rollback(count);
      tokens.resize(tokens.size() - static_cast<size_t>(count));
      masks.resize(masks.size() - static_cast<size_t>(count));
    }
  }
  const auto copy = matcher->clone();
  while (!tokens.empty()) {
    const int count = static_cast<int>(std::min<size_t>(tokens.size(), 1 + random() % 300));
    copy->rollback(count);
    tokens.resize(tokens.size() - static_cast<size_t>(count));
    EXPECT_EQ(allowed_tokens(*copy, *vocabulary), masks[tokens.size()]);
  }
  EXPECT_EQ(copy->num_accepted(), 0);
}

TEST(GrammarMatcherTest, LongAmbiguousTextsStayCheap) {
  const auto grammar = Grammar::from_ebnf("root ::= x x\nx ::= x x | \"a\" | \"aa\" | \"\"").value();
  EXPECT_TRUE(accepts(grammar, std::string(500, 'a')));
  const auto nested = Grammar::from_any_json_value().value();
  EXPECT_TRUE(accepts(nested, std::string(20'000, '[') + std::string(20'000, ']')));
}

TEST(GrammarBuilderTest, SpecialTokensWhereTheVocabularyHasThem) {
  GrammarBuilder builder;
  const auto text = builder.text_without({"<tool>", "</s>"});
  const auto call =
      builder.sequence({builder.special_token("<tool>"), builder.literal("x"), builder.special_token("</s>")});
  const auto grammar = builder.build(builder.sequence({text, builder.optional(call)})).value();
  const GrammarVocabulary::Ptr vocabulary = byte_vocabulary({"a<", "<t", "/s>", "</s"});
  const auto matcher = GrammarMatcher::create(grammar, vocabulary, {kTestEndToken});
  for (char c : std::string("hi <tool")) ASSERT_TRUE(matcher->accept(static_cast<unsigned char>(c)));
  EXPECT_FALSE(matcher->accept('>')) << "a control token cannot be spelled";
  ASSERT_TRUE(matcher->accept('!'));
  const std::vector<int32_t> allowed = allowed_tokens(*matcher, *vocabulary);
  EXPECT_TRUE(std::binary_search(allowed.begin(), allowed.end(), 257));
  EXPECT_TRUE(std::binary_search(allowed.begin(), allowed.end(), kTestEndToken));
  ASSERT_TRUE(matcher->accept(257));
  EXPECT_EQ(allowed_tokens(*matcher, *vocabulary), std::vector<int32_t>{'x'});
  ASSERT_TRUE(matcher->accept('x'));
  // </s> is no token of this vocabulary, so its text stands for it.
  EXPECT_EQ(allowed_tokens(*matcher, *vocabulary), (std::vector<int32_t>{'<', 258 + 3}));
  for (char c : std::string("</s>")) ASSERT_TRUE(matcher->accept(static_cast<unsigned char>(c)));
  EXPECT_TRUE(matcher->must_end());
}

TEST(GrammarBuilderTest, FreeTextUpToAMark) {
  GrammarBuilder builder;
  const auto grammar =
      builder.build(builder.sequence({builder.text_without({"aba"}), builder.literal("aba!")})).value();
  EXPECT_TRUE(accepts(grammar, "aba!"));
  EXPECT_TRUE(accepts(grammar, "xaabaaba!") == false);
  EXPECT_TRUE(accepts(grammar, "xabbaaba!"));
  EXPECT_FALSE(accepts(grammar, "xaba"));
  EXPECT_TRUE(accepts(grammar,
                      "\xC3\xA9\xE2\x82\xAC"
                      "aba!"));
  EXPECT_FALSE(accepts_prefix(grammar,
                              "\xC3"
                              "a"));
}

// F086.
TEST(GrammarCacheTest, IsBoundedAndCounts) {
  GrammarCache cache(200'000);
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(cache.regex("a{" + std::to_string(i + 1) + "}").is_ok());
    ASSERT_TRUE(cache.regex("a{1}").is_ok());
  }
  const GrammarCache::Stats stats = cache.stats();
  EXPECT_EQ(stats.num_misses, 200u);
  EXPECT_EQ(stats.num_hits, 200u);
  EXPECT_LE(stats.num_bytes, 200'000u);
  EXPECT_LT(stats.num_grammars, 200u);
  EXPECT_FALSE(cache.regex("foo**").is_ok());
  EXPECT_EQ(cache.choices(std::vector<std::string>{"a,b"}).value() ==
                cache.choices(std::vector<std::string>{"a", "b"}).value(),
            false);
}

}  // namespace
}  // namespace quire

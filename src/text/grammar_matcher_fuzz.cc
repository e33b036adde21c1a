// Fuzzes matchers: bytes choose one of a few grammars and then tokens, rollbacks and clones. Each mask must equal what
// accepting the tokens one by one says, and going back must lead to where it came from.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "text/grammar.h"
#include "text/grammar_matcher.h"
#include "text/grammar_vocabulary.h"

namespace quire {
namespace {

struct Setting {
  GrammarVocabulary::Ptr vocabulary;
  std::vector<Grammar::Ptr> grammars;
};

Setting make_setting() {
  Setting setting;
  std::vector<GrammarVocabulary::Token> tokens;
  for (const char* text : {"{",   "}",  "[",  "]",  "\"", ":",     ",",    " ",    "\n",   "a",   "b",
                           "1",   "-",  ".",  "e",  "\\", "u",     "\xC3", "\xA9", "{\"",  "\":", "\",\"",
                           "\"}", "]]", "ab", "11", "  ", "\\u00", "a\"",  "\"a",  "true", "null"}) {
    tokens.push_back({text, false});
  }
  tokens.push_back({"<end>", true});
  setting.vocabulary = GrammarVocabulary::create(tokens).value();
  setting.grammars.push_back(Grammar::from_any_json_value().value());
  setting.grammars.push_back(
      Grammar::from_json_schema(R"({"type":"object","properties":{"a":{"type":"string","maxLength":3},
        "b":{"type":"array","items":{"$ref":"#"}},"ab":{"type":"number","minimum":-1,"maximum":11.1}}})")
          .value());
  setting.grammars.push_back(Grammar::from_regex("(a|ab|\xC3\xA9)*(b{2,5}|1+\\.)?").value());
  setting.grammars.push_back(
      Grammar::from_ebnf("root ::= root root | root \",\" | \"[\" root \"]\" | [ab1]{0,3}").value());
  return setting;
}

std::vector<uint32_t> mask_of(GrammarMatcher& matcher, const GrammarVocabulary& vocabulary) {
  std::vector<uint32_t> mask(vocabulary.num_mask_words());
  matcher.fill_mask(mask);
  return mask;
}

}  // namespace
}  // namespace quire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire;
  if (size < 1 || size > 200) return 0;
  static const Setting setting = make_setting();
  const GrammarVocabulary& vocabulary = *setting.vocabulary;
  const int32_t end_id = vocabulary.num_tokens() - 1;
  auto matcher =
      GrammarMatcher::create(setting.grammars[data[0] % setting.grammars.size()], setting.vocabulary, {end_id});
  std::vector<std::vector<uint32_t>> masks{mask_of(*matcher, vocabulary)};
  for (size_t i = 1; i < size; ++i) {
    if (data[i] >= 240) {
      const auto count = static_cast<int>(std::min<size_t>(masks.size() - 1, data[i] - 240));
      matcher->rollback(count);
      masks.resize(masks.size() - static_cast<size_t>(count));
      CHECK(mask_of(*matcher, vocabulary) == masks.back());
      continue;
    }
    if (data[i] >= 230) matcher = matcher->clone();
    const int32_t token = data[i] % vocabulary.num_tokens();
    const bool is_allowed = (masks.back()[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
    CHECK(matcher->accept(token) == is_allowed);
    if (is_allowed) masks.push_back(mask_of(*matcher, vocabulary));
  }
  return 0;
}

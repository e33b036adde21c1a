// Fuzzes the sources of grammars: the first byte chooses schema, regex, EBNF or choices. What compiles is walked a
// little under its own mask, with small limits.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "text/grammar.h"
#include "text/grammar_matcher.h"
#include "text/grammar_vocabulary.h"

namespace quire {
namespace {

GrammarVocabulary::Ptr make_vocabulary() {
  std::vector<GrammarVocabulary::Token> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back({std::string(1, static_cast<char>(byte)), false});
  tokens.push_back({"<end>", true});
  for (const char* text :
       {"{\"", "\": ", "\", \"", "\"}", "}}", "]]", "abc", "12", "  ", "\\u00", "\xC3\xA9", "true"}) {
    tokens.push_back({text, false});
  }
  return GrammarVocabulary::create(tokens).value();
}

Result<Grammar::Ptr> compile(uint8_t kind, std::string_view source) {
  GrammarLimits limits;
  limits.max_states = 20'000;
  limits.max_repetition = 2000;
  switch (kind % 5) {
    case 0:
      return Grammar::from_json_schema(source, {}, limits);
    case 1:
      return Grammar::from_json_schema(
          source, {.whitespace = JsonWhitespace::kCompact, .is_lenient = true, .writes_unlisted_properties = true},
          limits);
    case 2:
      return Grammar::from_regex(source, limits);
    case 3:
      return Grammar::from_ebnf(source, limits);
    default:
      return Grammar::from_choices(
          std::vector<std::string>{std::string(source.substr(0, source.size() / 2)), std::string(source)}, limits);
  }
}

}  // namespace
}  // namespace quire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire;
  if (size < 2) return 0;
  static const GrammarVocabulary::Ptr vocabulary = make_vocabulary();
  const std::string_view source(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Result<Grammar::Ptr> grammar = compile(data[0], source);
  if (!grammar.is_ok()) return 0;
  const auto matcher = GrammarMatcher::create(grammar.value(), vocabulary, {256});
  std::vector<uint32_t> mask(vocabulary->num_mask_words());
  uint32_t random = static_cast<uint32_t>(size) * 2654435761u;
  for (int i = 0; i < 30 && !matcher->has_ended(); ++i) {
    matcher->fill_mask(mask);
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < vocabulary->num_tokens(); ++id) {
      if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
    }
    // A grammar over bytes can always go on or end.
    CHECK(!allowed.empty());
    random = random * 1664525u + 1013904223u;
    CHECK(matcher->accept(allowed[(random >> 8) % allowed.size()]));
    if (i % 7 == 6) matcher->rollback(2);
  }
  return 0;
}

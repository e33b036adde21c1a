// Puts a Grammar together from parts: texts, special tokens, schemas, regular expressions, free text up to a mark. All
// sources go through it; callers use it for the formats of tool calls. A part that cannot be made (a bad schema) is an
// error of its own; errors of size come from build(). One thread at a time.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/grammar.h"

namespace quire {

namespace grammar_internal {
class NodePool;
}

class GrammarBuilder {
 public:
  // A part; a number that is good for this builder only. Parts may be used any number of times.
  struct Node {
    int32_t index = 0;
  };
  struct CodePointRange {
    char32_t first = 0;
    char32_t last = 0;  // inclusive
  };

  explicit GrammarBuilder(const GrammarLimits& limits = {});
  ~GrammarBuilder();
  GrammarBuilder(const GrammarBuilder&) = delete;
  GrammarBuilder& operator=(const GrammarBuilder&) = delete;

  Node empty();                          // nothing at all: always matches
  Node literal(std::string_view bytes);  // exactly these
  // The token with exactly this text where the vocabulary has it as a control token, otherwise its text as bytes.
  Node special_token(std::string_view text);
  Node character(std::span<const CodePointRange> ranges, bool is_negated = false);
  Node any_character();

  Node sequence(std::span<const Node> parts);
  Node sequence(std::initializer_list<Node> parts) { return sequence({parts.begin(), parts.size()}); }
  Node alternatives(std::span<const Node> parts);  // none: can never match
  Node alternatives(std::initializer_list<Node> parts) { return alternatives({parts.begin(), parts.size()}); }
  Node optional(Node part) { return repeat(part, 0, 1); }
  Node repeat(Node part, int min_count, int max_count = kNoMaximum);
  // `part` from min to max times, with `separator` between.
  Node separated(Node part, Node separator, int min_count, int max_count = kNoMaximum);

  // Any text, also none, in which none of these strings occurs. Control tokens are not text. Follow it by one of the
  // strings for "free text until"; nothing follows: the answer may also end. The strings must not be empty.
  Node text_without(std::span<const std::string> strings);
  Node text_without(std::initializer_list<std::string> strings) {
    return text_without({strings.begin(), strings.size()});
  }
  Node any_text() { return text_without(std::span<const std::string>()); }

  // Rules may refer to each other and to themselves.
  Node declare_rule(std::string_view name);  // a reference, to be used before and after its definition
  void define_rule(Node rule, Node body);    // once for each declared rule

  Result<Node> json_schema(std::string_view schema_json, const JsonSchemaOptions& options = {});
  Node json_value(JsonWhitespace whitespace = JsonWhitespace::kFlexible);
  Node json_object(JsonWhitespace whitespace = JsonWhitespace::kFlexible);
  Node json_string();
  Result<Node> regex(std::string_view pattern);
  Result<Node> ebnf(std::string_view text);

  // Afterwards the builder is spent.
  Result<Grammar::Ptr> build(Node root);

  static constexpr int kNoMaximum = -1;

 private:
  std::unique_ptr<grammar_internal::NodePool> pool_;
};

}  // namespace quire

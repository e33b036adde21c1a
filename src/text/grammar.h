// What an answer may look like, compiled: a JSON schema, a regular expression, a list of choices or an EBNF grammar
// turned into one pushdown automaton over bytes. Says nothing of tokens by itself: GrammarMatcher follows one answer
// and tells which tokens of a vocabulary may come next. Called by the text pool; a Grammar is immutable and shared
// between threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace quire {

// Bounds on what one source may cost. Above them the source is refused with a message that names the bound.
struct GrammarLimits {
  size_t max_source_bytes = 2 << 20;
  int max_depth = 200;           // of groups, of nested schemas, of references followed without an own rule
  int max_rules = 20'000;        // and no more rules in a row without a byte between them than max_depth * 4
  int max_states = 400'000;      // of the automaton, all rules together
  int max_repetition = 100'000;  // of a bound {m,n}, nested bounds multiplied
  // Of the compiler's loops: some 0.3 s of one core, since a thread that others wait for does it.
  int64_t max_compile_steps = 20'000'000;
};

// White space between the tokens of JSON. A model may not write blanks for ever in any of them.
enum class JsonWhitespace : uint8_t {
  kFlexible,  // none, one space, or a line break with up to 40 spaces or 10 tabs
  kCompact,   // none
};

struct JsonSchemaOptions {
  JsonWhitespace whitespace = JsonWhitespace::kFlexible;
  // Keywords that cannot be honoured (not, if, uniqueItems, unknown formats, oneOf of schemas that may overlap) are
  // ignored instead of refused.
  bool is_lenient = false;
  // Where a schema lists properties and says nothing of "additionalProperties", others may come too, as the standard
  // has it. Off: only those that are listed, which satisfies the schema all the same.
  bool writes_unlisted_properties = false;
};

namespace grammar_internal {
struct Automaton;
}

class Grammar {
 public:
  using Ptr = std::shared_ptr<const Grammar>;

  static Result<Ptr> from_json_schema(std::string_view schema_json, const JsonSchemaOptions& options = {},
                                      const GrammarLimits& limits = {});
  // Any JSON object; any_json_value: any JSON at all.
  static Result<Ptr> from_any_json_object(JsonWhitespace whitespace = JsonWhitespace::kFlexible);
  static Result<Ptr> from_any_json_value(JsonWhitespace whitespace = JsonWhitespace::kFlexible);
  // The whole answer must match, as if the pattern stood between ^ and $.
  static Result<Ptr> from_regex(std::string_view pattern, const GrammarLimits& limits = {});
  static Result<Ptr> from_choices(std::span<const std::string> choices, const GrammarLimits& limits = {});
  // The GBNF dialect of EBNF: rules "name ::= ...", the first symbol is "root".
  static Result<Ptr> from_ebnf(std::string_view text, const GrammarLimits& limits = {});

  ~Grammar();
  Grammar(const Grammar&) = delete;
  Grammar& operator=(const Grammar&) = delete;

  // Memory that it holds now, token sets that matchers left with it included.
  size_t num_bytes() const;
  int num_rules() const;
  int num_states() const;
  int64_t num_compile_steps() const;  // of GrammarLimits::max_compile_steps

 private:
  friend class GrammarBuilder;
  friend class GrammarMatcher;
  struct Impl;

  explicit Grammar(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

// Regular expressions in the common subset of Python's and JavaScript's syntax, read into a tree and from there into
// nodes. Texts only are described: no captures, no lookaround, no back-references; those are refused. Internal to the
// grammar files; pure.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/grammar_nodes.h"

namespace quire::grammar_internal {

struct RegexNode {
  enum class Kind : uint8_t { kEmpty, kCharacter, kSequence, kAlternatives, kRepeat, kTextStart, kTextEnd };
  Kind kind = Kind::kEmpty;
  int min_count = 0, max_count = 0;  // max -1: any number
  bool has_anchor = false;           // here or below
  int64_t num_repetitions = 1;       // bounds of repeats inside each other, multiplied
  std::vector<CodePointRange> ranges = {};
  std::vector<RegexNode> children = {};
};

Result<RegexNode> parse_regex(std::string_view pattern, const GrammarLimits& limits, CompileWork& work);

// How many characters the matched texts have; max -1: any number.
struct RegexLength {
  int64_t min = 0;
  int64_t max = 0;
};
RegexLength length_of(const RegexNode& regex);

struct RegexOptions {
  // What stands for one character out of these ranges; by default the character itself.
  std::function<NodeIndex(NodePool&, const std::vector<CodePointRange>&)> make_character = {};
  // The pattern may match anywhere inside the text, as in JSON schemas; otherwise it must match all of it.
  bool is_search = false;
};
Result<NodeIndex> regex_to_node(NodePool& pool, const RegexNode& regex, const RegexOptions& options);

}  // namespace quire::grammar_internal

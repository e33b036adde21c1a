// Strings of a schema: lengths, patterns and formats, alone and together. See grammar_schema_compiler.h.
#include <algorithm>
#include <iterator>

#include "text/grammar_formats.h"
#include "text/grammar_json.h"
#include "text/grammar_lowering.h"
#include "text/grammar_regex.h"
#include "text/grammar_schema_compiler.h"

namespace quire::grammar_internal {
namespace {

constexpr size_t kMaxStringStates = 60'000;

// Whether the matched texts have only the lengths that the tree says: no text may stand around the match.
bool is_whole_text(const RegexNode& tree, bool is_search) {
  if (!is_search) return true;
  return tree.kind == RegexNode::Kind::kSequence && tree.children.front().kind == RegexNode::Kind::kTextStart &&
         tree.children.back().kind == RegexNode::Kind::kTextEnd;
}

}  // namespace

Result<NodeIndex> SchemaCompiler::pattern_node(const std::string& pattern, bool is_search, RegexNode* tree) {
  ASSIGN_OR_RETURN(*tree, parse_regex(pattern, pool_.limits(), pool_.work()));
  return regex_to_node(pool_, *tree, {.make_character = json_character, .is_search = is_search});
}

Result<bool> SchemaCompiler::pattern_matches(const std::string& pattern, std::string_view text) {
  auto found = pattern_graphs_.find(pattern);
  if (found == pattern_graphs_.end()) {
    RegexNode tree;
    ASSIGN_OR_RETURN(const NodeIndex node, pattern_node(pattern, true, &tree));
    ASSIGN_OR_RETURN(const StateGraph lowered, lower_regular(pool_, node));
    found = pattern_graphs_.emplace(pattern, remove_empty_edges(lowered, pool_.work())).first;
  }
  const std::string quoted = quote_json(text);
  return accepts_text(found->second, std::string_view(quoted).substr(1, quoted.size() - 2), pool_.work());
}

Result<NodeIndex> SchemaCompiler::string_node(const MergedSchema& merged) {
  struct Shape {
    std::string pattern;
    bool is_search;
  };
  std::vector<Shape> shapes;
  for (const std::string& pattern : merged.patterns) shapes.push_back({pattern, true});
  for (const std::string& format : merged.formats) {
    const FormatPattern known = pattern_of_format(format);
    if (known.kind == FormatPattern::Kind::kPattern) {
      shapes.push_back({known.pattern, false});
    } else if (known.kind == FormatPattern::Kind::kUnknown && !options_.is_lenient) {
      return unimplemented("schema: the format \"" + format +
                           "\" is not supported; write the schema without it, or use " + "\"pattern\"");
    }
  }
  ASSIGN_OR_RETURN(const int min_length, checked_count(merged.min_length, "minLength"));
  const bool has_max = merged.max_length != -1;
  ASSIGN_OR_RETURN(const int max_length, checked_count(merged.max_length, "maxLength"));
  if (has_max && max_length < min_length) return pool_.never();
  if (shapes.empty() && !merged.limits_length()) return json_string(pool_);
  const NodeIndex quote = pool_.bytes("\"");
  if (shapes.empty()) {
    return pool_.sequence({quote, pool_.repeat(json_any_character(pool_), min_length, max_length), quote});
  }
  std::vector<NodeIndex> parts;
  bool fits_length = !merged.limits_length();
  for (const Shape& shape : shapes) {
    RegexNode tree;
    ASSIGN_OR_RETURN(const NodeIndex part, pattern_node(shape.pattern, shape.is_search, &tree));
    parts.push_back(part);
    const RegexLength length = length_of(tree);
    const int64_t longest = is_whole_text(tree, shape.is_search) ? length.max : -1;
    fits_length = fits_length || (length.min >= min_length && (!has_max || (longest != -1 && longest <= max_length)));
  }
  if (!fits_length) {
    const std::vector<CodePointRange> all = normalize_ranges({{0, kMaxCodePoint}});
    parts.push_back(pool_.repeat(json_character(pool_, all), min_length, max_length));
  }
  if (parts.size() == 1) return pool_.sequence({quote, parts[0], quote});
  ASSIGN_OR_RETURN(StateGraph both, lower_regular(pool_, parts[0]));
  for (size_t i = 1; i < parts.size(); ++i) {
    ASSIGN_OR_RETURN(const StateGraph other, lower_regular(pool_, parts[i]));
    std::optional<StateGraph> met = intersect(both, other, kMaxStringStates, pool_.work());
    if (!met) {
      RETURN_IF_ERROR(pool_.work().status());
      return resource_exhausted(
          "schema: the pattern, format and length limits of a string together need too many states; drop one of them");
    }
    both = std::move(*met);
  }
  return pool_.sequence({quote, pool_.graph(std::move(both)), quote});
}

}  // namespace quire::grammar_internal

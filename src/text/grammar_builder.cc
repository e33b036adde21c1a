#include "text/grammar_builder.h"

#include <utility>

#include "base/check.h"
#include "text/grammar_compile.h"
#include "text/grammar_ebnf.h"
#include "text/grammar_free_text.h"
#include "text/grammar_impl.h"
#include "text/grammar_json.h"
#include "text/grammar_nodes.h"
#include "text/grammar_regex.h"
#include "text/grammar_schema.h"

namespace quire {

namespace internal = grammar_internal;

namespace {

std::vector<internal::NodeIndex> indices_of(std::span<const GrammarBuilder::Node> nodes) {
  std::vector<internal::NodeIndex> indices;
  for (GrammarBuilder::Node node : nodes) indices.push_back(node.index);
  return indices;
}

}  // namespace

GrammarBuilder::GrammarBuilder(const GrammarLimits& limits) : pool_(std::make_unique<internal::NodePool>(limits)) {}
GrammarBuilder::~GrammarBuilder() = default;

GrammarBuilder::Node GrammarBuilder::empty() {
  return {pool_->empty()};
}

GrammarBuilder::Node GrammarBuilder::literal(std::string_view bytes) {
  return {pool_->bytes(bytes)};
}

GrammarBuilder::Node GrammarBuilder::special_token(std::string_view text) {
  return {text.empty() ? pool_->empty() : pool_->special(text)};
}

GrammarBuilder::Node GrammarBuilder::character(std::span<const CodePointRange> ranges, bool is_negated) {
  std::vector<internal::CodePointRange> all;
  for (const CodePointRange& range : ranges) all.push_back({range.first, range.last});
  all = internal::normalize_ranges(std::move(all));
  return {pool_->character(is_negated ? internal::complement_ranges(all) : std::move(all))};
}

GrammarBuilder::Node GrammarBuilder::any_character() {
  return character({}, true);
}

GrammarBuilder::Node GrammarBuilder::sequence(std::span<const Node> parts) {
  return {pool_->sequence(indices_of(parts))};
}

GrammarBuilder::Node GrammarBuilder::alternatives(std::span<const Node> parts) {
  return {pool_->alternatives(indices_of(parts))};
}

GrammarBuilder::Node GrammarBuilder::repeat(Node part, int min_count, int max_count) {
  return {pool_->repeat(part.index, min_count, max_count)};
}

GrammarBuilder::Node GrammarBuilder::separated(Node part, Node separator, int min_count, int max_count) {
  if (max_count == 0) return empty();
  const Node more = sequence({separator, part});
  const Node some = sequence(
      {part, repeat(more, min_count > 0 ? min_count - 1 : 0, max_count == kNoMaximum ? kNoMaximum : max_count - 1)});
  return min_count == 0 ? optional(some) : some;
}

GrammarBuilder::Node GrammarBuilder::text_without(std::span<const std::string> strings) {
  return {internal::text_without(*pool_, strings)};
}

GrammarBuilder::Node GrammarBuilder::declare_rule(std::string_view name) {
  return {pool_->declare_rule(name)};
}

void GrammarBuilder::define_rule(Node rule, Node body) {
  pool_->define_rule(rule.index, body.index);
}

Result<GrammarBuilder::Node> GrammarBuilder::json_schema(std::string_view schema_json,
                                                         const JsonSchemaOptions& options) {
  ASSIGN_OR_RETURN(const internal::NodeIndex node, internal::schema_to_node(*pool_, schema_json, options));
  return Node{node};
}

GrammarBuilder::Node GrammarBuilder::json_value(JsonWhitespace whitespace) {
  return {internal::json_value(*pool_, whitespace)};
}

GrammarBuilder::Node GrammarBuilder::json_object(JsonWhitespace whitespace) {
  return {internal::json_object(*pool_, whitespace)};
}

GrammarBuilder::Node GrammarBuilder::json_string() {
  return {internal::json_string(*pool_)};
}

Result<GrammarBuilder::Node> GrammarBuilder::regex(std::string_view pattern) {
  ASSIGN_OR_RETURN(const internal::RegexNode tree, internal::parse_regex(pattern, pool_->limits(), pool_->work()));
  ASSIGN_OR_RETURN(const internal::NodeIndex node, internal::regex_to_node(*pool_, tree, {}));
  return Node{node};
}

Result<GrammarBuilder::Node> GrammarBuilder::ebnf(std::string_view text) {
  ASSIGN_OR_RETURN(const internal::NodeIndex node, internal::ebnf_to_node(*pool_, text));
  return Node{node};
}

Result<Grammar::Ptr> GrammarBuilder::build(Node root) {
  CHECK(pool_ != nullptr);
  const std::unique_ptr<internal::NodePool> pool = std::move(pool_);
  ASSIGN_OR_RETURN(internal::Automaton automaton, internal::compile_grammar(*pool, root.index));
  return Grammar::Ptr(new Grammar(std::make_unique<Grammar::Impl>(std::move(automaton))));
}

}  // namespace quire

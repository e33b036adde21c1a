#include "text/grammar.h"

#include <utility>
#include <vector>

#include "text/grammar_builder.h"
#include "text/grammar_impl.h"

namespace quire {
namespace {

using Node = GrammarBuilder::Node;

}  // namespace

Grammar::Grammar(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Grammar::~Grammar() = default;

Result<Grammar::Ptr> Grammar::from_json_schema(std::string_view schema_json, const JsonSchemaOptions& options,
                                               const GrammarLimits& limits) {
  GrammarBuilder builder(limits);
  ASSIGN_OR_RETURN(const Node root, builder.json_schema(schema_json, options));
  return builder.build(root);
}

Result<Grammar::Ptr> Grammar::from_any_json_object(JsonWhitespace whitespace) {
  GrammarBuilder builder;
  return builder.build(builder.json_object(whitespace));
}

Result<Grammar::Ptr> Grammar::from_any_json_value(JsonWhitespace whitespace) {
  GrammarBuilder builder;
  return builder.build(builder.json_value(whitespace));
}

Result<Grammar::Ptr> Grammar::from_regex(std::string_view pattern, const GrammarLimits& limits) {
  GrammarBuilder builder(limits);
  ASSIGN_OR_RETURN(const Node root, builder.regex(pattern));
  return builder.build(root);
}

Result<Grammar::Ptr> Grammar::from_choices(std::span<const std::string> choices, const GrammarLimits& limits) {
  if (choices.empty()) return invalid_argument("the list of choices is empty");
  GrammarBuilder builder(limits);
  std::vector<Node> nodes;
  size_t num_bytes = 0;
  for (const std::string& choice : choices) {
    num_bytes += choice.size();
    nodes.push_back(builder.literal(choice));
  }
  if (num_bytes > limits.max_source_bytes) {
    return invalid_argument("the choices have more than " + std::to_string(limits.max_source_bytes) + " bytes");
  }
  return builder.build(builder.alternatives(nodes));
}

Result<Grammar::Ptr> Grammar::from_ebnf(std::string_view text, const GrammarLimits& limits) {
  GrammarBuilder builder(limits);
  ASSIGN_OR_RETURN(const Node root, builder.ebnf(text));
  return builder.build(root);
}

size_t Grammar::num_bytes() const {
  return impl_->num_bytes();
}
int Grammar::num_rules() const {
  return static_cast<int>(impl_->automaton.rules.size());
}
int64_t Grammar::num_compile_steps() const {
  return impl_->automaton.num_compile_steps;
}
int Grammar::num_states() const {
  return impl_->automaton.num_states();
}

std::shared_ptr<const grammar_internal::TokenSetTable> Grammar::Impl::table_for(
    const GrammarVocabulary::Ptr& vocabulary) {
  const std::scoped_lock lock(mutex_);
  for (const auto& table : tables_) {
    if (&table->vocabulary() == vocabulary.get()) return table;
  }
  tables_.push_back(std::make_shared<const grammar_internal::TokenSetTable>(automaton, vocabulary));
  return tables_.back();
}

size_t Grammar::Impl::num_bytes() {
  const std::scoped_lock lock(mutex_);
  size_t num_bytes = automaton.num_bytes();
  for (const auto& table : tables_) num_bytes += table->num_bytes();
  return num_bytes;
}

}  // namespace quire

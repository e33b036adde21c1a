#include "server/grammar_constraint.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace quire {

namespace {

// Shared with the task in the pool. Whoever comes first to a stale mask builds it; the other one finds it ready.
struct MaskState {
  std::mutex mutex;
  std::unique_ptr<GrammarMatcher> matcher;
  std::vector<int32_t> end_token_ids;
  std::vector<uint32_t> mask;
  bool is_mask_fresh = false;

  void build_mask() {
    if (is_mask_fresh) return;
    matcher->fill_mask(mask);
    if (matcher->has_ended()) {
      // An engine that was told to go on past the end repeats it.
      for (const int32_t id : end_token_ids) {
        const size_t word = static_cast<size_t>(id) / 32;
        if (id >= 0 && word < mask.size()) mask[word] |= 1u << (static_cast<uint32_t>(id) % 32);
      }
    }
    is_mask_fresh = true;
  }
};

class GrammarConstraint final : public TokenConstraint {
 public:
  GrammarConstraint(TextPool& pool, std::shared_ptr<MaskState> state)
      : pool_(pool), strand_(pool.create_strand()), state_(std::move(state)) {}

  void fill_mask(std::span<uint32_t> mask) override {
    const std::lock_guard lock(state_->mutex);
    state_->build_mask();
    const size_t num_words = std::min(mask.size(), state_->mask.size());
    for (size_t i = 0; i < num_words; ++i) mask[i] &= state_->mask[i];
    std::fill(mask.begin() + static_cast<std::ptrdiff_t>(num_words), mask.end(), 0u);
  }

  void accept(int32_t token_id) override {
    {
      const std::lock_guard lock(state_->mutex);
      if (!state_->matcher->accept(token_id)) ++num_refused_;  // only what the mask let through comes here
      state_->is_mask_fresh = false;
    }
    build_mask_in_pool();
  }

  void rollback(int num_tokens) override {
    {
      const std::lock_guard lock(state_->mutex);
      const int num_ignored = std::min(num_refused_, num_tokens);
      num_refused_ -= num_ignored;
      state_->matcher->rollback(num_tokens - num_ignored);
      state_->is_mask_fresh = false;
    }
    build_mask_in_pool();
  }

  std::unique_ptr<TokenConstraint> clone() const override {
    auto copy = std::make_shared<MaskState>();
    const std::lock_guard lock(state_->mutex);
    copy->matcher = state_->matcher->clone();
    copy->end_token_ids = state_->end_token_ids;
    copy->mask = state_->mask;
    copy->is_mask_fresh = state_->is_mask_fresh;
    return std::make_unique<GrammarConstraint>(pool_, std::move(copy));
  }

 private:
  void build_mask_in_pool() {
    strand_->post([state = state_] {
      const std::lock_guard lock(state->mutex);
      state->build_mask();
    });
  }

  TextPool& pool_;
  const std::shared_ptr<TextStrand> strand_;
  const std::shared_ptr<MaskState> state_;
  int num_refused_ = 0;
};

Result<std::unique_ptr<TokenConstraint>> constrain(const ApiContext& context, Grammar::Ptr grammar) {
  if (grammar == nullptr) return std::unique_ptr<TokenConstraint>();
  if (context.grammar_vocabulary == nullptr) return unimplemented("this model's vocabulary takes no grammars");
  auto matcher = GrammarMatcher::create(std::move(grammar), context.grammar_vocabulary, context.end_token_ids);
  std::vector<uint32_t> first_mask(context.grammar_vocabulary->num_mask_words());  // the matcher keeps it
  matcher->fill_mask(first_mask);
  if (matcher->has_given_up()) {
    return invalid_argument(
        "the grammar takes too much work: its texts can be read in too many ways at once; write it with fewer optional "
        "parts that begin alike");
  }
  return make_grammar_constraint(context.pool, std::move(matcher), context.grammar_vocabulary->num_mask_words(),
                                 context.end_token_ids);
}

Result<Grammar::Ptr> compile(GrammarCache& grammars, const StructureRequest& structure) {
  using Kind = StructureRequest::Kind;
  switch (structure.kind) {
    case Kind::kNone:
      return Grammar::Ptr();
    case Kind::kJsonObject:
      return grammars.any_json_object();
    case Kind::kJsonSchema:
      return grammars.json_schema(structure.text);
    case Kind::kRegex:
      return grammars.regex(structure.text);
    case Kind::kChoice:
      return grammars.choices(structure.choices);
    case Kind::kGrammar:
      return grammars.ebnf(structure.text);
  }
  return Grammar::Ptr();
}

// All that an answer's grammar depends on, besides the model. Parts are told apart by their lengths.
std::string key_of(const AnswerGrammarInput& input) {
  std::string key = "answer";
  const auto add = [&](std::string_view part) {
    key += '|';
    key += std::to_string(part.size());
    key += ':';
    key += part;
  };
  add(std::to_string(static_cast<int>(input.choice.kind)) + (input.choice.is_parallel ? "p" : "s") +
      std::to_string(static_cast<int>(input.content.kind)) + "." + std::to_string(static_cast<int>(input.start)));
  add(input.choice.name);
  add(input.content.text);
  for (const std::string& choice : input.content.choices) add(choice);
  key += '#';
  for (const ToolSpec& tool : input.tools) {
    add(tool.name);
    add(tool.parameters_schema_json);
    add(tool.is_strict ? "s" : "");
  }
  return key;
}

}  // namespace

std::unique_ptr<TokenConstraint> make_grammar_constraint(TextPool& pool, std::unique_ptr<GrammarMatcher> matcher,
                                                         size_t num_mask_words, std::vector<int32_t> end_token_ids) {
  auto state = std::make_shared<MaskState>();
  state->matcher = std::move(matcher);
  state->end_token_ids = std::move(end_token_ids);
  state->mask.assign(num_mask_words, 0u);
  state->build_mask();
  return std::make_unique<GrammarConstraint>(pool, std::move(state));
}

Result<std::unique_ptr<TokenConstraint>> make_structure_constraint(const ApiContext& context,
                                                                   const StructureRequest& structure) {
  if (structure.kind == StructureRequest::Kind::kNone) return std::unique_ptr<TokenConstraint>();
  CHECK(context.grammars != nullptr);
  ASSIGN_OR_RETURN(Grammar::Ptr grammar, compile(*context.grammars, structure));
  return constrain(context, std::move(grammar));
}

Result<std::unique_ptr<TokenConstraint>> make_answer_constraint(const ApiContext& context,
                                                                const AnswerGrammarInput& input) {
  if (input.tools.empty() && input.content.kind == ContentRule::Kind::kAny) return std::unique_ptr<TokenConstraint>();
  CHECK(context.grammars != nullptr);
  ASSIGN_OR_RETURN(Grammar::Ptr grammar, context.grammars->get(key_of(input), [&] {
    return answer_grammar(context.text.answer_format(), input);
  }));
  return constrain(context, std::move(grammar));
}

ContentRule to_content_rule(const StructureRequest& structure) {
  using Kind = StructureRequest::Kind;
  ContentRule rule;
  rule.text = structure.text;
  rule.choices = structure.choices;
  switch (structure.kind) {
    case Kind::kNone:
      rule.kind = ContentRule::Kind::kAny;
      break;
    case Kind::kJsonObject:
      rule.kind = ContentRule::Kind::kJsonObject;
      break;
    case Kind::kJsonSchema:
      rule.kind = ContentRule::Kind::kJsonSchema;
      break;
    case Kind::kRegex:
      rule.kind = ContentRule::Kind::kRegex;
      break;
    case Kind::kChoice:
      rule.kind = ContentRule::Kind::kChoices;
      break;
    case Kind::kGrammar:
      rule.kind = ContentRule::Kind::kEbnf;
      break;
  }
  return rule;
}

}  // namespace quire

// Grammars as the engine knows them: a TokenConstraint over a GrammarMatcher, whose next mask is built in the text pool
// while the step runs, so that the engine's thread seldom has to. Also how a request's wish for a form becomes one.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "engine/request.h"
#include "server/api_context.h"
#include "text/answer_grammar.h"
#include "text/grammar_matcher.h"

namespace quire {

// The matcher's first mask is built before this returns. The pool must outlive the constraint.
std::unique_ptr<TokenConstraint> make_grammar_constraint(TextPool& pool, std::unique_ptr<GrammarMatcher> matcher,
                                                         size_t num_mask_words, std::vector<int32_t> end_token_ids);

// Null where nothing is asked for. Compiles (or finds) the grammar: for the text pool.
Result<std::unique_ptr<TokenConstraint>> make_structure_constraint(const ApiContext& context,
                                                                   const StructureRequest& structure);

// The same for a conversation, which may have tools and a model that thinks first.
Result<std::unique_ptr<TokenConstraint>> make_answer_constraint(const ApiContext& context,
                                                                const AnswerGrammarInput& input);

ContentRule to_content_rule(const StructureRequest& structure);

}  // namespace quire

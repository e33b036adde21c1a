// The parts of an answer's grammar that depend on a tool's schema, and the forms of the content. Internal to answer_*;
// used by answer_grammar.cc, once per request.
#pragma once

#include <string>
#include <string_view>

#include "text/answer_format.h"
#include "text/answer_grammar.h"
#include "text/answer_parser.h"
#include "text/grammar_builder.h"

namespace quire::answer {

class GrammarParts {
 public:
  using Node = GrammarBuilder::Node;

  explicit GrammarParts(GrammarBuilder* builder) : builder_(builder) {}
  GrammarBuilder& builder() { return *builder_; }

  Result<Node> content(const ContentRule& rule);
  Result<Node> arguments(const ToolSpec& tool);
  Result<Node> call_object(const AnswerElement& element, const ToolSpec& tool);
  Result<Node> tagged_parameters(const ParameterSyntax& syntax, const ToolSpec& tool);
  Result<Node> python_call(const ToolSpec& tool);

 private:
  GrammarBuilder* builder_;
};

}  // namespace quire::answer

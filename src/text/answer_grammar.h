// The grammar of an answer: which texts a model may write when tools or a form of the content are asked for. The same
// rows (answer_format.h) by which AnswerParser reads, so that whatever the grammar lets through is read back as calls
// whose arguments satisfy the tools' schemas. Pure; called when a request is parsed, any thread.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "text/answer_format.h"
#include "text/answer_parser.h"

namespace quire {

class Grammar;

struct ToolChoice {
  enum class Kind : uint8_t {
    kNone,      // no calls: only `content` matters
    kAuto,      // text, and calls if the model begins one
    kRequired,  // one call at least
    kNamed,     // of the tool called `name`
  };
  Kind kind = Kind::kAuto;
  std::string name;
  bool is_parallel = true;  // false: at most one call
};

// What the content must be like, where no tool is called.
struct ContentRule {
  enum class Kind : uint8_t { kAny, kJsonObject, kJsonSchema, kRegex, kChoices, kEbnf };
  Kind kind = Kind::kAny;
  std::string text;                  // the schema, the regex, the grammar
  std::vector<std::string> choices;  // of kChoices
};

struct AnswerGrammarInput {
  std::span<const ToolSpec> tools;
  ToolChoice choice;
  ContentRule content;
  AnswerStart start = AnswerStart::kOpen;  // where the model may still think, thinking is allowed first
};

// Null where nothing constrains the answer. Fails (kInvalidArgument, kUnimplemented) with the message for the client:
// a schema that is not supported, a name that is not among the tools, a format without tool calls.
Result<std::shared_ptr<const Grammar>> answer_grammar(const AnswerFormat& format, const AnswerGrammarInput& input);

}  // namespace quire

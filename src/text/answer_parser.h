// AnswerParser: takes a model's text apart while it streams, into content, thinking and tool calls. Text goes in as it
// comes, cut anywhere; what is certain comes out at once. Linear in the text, bounded in memory; any input is an
// answer: what only looks like a call, or is a broken one, comes out as content. Knows nothing of tokens and JSON
// bodies. One per choice of a request; used by the server's text pool, one thread at a time.
//
// Once the arguments of a call have begun to stream they cannot be taken back: if they break after that (or the answer
// is cut off), the client has what the model wrote, up to the call's closing marker, as the arguments' text. A call cut
// off earlier is content, but where nothing else than calls could come (must_call).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/answer_format.h"

namespace quire {

struct ToolSpec {
  std::string name;
  std::string parameters_schema_json;  // empty: an object of any kind
  bool is_strict = false;
};

struct AnswerDelta {
  enum class Kind : uint8_t {
    kContent,
    kReasoning,
    kToolCallBegin,      // index, id, name
    kToolCallArguments,  // index, text; all of one index, joined, are the call's arguments
  };
  Kind kind = Kind::kContent;
  int index = 0;  // which call of the answer
  std::string text;
  std::string id, name;
};

struct AnswerParserOptions {
  bool reads_tools = true;      // false (tool_choice none, or no tools): calls are content
  bool reads_reasoning = true;  // false: thinking stays in the content, tags and all
  // tool_choice required, or named (then the tools are that one): the answer, its thinking aside, is calls and nothing
  // else. One that is cut off before its arguments begin is a call all the same if it can only be one of one tool, and
  // not content in any case.
  bool must_call = false;
  AnswerStart start = AnswerStart::kOpen;
  uint64_t id_seed = 0;                     // of the random call ids; differs from choice to choice
  size_t max_held_bytes = size_t{1} << 18;  // of a call whose name is not known yet, or of one parameter's value
};

class AnswerParser {
 public:
  // The tools may be shared by many parsers; null: none.
  AnswerParser(const AnswerFormat& format, std::shared_ptr<const std::vector<ToolSpec>> tools,
               const AnswerParserOptions& options);
  ~AnswerParser();
  AnswerParser(AnswerParser&&) noexcept;
  AnswerParser& operator=(AnswerParser&&) noexcept;

  // is_special: the piece is the text of one control token (Tokenizer::is_special), whole. Neighbouring deltas of one
  // kind are one.
  void add(std::string_view text, bool is_special, std::vector<AnswerDelta>* out);
  // The answer has ended; nothing may be added after it.
  void finish(std::vector<AnswerDelta>* out);

  bool is_reasoning() const;   // in the middle of thinking that is told apart
  int num_tool_calls() const;  // begun so far; above 0 the finish reason is "tool_calls"

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// All at once: the deltas of a whole answer, joined.
struct ParsedAnswer {
  struct ToolCall {
    std::string id, name, arguments;
  };
  std::string content, reasoning;
  std::vector<ToolCall> tool_calls;
};
void add_to_answer(const std::vector<AnswerDelta>& deltas, ParsedAnswer* answer);

}  // namespace quire

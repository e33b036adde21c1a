// AnswerFormat: how a model family writes tool calls and thinking into its text. A family is a row of data
// (answer_format_tables.cc) that two programs walk: AnswerParser (answer_parser.h) reads answers by it, answer_grammar
// (answer_grammar.h) lets the model write nothing else. Chosen once per model, from the chat template and the
// vocabulary or by the names that other servers' flags use. Immutable; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer.h"

namespace quire {

// One step of how a call is written.
struct AnswerElement {
  enum class Kind : uint8_t {
    kText,        // exactly `text`
    kSpace,       // any whitespace is read, `text` is written
    kName,        // the tool's name
    kNumber,      // decimal digits: the call's index, where a family counts
    kCallId,      // up to the next element: letters and digits
    kCallObject,  // {"name": …, "arguments": {…}}; `text` is the key of the arguments that is written
    kArguments,   // the arguments as a JSON object
    kParameters,  // the arguments as tagged parameters, see ParameterSyntax
    kPythonCall,  // name(key=value, …)
  };
  Kind kind = Kind::kText;
  std::string_view text = {};
  std::string_view name_key = "name";  // of kCallObject, the key that is written
  bool is_optional = false;  // may be left out; told by its first character. Written all the same unless is_not_written
  bool is_not_written = false;
};

// <parameter=key>value</parameter> and its kin: key_open key key_close value_open value value_close.
struct ParameterSyntax {
  std::string_view key_open = {}, key_close = {};
  std::string_view value_open = {}, value_close = {};  // value_open may be empty
  std::string_view space_around_value = {};  // written around values; one newline at either end is not the value's
  std::string_view space_between = {};       // written between parameters
  // Where a family says beside the key whether the value is plain text (string="true") or JSON: the two endings of the
  // key, in place of key_close.
  std::string_view key_close_text = {}, key_close_json = {};
};

struct ToolSyntax {
  enum class CallId : uint8_t {
    kRandom,         // "call_" and 24 random letters and digits
    kNineLetters,    // nine random letters and digits (Mistral)
    kFunctionIndex,  // "functions.name:index" (Kimi)
  };
  std::string_view name;                            // as flags name it; several rows may share it
  std::span<const std::string_view> aliases = {};   // further names
  std::span<const std::string_view> evidence = {};  // a template that contains all of them is of this family
  bool is_harmony = false;                          // channels: its own reader and grammar, the rest is empty
  // An answer is: text, opening, call, (separator, call)…, closing. Opening, separator and closing may be empty. What
  // begins a call counts anywhere in the content if it is a marker, and only where the content begins if it is a single
  // character ('{', '[').
  std::span<const AnswerElement> opening = {}, call = {}, separator = {}, closing = {};
  ParameterSyntax parameters = {};
  CallId call_id = CallId::kRandom;
};

struct ReasoningSyntax {
  std::string_view name;
  std::span<const std::string_view> aliases = {};
  std::span<const std::string_view> evidence = {};
  std::string_view open = {}, close = {};  // both empty for harmony
  bool is_harmony = false;
  // The model thinks first even where no opening tag is seen: text counts as thinking until the closing tag.
  bool is_always_first = false;
};

std::span<const ToolSyntax> tool_syntaxes();            // all rows
std::span<const ReasoningSyntax> reasoning_syntaxes();  // all rows

// What the prompt's end says of the answer's beginning.
enum class AnswerStart : uint8_t {
  kOpen,            // nothing: the model may open its thinking itself
  kInReasoning,     // the prompt opened the thinking
  kAfterReasoning,  // the prompt opened and closed it, or thinking is switched off
};

class AnswerFormat {
 public:
  // From what the template and the vocabulary contain. Never fails: a model of which nothing is known gets the generic
  // form (a JSON object that names a tool and its arguments) and no reasoning.
  static AnswerFormat detect(std::string_view chat_template, const Tokenizer& tokenizer);
  // By the values of --tool-call-parser and --reasoning-parser; "" and "auto": detected, "none": off.
  static Result<AnswerFormat> create(std::string_view tool_parser, std::string_view reasoning_parser,
                                     std::string_view chat_template, const Tokenizer& tokenizer);
  // Rows chosen by hand; all markers count as plain text unless they are listed in special_markers. Null: none.
  AnswerFormat(const ToolSyntax* tools, const ReasoningSyntax* reasoning,
               std::vector<std::string> special_markers = {});

  const ToolSyntax* tools() const { return tools_; }               // null: calls are not read
  const ReasoningSyntax* reasoning() const { return reasoning_; }  // null: no thinking is told apart
  // A marker that is a control token of the vocabulary: only the token counts, not text that spells it.
  bool is_special_marker(std::string_view marker) const;
  // Does the text of a control token take part in this format? All other control tokens are dropped.
  bool is_marker(std::string_view piece) const;

  // From the rendered prompt (its last few kilobytes are enough).
  AnswerStart start_of_answer(std::string_view prompt) const;

 private:
  const ToolSyntax* tools_ = nullptr;
  const ReasoningSyntax* reasoning_ = nullptr;
  std::vector<std::string> special_markers_;
};

}  // namespace quire

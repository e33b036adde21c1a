// Conversations with tools, as a model's chat template wants them. Clients send OpenAI's form; templates differ in what
// they read: arguments as an object or as text, nulls, ids of nine letters, the name of the field for thinking, roles.
// What a template wants is found out once, by rendering small conversations. Used by the server's text side; pure, any
// thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/answer_format.h"
#include "text/chat_template.h"

namespace quire {

struct TemplateTraits {
  bool shows_tools = false;            // what `tools` holds gets into the prompt
  bool shows_calls = false;            // earlier calls of the assistant do
  bool wants_text_arguments = false;   // arguments as JSON text; else as an object
  bool wants_text_content = false;     // content parts ({"type": "text"}) are not understood
  bool wants_no_null_content = false;  // of a message with calls: "" instead of null
  bool wants_null_content = false;     // of a message with calls: null instead of ""
  bool wants_tool_list = false;        // [] instead of none where there are no tools
  bool takes_one_call = false;         // per message; such a model is to be asked for one at a time
  bool wants_nine_letter_ids = false;
  bool knows_system = true;
  bool knows_developer = false;
  bool knows_tool_role = true;
  bool refuses_content_with_thoughts = false;  // in a message with calls
  // The names of a message's field for thinking that the template reads: of "reasoning_content", "thinking",
  // "reasoning".
  std::vector<std::string> thought_fields;

  // `source` is the template's text. Never fails: what cannot be rendered is not wanted.
  static TemplateTraits probe(const ChatTemplate& chat_template, std::string_view source,
                              const std::vector<std::pair<std::string, std::string>>& trusted_strings);
};

// `messages` and `tools` in OpenAI's form (tools: none, or a list of {"type": "function", "function": {…}}) in, what
// the template is to be given out. A template that does not show tools gets them told in the system message, with the
// instruction to call them in the form of `syntax`, which is what the answer will be read by (null: the generic
// {"name": …, "arguments": {…}}); earlier calls and results are told as text likewise. Fails where a message is
// malformed (kInvalidArgument).
struct ToolConversation {
  jinja::Value messages, tools;
};
Result<ToolConversation> prepare_conversation(const TemplateTraits& traits, const ToolSyntax* syntax,
                                              const jinja::Value& messages, const jinja::Value& tools);

}  // namespace quire

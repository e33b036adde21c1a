// Conversations with tools, made ready for templates of several kinds. The templates are small ones of our own; the
// real ones are looked at by tools/goldens/compare_tool_messages.py.
#include "text/answer_messages.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

using jinja::Value;

constexpr std::string_view kTools =
    R"([{"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}}])";

// Tools, calls with arguments as an object, results, thoughts in reasoning_content, parts of content.
constexpr std::string_view kFullTemplate =
    "{% if tools %}TOOLS{{ tools | tojson }}{{ '\\n' }}{% endif %}"
    "{% for m in messages %}[{{ m.role }}]"
    "{% if m.content is string %}{{ m.content }}{% elif m.content %}{% for p in m.content %}{{ p.text }}{% endfor %}{% "
    "endif %}"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
    "{% for c in m.tool_calls or [] %}<{{ c.id }} {{ c.function.name }}{% for k, v in c.function.arguments | items %} "
    "{{ k }}={{ v }}{% endfor %}>{% endfor %}"
    "{% if m.role == 'tool' %} of {{ m.name }} {{ m.tool_call_id }}{% endif %}{{ '\\n' }}{% endfor %}";

struct Prepared {
  TemplateTraits traits;
  std::string text;  // the prompt, or what went wrong
};

Prepared prepare(std::string_view source, std::string_view messages, std::string_view tools = "null",
                 const ToolSyntax* syntax = nullptr) {
  const auto chat_template = ChatTemplate::create(source);
  CHECK(chat_template.is_ok());
  Prepared prepared;
  prepared.traits = TemplateTraits::probe(*chat_template.value(), source, {});
  const auto conversation = prepare_conversation(prepared.traits, syntax, jinja::from_json(messages).value(),
                                                 jinja::from_json(tools).value());
  if (!conversation.is_ok()) {
    prepared.text = "prepare: " + conversation.status().message();
    return prepared;
  }
  TemplateInput input;
  input.variables.emplace_back("messages", conversation.value().messages);
  input.variables.emplace_back("tools", conversation.value().tools);
  const auto prompt = chat_template.value()->render(input);
  prepared.text = prompt.is_ok() ? prompt.value().text : "render: " + prompt.status().message();
  return prepared;
}

constexpr std::string_view kCallAndResult = R"([
  {"role": "user", "content": "When?"},
  {"role": "assistant", "content": null, "refusal": null, "reasoning_content": "Look.", "tool_calls": [
    {"id": "call_12345678", "type": "function", "function": {"name": "now", "arguments": "{\"zone\": \"CET\"}"}}]},
  {"role": "tool", "tool_call_id": "call_12345678", "content": "noon"}])";

TEST(AnswerMessages, GiveTemplatesObjectsAndNames) {
  const Prepared prepared = prepare(kFullTemplate, kCallAndResult, kTools);
  EXPECT_TRUE(prepared.traits.shows_tools);
  EXPECT_TRUE(prepared.traits.shows_calls);
  EXPECT_TRUE(prepared.traits.knows_tool_role);
  EXPECT_FALSE(prepared.traits.wants_text_arguments);
  EXPECT_FALSE(prepared.traits.wants_text_content);
  EXPECT_FALSE(prepared.traits.wants_nine_letter_ids);
  EXPECT_FALSE(prepared.traits.takes_one_call);
  EXPECT_EQ(prepared.traits.thought_fields, std::vector<std::string>{"reasoning_content"});
  EXPECT_TRUE(
      prepared.text.ends_with("[user]When?\n[assistant](Look.)<call_12345678 now zone=CET>\n"
                              "[tool]noon of now call_12345678\n"))
      << prepared.text;
}

TEST(AnswerMessages, KeepBrokenArgumentsAndRefuseBrokenCalls) {
  const std::string call =
      R"([{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "now", "arguments": X}}]}])";
  const auto with = [&](const std::string& arguments) {
    std::string messages = call;
    messages.replace(messages.find('X'), 1, arguments);
    return messages;
  };
  constexpr std::string_view kShowsAny =
      "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}";
  EXPECT_EQ(prepare(kShowsAny, with(R"("{\"a\": 1}")")).text, "{\"a\": 1}");
  EXPECT_EQ(prepare(kShowsAny, with(R"({"a": 1})")).text, "{\"a\": 1}");
  EXPECT_EQ(prepare(kShowsAny, with("\"\"")).text, "{}");
  EXPECT_EQ(prepare(kShowsAny, with("null")).text, "{}");
  EXPECT_EQ(prepare(kShowsAny, with("\"{broken\"")).text, "\"{broken\"");
  EXPECT_TRUE(prepare(kShowsAny, R"([{"role": "assistant", "tool_calls": [7]}])").text.starts_with("prepare: "));
  EXPECT_TRUE(prepare(kShowsAny, "{}").text.starts_with("prepare: "));
}

TEST(AnswerMessages, GiveTemplatesTextWhereTheyConcatenate) {
  const Prepared prepared = prepare(
      "{% for m in messages %}[{{ m.role }}]{% if m.tool_calls %}{{ m.tool_calls[0].function.name + '(' + "
      "m.tool_calls[0].function.arguments + ')' }}{% else %}{{ m.content + '' }}{% endif %}{{ '\\n' }}{% endfor %}",
      R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
          {"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "now", "arguments": {"zone": "CET"}}}]}])");
  EXPECT_TRUE(prepared.traits.wants_text_arguments);
  EXPECT_TRUE(prepared.traits.wants_text_content);
  EXPECT_TRUE(prepared.traits.takes_one_call);
  EXPECT_EQ(prepared.text, "[user]a\nb\n[assistant]now({\"zone\": \"CET\"})\n");
}

TEST(AnswerMessages, MakeIdsOfNineLetters) {
  std::string source(kFullTemplate);
  source.insert(0,
                "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}"
                "{{ raise_exception('nine') }}{% endif %}{% endfor %}{% endfor %}");
  const Prepared prepared = prepare(source, kCallAndResult);
  EXPECT_TRUE(prepared.traits.wants_nine_letter_ids);
  // The same in the call and in its result.
  const size_t call = prepared.text.find("<"), result = prepared.text.find("of now ");
  ASSERT_NE(call, std::string::npos) << prepared.text;
  ASSERT_NE(result, std::string::npos) << prepared.text;
  EXPECT_EQ(prepared.text.substr(call + 1, 9), prepared.text.substr(result + 7, 9));
  EXPECT_EQ(prepared.text[call + 10], ' ');
}

TEST(AnswerMessages, SplitCallsForTemplatesThatTakeOne) {
  std::string source(kFullTemplate);
  source.insert(0,
                "{% for m in messages %}{% if m.tool_calls and m.tool_calls | length > 1 %}"
                "{{ raise_exception('one') }}{% endif %}{% endfor %}");
  const Prepared prepared = prepare(source, R"([
    {"role": "assistant", "content": "Both.", "tool_calls": [
      {"id": "a", "function": {"name": "now", "arguments": "{}"}}, {"id": "b", "function": {"name": "then", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "b", "content": "two"}, {"role": "tool", "tool_call_id": "a", "content": "one"},
    {"role": "user", "content": "Thanks."}])");
  EXPECT_TRUE(prepared.traits.takes_one_call);
  EXPECT_EQ(prepared.text,
            "[assistant]Both.<a now>\n[tool]one of now a\n[assistant]<b then>\n[tool]two of then b\n[user]Thanks.\n");
}

// A template that knows of no tools, and of users and assistants only.
TEST(AnswerMessages, TellToolsToTemplatesWithoutThem) {
  constexpr std::string_view kPlain =
      "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('role') }}{% endif %}"
      "[{{ m.role }}]{{ m.content }}{{ '\\n' }}{% endfor %}";
  const Prepared prepared = prepare(kPlain, kCallAndResult, kTools);
  EXPECT_FALSE(prepared.traits.shows_tools);
  EXPECT_FALSE(prepared.traits.shows_calls);
  EXPECT_FALSE(prepared.traits.knows_tool_role);
  EXPECT_FALSE(prepared.traits.knows_system);
  EXPECT_TRUE(prepared.text.starts_with("[user]You can call these functions:\n{\"name\": \"now\"")) << prepared.text;
  EXPECT_NE(prepared.text.find("{\"name\": \"function_name\", \"arguments\": {\"argument_name\": \"value\"}}"),
            std::string::npos)
      << prepared.text;
  EXPECT_TRUE(
      prepared.text.ends_with("When?\n[assistant]{\"name\": \"now\", \"arguments\": {\"zone\": \"CET\"}}\n"
                              "[user]Result of now: noon\n"))
      << prepared.text;
  // In the form by which the answer will be read.
  for (const ToolSyntax& syntax : tool_syntaxes()) {
    if (syntax.name != "hermes") continue;
    EXPECT_NE(
        prepare(kPlain, kCallAndResult, kTools, &syntax)
            .text.find("[assistant]<tool_call>\n{\"name\": \"now\", \"arguments\": {\"zone\": \"CET\"}}\n</tool_call>"),
        std::string::npos);
  }
}

TEST(AnswerMessages, RenameRolesAndDropNulls) {
  constexpr std::string_view kSystemOnly =
      "{% for m in messages %}{% if m.role == 'developer' %}{{ raise_exception('role') }}{% endif %}[{{ m.role }}]"
      "{{ m.content }}{% if m.tool_calls is defined %}!{% endif %}{{ '\\n' }}{% endfor %}";
  const Prepared prepared = prepare(kSystemOnly, R"([{"role": "developer", "content": "Be kind."},
    {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho", "tool_calls": [], "audio": null}])");
  EXPECT_TRUE(prepared.traits.knows_system);
  EXPECT_FALSE(prepared.traits.knows_developer);
  EXPECT_EQ(prepared.text, "[system]Be kind.\n[user]Hi\n[assistant]Ho\n");
  EXPECT_TRUE(prepare(kSystemOnly, R"([{"role": "user", "content": [{"type": "image_url"}]}])")
                  .text.starts_with("prepare: content parts"));
}

}  // namespace
}  // namespace quire

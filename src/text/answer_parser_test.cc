// AnswerParser beyond the recorded answers: what comes out when, ids, long and hostile texts; and how formats are
// chosen.
#include "text/answer_parser.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "text/answer_json_scanner.h"

namespace quire {
namespace {

const ToolSyntax* tools_named(std::string_view name) {
  for (const ToolSyntax& syntax : tool_syntaxes())
    if (syntax.name == name) return &syntax;
  return nullptr;
}

const ReasoningSyntax* reasoning_named(std::string_view name) {
  for (const ReasoningSyntax& syntax : reasoning_syntaxes())
    if (syntax.name == name) return &syntax;
  return nullptr;
}

std::shared_ptr<const std::vector<ToolSpec>> some_tools() {
  return std::make_shared<const std::vector<ToolSpec>>(std::vector<ToolSpec>{
      {"search", R"({"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}})"},
      {"stop", "{}"}});
}

// One line per delta, to be compared at a glance.
std::string add(AnswerParser& parser, std::string_view text, bool is_special = false) {
  std::vector<AnswerDelta> deltas;
  parser.add(text, is_special, &deltas);
  std::string lines;
  for (const AnswerDelta& delta : deltas) {
    constexpr const char* kNames[] = {"content", "reasoning", "begin", "arguments"};
    lines += std::string(lines.empty() ? "" : "|") + kNames[static_cast<int>(delta.kind)] + " ";
    lines += delta.kind == AnswerDelta::Kind::kToolCallBegin ? delta.name : delta.text;
  }
  return lines;
}

TEST(AnswerParser, GivesTextAtOnce) {
  AnswerParser parser(AnswerFormat(tools_named("hermes"), reasoning_named("qwen3")), some_tools(), {});
  EXPECT_EQ(add(parser, "<thi"), "");
  EXPECT_EQ(add(parser, "nk>"), "");
  EXPECT_EQ(add(parser, "\nLet"), "reasoning Let");
  EXPECT_EQ(add(parser, " me"), "reasoning  me");
  EXPECT_EQ(add(parser, " </thought>"), "reasoning  </thought>");
  EXPECT_EQ(add(parser, "\n</think>\n\n"), "");
  EXPECT_EQ(add(parser, "Yes"), "content Yes");
  EXPECT_EQ(add(parser, ", a < "), "content , a <");
  EXPECT_EQ(add(parser, "b <tool"), "content  b");
  EXPECT_EQ(add(parser, "_x"), "content  <tool_x");
  EXPECT_EQ(add(parser, "\n<tool_call>\n{\"name\": \"sea"), "");
  EXPECT_EQ(add(parser, "rch\", \"arguments\": "), "");
  EXPECT_EQ(add(parser, "{"), "begin search|arguments {");
  EXPECT_EQ(add(parser, "\"query\": \"a"), "arguments \"query\": \"a");
  EXPECT_EQ(add(parser, " b\"}"), "arguments  b\"}");
  EXPECT_EQ(add(parser, "}\n</tool_call>"), "");
  EXPECT_EQ(parser.num_tool_calls(), 1);
}

TEST(AnswerParser, StreamsTextParametersAsTheyCome) {
  AnswerParser parser(AnswerFormat(tools_named("qwen3_coder"), nullptr), some_tools(), {});
  EXPECT_EQ(add(parser, "<tool_call>\n<function=search>\n<parameter=query>\n"),
            "begin search|arguments {\"query\": \"");
  EXPECT_EQ(add(parser, "say \"x\""), "arguments say \\\"x\\\"");
  EXPECT_EQ(add(parser, "\nb"), "arguments \\nb");
  EXPECT_EQ(add(parser, "\n</param"), "");
  EXPECT_EQ(add(parser, "eter>\n<parameter=limit>\n1"), "arguments \", \"limit\": ");
  EXPECT_EQ(add(parser, "2\n</parameter>\n"), "arguments 12");
  EXPECT_EQ(add(parser, "</function>\n"), "arguments }");
}

TEST(AnswerParser, TakesControlTokensOnlyAsTokens) {
  const AnswerFormat format(tools_named("mistral"), nullptr, {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"});
  AnswerParser parser(format, some_tools(), {});
  EXPECT_EQ(add(parser, "[TOOL_CALLS]stop[ARGS]{}"), "content [TOOL_CALLS]stop[ARGS]{}");
  EXPECT_EQ(add(parser, "</s>", true), "");  // says nothing
  EXPECT_EQ(add(parser, "[TOOL_CALLS]", true), "");
  EXPECT_EQ(add(parser, "stop"), "");
  EXPECT_EQ(add(parser, "[ARGS]", true), "");
  EXPECT_EQ(add(parser, "{}"), "begin stop|arguments {}");
}

TEST(AnswerParser, MakesIdsOfTheFamilysKind) {
  const auto ids = [](const AnswerFormat& format, std::string_view text, uint64_t seed) {
    AnswerParserOptions options;
    options.id_seed = seed;
    AnswerParser parser(format, some_tools(), options);
    std::vector<AnswerDelta> deltas;
    parser.add(text, false, &deltas);
    std::vector<std::string> found;
    for (const AnswerDelta& delta : deltas)
      if (delta.kind == AnswerDelta::Kind::kToolCallBegin) found.push_back(delta.id);
    return found;
  };
  const std::string call = "<tool_call>{\"name\": \"stop\"}</tool_call>";
  const auto hermes = ids(AnswerFormat(tools_named("hermes"), nullptr), call + call, 1);
  ASSERT_EQ(hermes.size(), 2u);
  EXPECT_TRUE(hermes[0].starts_with("call_"));
  EXPECT_EQ(hermes[0].size(), 29u);
  EXPECT_NE(hermes[0], hermes[1]);
  EXPECT_NE(hermes[0], ids(AnswerFormat(tools_named("hermes"), nullptr), call, 2)[0]);
  const auto mistral = ids(AnswerFormat(tools_named("mistral"), nullptr), "[TOOL_CALLS]stop[ARGS]{}", 1);
  ASSERT_EQ(mistral.size(), 1u);
  EXPECT_EQ(mistral[0].size(), 9u);
  EXPECT_TRUE(std::all_of(mistral[0].begin(), mistral[0].end(), [](unsigned char c) { return std::isalnum(c); }));
}

// What is held never exceeds the bound, and comes out as content.
TEST(AnswerParser, HoldsNoMoreThanItsBound) {
  AnswerParserOptions options;
  options.max_held_bytes = 1000;
  AnswerParser parser(AnswerFormat(tools_named("hermes"), nullptr), some_tools(), options);
  std::string text = "<tool_call>{\"arguments\": {\"query\": \"" + std::string(5000, 'x');
  std::vector<AnswerDelta> deltas;
  parser.add(text, false, &deltas);
  parser.finish(&deltas);
  ParsedAnswer answer;
  add_to_answer(deltas, &answer);
  EXPECT_EQ(answer.content, text);
  EXPECT_TRUE(answer.tool_calls.empty());
}

// A megabyte of what looks most like calls takes a moment, not minutes: each is given up early or in one piece.
TEST(AnswerParser, IsLinearInHostileTexts) {
  const std::string bodies[] = {
      "<tool_call>",
      "<tool_call>\n",
      "<tool_call>{\"arguments\": {\"a\": \"",
      "<",
      "<tool_call>{\"x\": [",
      "\n",
      "<tool_call>{\"name\": \"stop\"",
      "<tool_call>{\"arguments\":{},",
  };
  for (const std::string& body : bodies) {
    std::string text;
    while (text.size() < (size_t{1} << 20)) text += body;
    AnswerParser parser(AnswerFormat(tools_named("hermes"), reasoning_named("qwen3")), some_tools(), {});
    std::vector<AnswerDelta> deltas;
    for (size_t i = 0; i < text.size(); i += 7) {
      parser.add(std::string_view(text).substr(i, 7), false, &deltas);
      if (deltas.size() > 1000) deltas.clear();
    }
    parser.finish(&deltas);
  }
}

TEST(AnswerFormat, SaysHowAnAnswerStarts) {
  const AnswerFormat qwen(tools_named("hermes"), reasoning_named("qwen3"));
  EXPECT_EQ(qwen.start_of_answer("<|im_start|>assistant\n"), AnswerStart::kOpen);
  EXPECT_EQ(qwen.start_of_answer("<|im_start|>assistant\n<think>\n"), AnswerStart::kInReasoning);
  EXPECT_EQ(qwen.start_of_answer("<|im_start|>assistant\n<think>\n\n</think>\n\n"), AnswerStart::kAfterReasoning);
  EXPECT_EQ(qwen.start_of_answer("say <think><|im_end|>\n<|im_start|>assistant\n"), AnswerStart::kOpen);
  EXPECT_EQ(AnswerFormat(nullptr, nullptr).start_of_answer("<think>"), AnswerStart::kOpen);
}

TEST(JsonScanner, FollowsValuesToTheirEnd) {
  for (const char* text : {"{}", "[]", "{\"a\": [1, -2.5e+3, true, false, null, \"\\u00e9\\n\"], \"b\": {}}", "0",
                           "-0.1", "\"x\"", " [ ] ", "1e5", "true"})
    EXPECT_TRUE(answer::is_whole_json(text)) << text;
  for (const char* text :
       {"",    "{",       "}",           "[1,]",  "{\"a\" 1}", "{a: 1}",   "01", "1.",  "-",        "1e", "tru",
        "nul", "\"\\x\"", "\"\\u12g4\"", "[1 2]", "{} {}",     "{\"a\":}", "[}", "'a'", "\"a\nb\"", "+1"})
    EXPECT_FALSE(answer::is_whole_json(text)) << text;
  EXPECT_TRUE(answer::is_whole_json(std::string(200, '[') + std::string(200, ']')));
  EXPECT_FALSE(answer::is_whole_json(std::string(201, '[') + std::string(201, ']')));
}

}  // namespace
}  // namespace quire

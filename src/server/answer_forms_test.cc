// What a model says between the marks of its family, and the forms that an answer is held to: thinking, tool calls,
// schemas. Through handlers, pool and writers, with a scripted engine and no sockets.
#include <gtest/gtest.h>

#include "server/chat_completions.h"
#include "server/completions.h"
#include "server/testing/api_fixture.h"

namespace quire {
namespace {

namespace json = boost::json;
using testing::kTokenEnd;

class AnswerFormsTest : public testing::ApiFixture {};

const std::string kHermesTemplate =
    "{% if tools %}<tools>{{ tools | tojson }}</tools> <tool_call>{\"name\": ..., \"arguments\": ...}</tool_call>{% "
    "endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";
const std::string kToolFields =
    R"("tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object","properties":
        {"x":{"type":"integer"}},"required":["x"],"additionalProperties":false}}}])";

TEST_F(AnswerFormsTest, TokensOfThinkingAreCounted) {
  use_text(kHermesTemplate, {.tools = "none", .reasoning = "qwen3"});
  RequestId id = 0;
  for (const std::string& said : {std::string("<think>12345</think>abc"), std::string("<think>12345")}) {
    ++id;
    auto exchange = post(read_chat, R"({"messages":[{"role":"user","content":"a"}]})");
    ASSERT_NE(engine_.wait_for(id), nullptr);
    say(id, said);
    engine_.tell(id, {.finish_reason = FinishReason::kLength});
    const json::object usage = answer_of(*exchange).at("usage").as_object();
    EXPECT_EQ(usage.at("completion_tokens"), said.size());
    // A token a byte: the tag's bytes are held until the tag is whole, and then end the thinking.
    const int64_t num_thought = usage.at("completion_tokens_details").at("reasoning_tokens").as_int64();
    EXPECT_GE(num_thought, 5);
    EXPECT_LT(num_thought, 5 + 8);
  }
}

TEST_F(AnswerFormsTest, ThinkingAndCallsAreStreamedApart) {
  use_text(kHermesTemplate, {.tools = "hermes", .reasoning = "qwen3"});
  const std::string said =
      "<think>hmm\n</think>So: <tool_call>\n{\"name\": \"add\", \"arguments\": {\"x\": 3}}\n</tool_call>";
  for (const bool is_stream : {false, true}) {
    auto exchange = post(read_chat, R"({"messages":[{"role":"user","content":"a"}],"max_tokens":99,)" + kToolFields +
                                        (is_stream ? R"(,"stream":true})" : "}"));
    const RequestId id = is_stream ? 2 : 1;
    const Request* request = engine_.wait_for(id);
    ASSERT_NE(request, nullptr);
    say(id, said);
    end(id);
    std::string reasoning, content, name, arguments, reason;
    if (is_stream) {
      for (const json::object& chunk : chunks_of(*exchange)) {
        const json::object& choice = chunk.at("choices").at(0).as_object();
        const json::object& delta = choice.at("delta").as_object();
        if (delta.contains("reasoning_content")) reasoning += delta.at("reasoning_content").as_string();
        if (delta.contains("content")) content += delta.at("content").as_string();
        if (delta.contains("tool_calls")) {
          const json::object& call = delta.at("tool_calls").at(0).at("function").as_object();
          if (call.contains("name")) name += call.at("name").as_string();
          arguments += call.at("arguments").as_string();
        }
        if (!choice.at("finish_reason").is_null()) reason = choice.at("finish_reason").as_string();
      }
    } else {
      const json::object answer = answer_of(*exchange);
      const json::value& message = answer.at("choices").at(0).at("message");
      reasoning = message.at("reasoning_content").as_string();
      content = message.at("content").as_string();
      name = message.at("tool_calls").at(0).at("function").at("name").as_string();
      arguments = message.at("tool_calls").at(0).at("function").at("arguments").as_string();
      reason = answer.at("choices").at(0).at("finish_reason").as_string();
    }
    EXPECT_NE(reasoning.find("hmm"), std::string::npos);
    EXPECT_EQ(content.find("tool_call"), std::string::npos);
    EXPECT_EQ(content.find("think"), std::string::npos);
    EXPECT_NE(content.find("So:"), std::string::npos);
    EXPECT_EQ(name, "add");
    EXPECT_EQ(json::parse(arguments), json::parse(R"({"x":3})"));
    EXPECT_EQ(reason, "tool_calls");
  }
}

// Follows a constraint as an engine would: the first allowed byte each time.
std::string walk(TokenConstraint& constraint, size_t most_tokens) {
  std::string text;
  std::vector<uint32_t> mask(10, 0);
  while (text.size() < most_tokens) {
    std::fill(mask.begin(), mask.end(), 0xffffffffu);
    constraint.fill_mask(mask);
    int32_t token = -1;
    for (int32_t id = 0; id < 320 && token < 0; ++id) {
      if ((mask[static_cast<size_t>(id) / 32] >> (id % 32)) & 1u) token = id;
    }
    if (token < 0 || token == kTokenEnd) break;
    constraint.accept(token);
    text += static_cast<char>(token);
  }
  return text;
}

TEST_F(AnswerFormsTest, FormsOfAnswersBecomeConstraints) {
  auto exchange = post(read_completion, R"({"prompt":"a","guided_choice":["red","blue"]})");
  const Request* request = engine_.wait_for(1);
  ASSERT_NE(request, nullptr);
  ASSERT_NE(request->constraint, nullptr);
  const auto copy = request->constraint->clone();
  EXPECT_EQ(walk(*copy, 20), "blue");
  copy->rollback(4);
  EXPECT_EQ(walk(*copy, 20), "blue");
  EXPECT_EQ(walk(*request->constraint, 20), "blue");  // on its own
  end(1);
  answer_of(*exchange);

  auto chat = post(read_chat, R"({"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema",
                                  "json_schema":{"schema":{"type":"object","properties":{"n":{"enum":[7]}},"required":["n"],
                                  "additionalProperties":false}}}})");
  const Request* second = engine_.wait_for(2);
  ASSERT_NE(second, nullptr);
  ASSERT_NE(second->constraint, nullptr);
  EXPECT_EQ(json::parse(walk(*second->constraint, 200)), json::parse(R"({"n":7})"));
  end(2);
  answer_of(*chat);
}

TEST_F(AnswerFormsTest, ARequiredCallIsConstrained) {
  use_text(kHermesTemplate, {.tools = "hermes", .reasoning = "none"});
  auto exchange =
      post(read_chat, R"({"messages":[{"role":"user","content":"a"}],"tool_choice":"required",)" + kToolFields + "}");
  const Request* request = engine_.wait_for(1);
  ASSERT_NE(request, nullptr);
  ASSERT_NE(request->constraint, nullptr);
  const auto copy = request->constraint->clone();
  EXPECT_EQ(walk(*copy, 11), "<tool_call>");
  end(1);
  answer_of(*exchange);
}

// Of two tools the one that is named, and once: after it nothing but the end may come.
TEST_F(AnswerFormsTest, ANamedCallIsThatOneAndOnce) {
  use_text(kHermesTemplate, {.tools = "hermes", .reasoning = "none"});
  auto exchange = post(read_chat, R"({"messages":[{"role":"user","content":"a"}],
      "tool_choice":{"type":"function","function":{"name":"add"}},
      "tools":[{"type":"function","function":{"name":"abs","parameters":{"type":"object","properties":{"y":{"enum":[1]}},
                "required":["y"],"additionalProperties":false}}},
               {"type":"function","function":{"name":"add","parameters":{"type":"object","properties":{"x":{"enum":[3]}},
                "required":["x"],"additionalProperties":false}}}]})");
  const Request* request = engine_.wait_for(1);
  ASSERT_NE(request, nullptr);
  ASSERT_NE(request->constraint, nullptr);
  const auto copy = request->constraint->clone();
  const std::string said = walk(*copy, 400);
  EXPECT_EQ(said.find("abs"), std::string::npos) << said;
  ASSERT_NE(said.find("add"), std::string::npos) << said;
  EXPECT_EQ(said.find("<tool_call>"), said.rfind("<tool_call>")) << said;
  EXPECT_LT(said.size(), 400u) << said;  // it ended of itself
  say(1, said);
  end(1);
  const json::object answer = answer_of(*exchange);
  const json::array& calls = answer.at("choices").at(0).at("message").at("tool_calls").as_array();
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].at("function").at("name").as_string(), "add");
  EXPECT_EQ(json::parse(calls[0].at("function").at("arguments").as_string()), json::parse(R"({"x":3})"));
}

// A call that max_tokens cuts off is as much of a call as there is, and never content.
TEST_F(AnswerFormsTest, ARequiredCallThatIsCutOffIsACall) {
  use_text(kHermesTemplate, {.tools = "hermes", .reasoning = "none"});
  struct Case {
    const char* said;
    const char* name;  // nullptr: no call yet
    const char* arguments;
  };
  const Case cases[] = {{"<tool_call>\n{\"name\": \"add\", \"arguments\": {\"x\": 3", "add", "{\"x\": 3"},
                        {"<tool_call>\n{\"name\": \"add\", \"argum", "add", ""},
                        {"<tool_call>\n{\"na", "add", ""},
                        {"<tool_", "add", ""},
                        {"", nullptr, ""}};
  RequestId id = 0;
  for (const char* choice : {R"("required")", R"({"type":"function","function":{"name":"add"}})"}) {
    for (const Case& test : cases) {
      for (const bool is_stream : {false, true}) {
        auto exchange =
            post(read_chat, R"({"messages":[{"role":"user","content":"a"}],"tool_choice":)" + std::string(choice) +
                                "," + kToolFields + (is_stream ? R"(,"stream":true})" : "}"));
        ASSERT_NE(engine_.wait_for(++id), nullptr);
        if (*test.said != 0) say(id, test.said);
        engine_.tell(id, {.finish_reason = FinishReason::kLength});
        std::string content, reason;
        json::array calls;
        if (is_stream) {
          for (const json::object& chunk : chunks_of(*exchange)) {
            const json::object& of_chunk = chunk.at("choices").at(0).as_object();
            const json::object& delta = of_chunk.at("delta").as_object();
            if (delta.contains("content") && delta.at("content").is_string())
              content += delta.at("content").as_string();
            if (!of_chunk.at("finish_reason").is_null()) reason = of_chunk.at("finish_reason").as_string();
            if (!delta.contains("tool_calls")) continue;
            const json::object& function = delta.at("tool_calls").at(0).at("function").as_object();
            if (function.contains("name")) {
              calls.emplace_back(function);
            } else {
              std::string arguments(calls.back().at("arguments").as_string());
              arguments += function.at("arguments").as_string();
              calls.back().at("arguments") = arguments;
            }
          }
        } else {
          const json::object answer = answer_of(*exchange);
          const json::object& of_answer = answer.at("choices").at(0).as_object();
          const json::object& message = of_answer.at("message").as_object();
          if (message.at("content").is_string()) content = message.at("content").as_string();
          reason = of_answer.at("finish_reason").as_string();
          if (message.contains("tool_calls")) {
            for (const json::value& call : message.at("tool_calls").as_array()) calls.push_back(call.at("function"));
          }
        }
        EXPECT_EQ(content, "") << test.said;
        EXPECT_EQ(reason, "length") << test.said;
        ASSERT_EQ(calls.size(), test.name == nullptr ? 0u : 1u) << test.said;
        if (test.name == nullptr) continue;
        EXPECT_EQ(calls[0].at("name").as_string(), test.name) << test.said;
        EXPECT_EQ(calls[0].at("arguments").as_string(), test.arguments) << test.said;
      }
    }
  }
}

// F084, F086.
TEST_F(AnswerFormsTest, FormsThatMakeNoSenseAreRefusedWithTheirField) {
  const std::pair<std::string, const char*> cases[] = {
      {R"("guided_regex":"foo**")", "guided_regex"},
      {R"("guided_regex":")" + std::string(50'000, '(') + "\"", "guided_regex"},
      {R"("guided_grammar":"root ::= )" + std::string(60'000, '(') + "\"", "guided_grammar"},
      {R"("guided_json":{"type":"something"})", "guided_json"},
      {R"("structured_outputs":{"regex":"["})", "structured_outputs.regex"},
  };
  for (const auto& [field, param] : cases) {
    const json::object answer = answer_of(*post(read_completion, R"({"prompt":"a",)" + field + "}"), 400);
    EXPECT_EQ(error_param(answer), param);
  }
  EXPECT_EQ(engine_.num_submitted(), 0u);
}

}  // namespace
}  // namespace quire

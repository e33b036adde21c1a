#include "server/openai_types.h"

#include <gtest/gtest.h>

#include "server/openapi.h"

namespace quire {
namespace {

CompletionRequest completion(const std::string& body) {
  auto parsed = parse_completion_request(body, {}, {});
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << body << ": " << error->status.message();
    return {};
  }
  return std::get<CompletionRequest>(parsed);
}

ChatRequest chat(const std::string& fields) {
  auto parsed = parse_chat_request(R"({"messages":[{"role":"user","content":"hi"}])" + fields + "}", {}, {});
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << fields << ": " << error->status.message();
    return {};
  }
  return std::get<ChatRequest>(parsed);
}

struct WrongBody {
  std::string body;
  std::string param;
  std::string word;  // of the message
};

template <typename Parse>
void expect_refused(const std::vector<WrongBody>& cases, Parse parse) {
  for (const WrongBody& wrong : cases) {
    const auto parsed = parse(wrong.body, ApiLimits{});
    const ApiError* error = std::get_if<ApiError>(&parsed);
    ASSERT_NE(error, nullptr) << wrong.body.substr(0, 200);
    EXPECT_EQ(error->param, wrong.param) << wrong.body.substr(0, 200) << ": " << error->status.message();
    EXPECT_NE(error->status.message().find(wrong.word), std::string::npos)
        << wrong.body.substr(0, 200) << ": " << error->status.message();
    EXPECT_LT(error->status.message().size(), 600u);
  }
}

TEST(CompletionBody, ReadsEveryFormOfPrompt) {
  EXPECT_EQ(std::get<std::string>(completion(R"({"prompt":"a\u0000b"})").prompts[0]), std::string("a\0b", 3));
  EXPECT_EQ(completion(R"({"prompt":["a","b"]})").prompts.size(), 2u);
  EXPECT_EQ(std::get<std::vector<int32_t>>(completion(R"({"prompt":[1,2.0,3]})").prompts[0]),
            (std::vector<int32_t>{1, 2, 3}));
  const CompletionRequest two = completion(R"({"prompt":[[1],[2,3]]})");
  ASSERT_EQ(two.prompts.size(), 2u);
  EXPECT_EQ(std::get<std::vector<int32_t>>(two.prompts[1]), (std::vector<int32_t>{2, 3}));
}

TEST(CompletionBody, NullIsTheDefaultAndUnknownFieldsAreIgnored) {
  const CompletionRequest request = completion(
      R"({"prompt":"x","model":null,"n":null,"max_tokens":null,"suffix":null,"stop":null,"logprobs":null,"stream":null,
          "stream_options":null,"best_of":null,"store":true,"metadata":{"a":"b"},"no_such_field":[1]})");
  EXPECT_EQ(request.sampling.params.n, 1);
  EXPECT_EQ(request.sampling.params.max_tokens, 16);
  EXPECT_FALSE(request.has_max_tokens);
  EXPECT_EQ(request.best_of, 1);
  EXPECT_EQ(request.sampling.params.num_logprobs, -1);
}

TEST(CompletionBody, ReadsItsFields) {
  const CompletionRequest request = completion(
      R"({"prompt":"x","model":"m","n":2,"best_of":3,"max_tokens":7.0,"logprobs":4,"echo":true,"stop":["a","b"],
          "priority":-3,"cache_salt":"s","return_token_ids":true,"seed":-1,"logit_bias":{"5":-100}})");
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.sampling.params.n, 2);
  EXPECT_EQ(request.best_of, 3);
  EXPECT_EQ(request.sampling.params.max_tokens, 7);
  EXPECT_EQ(request.sampling.params.num_logprobs, 4);
  EXPECT_TRUE(request.sampling.has_echo);
  EXPECT_EQ(request.sampling.stop.size(), 2u);
  EXPECT_EQ(request.priority, -3);
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_TRUE(request.returns_token_ids);
  const StreamOptions stream =
      completion(R"({"prompt":"x","stream":true,"stream_options":{"include_usage":true}})").stream;
  EXPECT_TRUE(stream.is_on && stream.includes_usage && !stream.has_usage_in_every_chunk);
}

// F032, F034, F038, F078.
// What no waiting helps is no 429.
TEST(CompletionBody, AListThatTheQueueCanNeverTakeIsRefused) {
  const ApiLimits limits = {.max_prompts = 3, .is_max_prompts_of_queue = true};
  EXPECT_FALSE(std::holds_alternative<ApiError>(parse_completion_request(R"({"prompt":["a","b","c"]})", limits, {})));
  const auto refused = [](const auto& result, const std::string& param) {
    const ApiError* error = std::get_if<ApiError>(&result);
    ASSERT_NE(error, nullptr);
    EXPECT_EQ(error->status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(error->param, param);
    EXPECT_NE(error->status.message().find("--max-queued-requests"), std::string::npos) << error->status.message();
  };
  refused(parse_completion_request(R"({"prompt":["a","b","c","d"]})", limits, {}), "prompt");
  refused(parse_embedding_request(R"({"input":[[1],[2],[3],[4]]})", limits), "input");
}

TEST(CompletionBody, SaysWhatIsWrongAndWhere) {
  std::string many_prompts = R"({"prompt":["a")";
  for (int i = 0; i < 5000; ++i) many_prompts += R"(,"a")";
  std::string many_stops = R"({"prompt":"x","stop":["a")";
  for (int i = 0; i < 100'000; ++i) many_stops += R"(,"a")";
  expect_refused(
      {
          {"", "", "empty"},
          {"{", "", "JSON"},
          {"[]", "", "object"},
          {"42", "", "object"},
          {"{}", "prompt", "missing"},
          {R"({"prompt":[]})", "prompt", "empty"},
          {R"({"prompt":[1,"a"]})", "prompt", "prompt must be"},
          {R"({"prompt":["a",1]})", "prompt", "one kind"},
          {R"({"prompt":[[1],"a"]})", "prompt", "one kind"},
          {R"({"prompt":[1.5]})", "prompt", "prompt must be"},
          {R"({"prompt":[99999999999]})", "prompt", "prompt must be"},
          {R"({"prompt":{"a":1}})", "prompt", "prompt must be"},
          {many_prompts + "]}", "prompt", "2048"},
          {many_stops + "]}", "stop", "64"},
          {R"({"prompt":"x","n":1000000})", "n", "128"},
          {R"({"prompt":"x","n":0})", "n", "from 1 to 128"},
          {R"({"prompt":"x","prompt_logprobs":-1})", "prompt_logprobs", "from 0 to 20"},
          {R"({"prompt":"x","allowed_token_ids":[]})", "allowed_token_ids", "empty"},
          {R"({"prompt":"x","logprobs":-1})", "logprobs", "from 0 to 20"},
          {R"({"prompt":"x","best_of":0})", "best_of", "from 1 to 128"},
          {R"({"prompt":"x","temperature":100.5})", "temperature", "from 0 to 100"},
          {R"({"prompt":"x","response_format":{"type":"json_object","schema":5}})", "response_format", "schema"},
          {R"({"prompt":"x","best_of":1000000})", "best_of", "128"},
          {R"({"prompt":"x","n":3,"best_of":2})", "best_of", "less than n"},
          {R"({"prompt":"x","best_of":2,"stream":true})", "best_of", "streamed"},
          {R"({"prompt":"x","max_tokens":2147483648})", "max_tokens", "whole number"},
          {R"({"prompt":"x","max_tokens":-1})", "max_tokens", "whole number"},
          {R"({"prompt":"x","max_tokens":1.5})", "max_tokens", "whole number"},
          {R"({"prompt":"x","temperature":"hot"})", "temperature", "number"},
          {R"({"prompt":"x","temperature":true})", "temperature", "number"},
          {R"({"prompt":"x","temperature":1e999})", "temperature", "not Infinity"},
          {R"({"prompt":"x","logprobs":21})", "logprobs", "20"},
          {R"({"prompt":"x","prompt_logprobs":1000})", "prompt_logprobs", "20"},
          {R"({"prompt":"x","logit_bias":{"-1":1}})", "logit_bias", "-1"},
          {R"({"prompt":"x","suffix":"end"})", "suffix", "not supported"},
          {R"({"prompt":"x","stream":"yes"})", "stream", "true or false"},
          {R"({"prompt":"x","stream_options":{"include_usage":true}})", "stream_options", "stream"},
          {R"({"prompt":"x","response_format":{"type":"xml"}})", "response_format", "json_object"},
          {R"({"prompt":"x","guided_regex":"a","guided_choice":["b"]})", "guided_choice", "exclude"},
          {R"({"prompt":"x","guided_choice":[]})", "guided_choice", "list"},
          {R"({"prompt":"x","structured_outputs":{"structural_tag":"{}"}})", "structured_outputs", "structural_tag"},
          {"{\"prompt\":\"\xd6\xd0\xce\xc4\"}", "", "JSON"},  // GBK
          {R"({"prompt":"\ud800"})", "", "JSON"},
          {std::string("{\"prompt\":\"a\0b\"}", 16), "", "JSON"},
          {R"({"prompt":)" + std::string(100'000, '[') + "1" + std::string(100'000, ']') + "}", "", "nests deeper"},
      },
      [](std::string_view body, const ApiLimits& limits) { return parse_completion_request(body, limits, {}); });
}

TEST(ChatBody, TextPartsAreJoinedAndCallsGetObjects) {
  const auto parsed = parse_chat_request(
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
          {"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function",
            "function":{"name":"f","arguments":"{\"x\": 1}"}}]},
          {"role":"tool","tool_call_id":"1","content":"42"}]})",
      {}, {});
  ASSERT_TRUE(std::holds_alternative<ChatRequest>(parsed));
  const auto& messages = std::get<ChatRequest>(parsed).conversation.at("messages").as_array();
  EXPECT_EQ(messages[0].at("content").as_string(), "a\nb");
  EXPECT_EQ(messages[1].at("content").as_string(), "");
  EXPECT_EQ(messages[1].at("tool_calls").at(0).at("function").at("arguments").at("x").as_int64(), 1);
  EXPECT_EQ(messages[2].at("content").as_string(), "42");
}

TEST(ChatBody, ReadsItsFields) {
  const ChatRequest request =
      chat(R"(,"max_tokens":5,"max_completion_tokens":9,"logprobs":true,"top_logprobs":2,"user":"me",
              "chat_template_kwargs":{"enable_thinking":false},"response_format":{"type":"json_object"})");
  EXPECT_EQ(request.sampling.params.max_tokens, 9);
  EXPECT_TRUE(request.has_max_tokens);
  EXPECT_EQ(request.sampling.params.num_logprobs, 2);
  EXPECT_EQ(request.structure.kind, StructureRequest::Kind::kJsonObject);
  // Other servers take a schema beside json_object.
  const StructureRequest structure =
      chat(R"(,"response_format":{"type":"json_object","schema":{"type":"object","required":["a"]}})").structure;
  EXPECT_EQ(structure.kind, StructureRequest::Kind::kJsonSchema);
  EXPECT_EQ(structure.text, R"({"type":"object","required":["a"]})");
  EXPECT_EQ(chat(R"(,"response_format":{"type":"json_object","schema":null})").structure.kind,
            StructureRequest::Kind::kJsonObject);
  EXPECT_TRUE(request.conversation.at("add_generation_prompt").as_bool());
  EXPECT_FALSE(chat("").has_max_tokens);
  EXPECT_EQ(chat(R"(,"logprobs":true)").sampling.params.num_logprobs, 0);
  EXPECT_EQ(chat(R"(,"logprobs":false)").sampling.params.num_logprobs, -1);
  EXPECT_FALSE(chat(R"(,"continue_final_message":true)").conversation.at("add_generation_prompt").as_bool());
}

// What openapi.json says of numbers is what is taken.
TEST(ApiDocument, NamesTheBoundsThatHold) {
  const boost::json::value document = boost::json::parse(openapi_document("1", 0));
  const ApiLimits limits;
  const std::pair<const char*, double> bounds[] = {
      {"temperature", kMaxTemperature}, {"n", limits.max_n}, {"prompt_logprobs", limits.max_logprobs}, {"top_p", 1},
      {"presence_penalty", 2},          {"priority", 1e9}};
  for (const char* schema : {"CompletionRequest", "ChatRequest"}) {
    const boost::json::value& fields = document.at("components").at("schemas").at(schema).at("properties");
    for (const auto& [name, most] : bounds) {
      EXPECT_EQ(fields.at(name).at("maximum").to_number<double>(), most) << schema << " " << name;
      // One more is refused, by its name.
      const std::string start = R"({"prompt":"x","messages":[{"role":"user","content":"x"}],")" + std::string(name);
      const std::string low = start + "\":" + std::to_string(static_cast<int64_t>(most)) + "}";
      const std::string high = start + "\":" + std::to_string(static_cast<int64_t>(most) + 1) + "}";
      if (schema == std::string_view("ChatRequest")) {
        EXPECT_TRUE(std::holds_alternative<ChatRequest>(parse_chat_request(low, limits, {}))) << low;
        EXPECT_TRUE(std::holds_alternative<ApiError>(parse_chat_request(high, limits, {}))) << high;
      } else {
        EXPECT_TRUE(std::holds_alternative<CompletionRequest>(parse_completion_request(low, limits, {}))) << low;
        EXPECT_TRUE(std::holds_alternative<ApiError>(parse_completion_request(high, limits, {}))) << high;
      }
    }
  }
}

TEST(ChatBody, ReadsToolsAndTheirChoice) {
  const std::string tools =
      R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"},"strict":true}}])";
  const ChatRequest automatic = chat(tools);
  ASSERT_EQ(automatic.tools.size(), 1u);
  EXPECT_EQ(automatic.tools[0].parameters_json, R"({"type":"object"})");
  EXPECT_TRUE(automatic.tools[0].is_strict);
  EXPECT_EQ(automatic.tool_choice.kind, ToolChoiceRequest::Kind::kAuto);
  EXPECT_TRUE(automatic.conversation.contains("tools"));
  const ChatRequest none = chat(tools + R"(,"tool_choice":"none")");
  EXPECT_EQ(none.tool_choice.kind, ToolChoiceRequest::Kind::kNone);
  EXPECT_FALSE(none.conversation.contains("tools"));
  const ChatRequest named = chat(tools + R"(,"tool_choice":{"type":"function","function":{"name":"f"}})");
  EXPECT_EQ(named.tool_choice.kind, ToolChoiceRequest::Kind::kNamed);
  EXPECT_EQ(named.tool_choice.name, "f");
  EXPECT_EQ(chat("").tool_choice.kind, ToolChoiceRequest::Kind::kNone);
}

// F034, F038.
TEST(ChatBody, SaysWhatIsWrongAndWhere) {
  const std::string head = R"({"messages":[{"role":"user","content":"hi"}],)";
  expect_refused(
      {
          {"{}", "messages", "messages must be"},
          {R"({"messages":[]})", "messages", "messages must be"},
          {R"({"messages":"hi"})", "messages", "messages must be"},
          {R"({"messages":[1]})", "messages", "messages[0]"},
          {R"({"messages":[{"content":"x"}]})", "messages", "role"},
          {R"({"messages":[{"role":"user"}]})", "messages", "content"},
          {R"({"messages":[{"role":"user","content":5}]})", "messages", "messages[0].content"},
          {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]})", "messages",
           "no images"},
          {R"({"messages":[{"role":"assistant","tool_calls":[{"id":1}]}]})", "messages", "tool_calls[0]"},
          {head + R"("top_logprobs":5})", "top_logprobs", "logprobs"},
          {head + R"("logprobs":3})", "logprobs", "true or false"},
          {head + R"("logprobs":true,"top_logprobs":1000000})", "top_logprobs", "20"},
          {head + R"("functions":[{}]})", "functions", "tools"},
          {head + R"("tools":[{"type":"function"}]})", "tools", "tools[0]"},
          {head + R"("tools":[{"function":{"name":""}}]})", "tools", "name"},
          {head + R"("tools":[{"type":"retrieval","function":{"name":"f"}}]})", "tools", "tools[0]"},
          {R"({"messages":[{"role":"assistant","tool_calls":[{"type":"x","function":{"name":"f"}}]}]})", "messages",
           "tool_calls[0]"},
          {head + R"("tools":[{"function":{"name":"f"}},{"function":{"name":"f"}}]})", "tools", "two functions"},
          {head + R"("tool_choice":"required"})", "tool_choice", "no tools"},
          {head + R"("tools":[{"function":{"name":"f"}}],"tool_choice":{"function":{"name":"g"}}})", "tool_choice",
           "g"},
          {head + R"("tools":[{"function":{"name":"f"}}],"tool_choice":"perhaps"})", "tool_choice", "auto"},
          {head + R"("max_completion_tokens":-2})", "max_completion_tokens", "whole number"},
          {head + R"("chat_template_kwargs":[]})", "chat_template_kwargs", "object"},
          {head + R"("truncate_prompt_tokens":10})", "truncate_prompt_tokens", "never cut"},
          {head + R"("best_of":2})", "best_of", "not supported"},
          {head + R"("suffix":"end"})", "suffix", "not supported"},
      },
      [](std::string_view body, const ApiLimits& limits) { return parse_chat_request(body, limits, {}); });
}

TEST(EmbeddingBody, ReadsAndRefuses) {
  const auto parsed =
      parse_embedding_request(R"({"input":["a","b"],"model":"m","dimensions":8,"encoding_format":"base64"})", {});
  ASSERT_TRUE(std::holds_alternative<EmbeddingRequest>(parsed));
  const EmbeddingRequest& request = std::get<EmbeddingRequest>(parsed);
  EXPECT_EQ(request.inputs.size(), 2u);
  EXPECT_EQ(request.num_dimensions, 8);
  EXPECT_TRUE(request.is_base64);
  expect_refused({{R"({"input":[]})", "input", "empty"},
                  {R"({"input":"a","dimensions":0})", "dimensions", "whole number"},
                  {R"({"input":"a","encoding_format":"hex"})", "encoding_format", "base64"}},
                 parse_embedding_request);
}

TEST(FieldOfMessage, TakesTheFieldThatAMessageBeginsWith) {
  EXPECT_EQ(field_of_message("logit_bias: token id 7 is not in the vocabulary"), "logit_bias");
  EXPECT_EQ(field_of_message("logit_bias entries: 2000 is outside"), "logit_bias");
  EXPECT_EQ(field_of_message("the prompt has 5 tokens"), "");
  EXPECT_EQ(field_of_message(""), "");
}

}  // namespace
}  // namespace quire

// Whole requests through handlers, pool and writers, with a scripted engine and no sockets.
#include "server/generation.h"

#include <gtest/gtest.h>

#include "server/chat_completions.h"
#include "server/completions.h"
#include "server/testing/api_fixture.h"

namespace quire {
namespace {

namespace json = boost::json;
using testing::bytes_as_tokens;
using testing::FakeExchange;
using testing::kTokenBegin;
using testing::kTokenEnd;

class GenerationTest : public testing::ApiFixture {};

TEST_F(GenerationTest, CompletionAnswersWithTextAndUsage) {
  auto exchange = post(read_completion, R"({"prompt":"ab","max_tokens":9,"user":"u","model":"other-name"})");
  const Request* request = engine_.wait_for(1);
  ASSERT_NE(request, nullptr);
  EXPECT_EQ(request->prompt[0].token_ids, bytes_as_tokens("ab"));
  EXPECT_EQ(request->sampling.max_tokens, 9);
  say(1, "héllo");
  engine_.tell(1, {.token_ids = {'!'}, .finish_reason = FinishReason::kLength, .num_cached_tokens = 1});
  const json::object answer = answer_of(*exchange);
  EXPECT_EQ(answer.at("object"), "text_completion");
  EXPECT_EQ(answer.at("model"), "other-name");
  EXPECT_EQ(answer.at("id"), "cmpl-req-test");
  const json::value& choice = answer.at("choices").at(0);
  EXPECT_EQ(choice.at("text"), "héllo!");
  EXPECT_EQ(choice.at("finish_reason"), "length");
  EXPECT_TRUE(choice.at("logprobs").is_null());
  EXPECT_EQ(answer.at("usage"), json::parse(R"({"prompt_tokens":2,"completion_tokens":7,"total_tokens":9,
                                                "prompt_tokens_details":{"cached_tokens":1}})"));
  EXPECT_EQ(exchange->facts().num_generated_tokens, 7);
  EXPECT_EQ(exchange->facts().finish_reason, "length");
}

TEST_F(GenerationTest, ChatRendersTheTemplateAndDropsTheStopToken) {
  auto exchange = post(read_chat, R"({"messages":[{"role":"user","content":"<|im_end|>"}]})");
  const Request* request = engine_.wait_for(1);
  ASSERT_NE(request, nullptr);
  std::vector<int32_t> expected{kTokenBegin};
  const auto add = [&](std::string_view text) {
    for (const int32_t id : bytes_as_tokens(text)) expected.push_back(id);
  };
  add("user\n<|im_end|>");  // what a user writes forges nothing
  expected.push_back(kTokenEnd);
  add("\n");
  expected.push_back(kTokenBegin);
  add("assistant\n");
  EXPECT_EQ(request->prompt[0].token_ids, expected);
  EXPECT_EQ(request->sampling.max_tokens, 100 - static_cast<int64_t>(expected.size()));
  say(1, "hi");
  end(1);
  const json::object answer = answer_of(*exchange);
  EXPECT_EQ(answer.at("object"), "chat.completion");
  EXPECT_EQ(answer.at("choices").at(0).at("message").at("content"), "hi");
  EXPECT_EQ(answer.at("choices").at(0).at("message").at("role"), "assistant");
  EXPECT_EQ(answer.at("choices").at(0).at("finish_reason"), "stop");
  EXPECT_EQ(answer.at("usage").at("completion_tokens"), 3);
}

TEST_F(GenerationTest, ContinuesTheFinalMessage) {
  auto exchange = post(read_chat, R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"so be"}],
                                      "continue_final_message":true,"add_generation_prompt":false})");
  const Request* request = engine_.wait_for(1);
  ASSERT_NE(request, nullptr);
  std::string tail;
  const std::vector<int32_t>& ids = request->prompt[0].token_ids;
  for (size_t i = ids.size() - 5; i < ids.size(); ++i) tail += static_cast<char>(ids[i]);
  EXPECT_EQ(tail, "so be");
  end(1);
  answer_of(*exchange);
}

// The stop string comes in pieces, none of which is ever sent; text is cut at the exact character.
TEST_F(GenerationTest, StopStringAcrossTokensSendsNothingOfItself) {
  auto exchange = post(read_completion, R"({"prompt":"a","stop":"DEFGHIJ","stream":true,"return_token_ids":true,
                                            "stream_options":{"include_usage":true}})");
  ASSERT_NE(engine_.wait_for(1), nullptr);
  say(1, "xyDEFGHIJ");
  EXPECT_TRUE(engine_.wait_until_stopped(1, 0));
  say(1, "late");  // the engine was a step ahead
  engine_.tell(1, {.finish_reason = FinishReason::kStop});
  const std::vector<json::object> chunks = chunks_of(*exchange);
  std::string text;
  for (const json::object& chunk : chunks) {
    if (!chunk.at("choices").as_array().empty()) text += chunk.at("choices").at(0).at("text").as_string();
  }
  EXPECT_EQ(text, "xy");
  const json::object& last = chunks[chunks.size() - 2];
  EXPECT_EQ(last.at("choices").at(0).at("finish_reason"), "stop");
  EXPECT_EQ(last.at("choices").at(0).at("stop_reason"), "DEFGHIJ");
  EXPECT_EQ(chunks.back().at("usage").at("completion_tokens"), 9);
}

// Before min_tokens a stop string is text like any other.
TEST_F(GenerationTest, StopStringsCountAfterMinTokens) {
  auto exchange = post(read_completion, R"({"prompt":"a","stop":"Z","min_tokens":3,"max_tokens":20})");
  ASSERT_NE(engine_.wait_for(1), nullptr);
  say(1, "xZZ");
  say(1, "aZ");
  EXPECT_TRUE(engine_.wait_until_stopped(1, 0));
  engine_.tell(1, {.finish_reason = FinishReason::kStop});
  const json::object answer = answer_of(*exchange);
  EXPECT_EQ(answer.at("choices").at(0).at("text"), "xZZa");
  EXPECT_EQ(answer.at("usage").at("completion_tokens"), 5);
}

TEST_F(GenerationTest, StreamsChatWithRoleFirstAndUsageLast) {
  auto exchange = post(read_chat, R"({"messages":[{"role":"user","content":"a"}],"stream":true,
                                      "stream_options":{"include_usage":true}})");
  ASSERT_NE(engine_.wait_for(1), nullptr);
  EXPECT_FALSE(exchange->has_events());  // until there is something to say the status may still be an error's
  say(1, "a\n\xe2\x80\xa8z");            // U+2028 is one character of three tokens
  end(1);
  const std::vector<json::object> chunks = chunks_of(*exchange);
  EXPECT_EQ(chunks[0].at("choices").at(0).at("delta").at("role"), "assistant");
  EXPECT_EQ(chunks[0].at("object"), "chat.completion.chunk");
  std::string text;
  for (const json::object& chunk : chunks) {
    if (chunk.at("choices").as_array().empty()) continue;
    const json::object& delta = chunk.at("choices").at(0).at("delta").as_object();
    if (delta.contains("content")) text += delta.at("content").as_string();
  }
  EXPECT_EQ(text, "a\n\xe2\x80\xa8z");
  EXPECT_EQ(chunks[chunks.size() - 2].at("choices").at(0).at("finish_reason"), "stop");
  EXPECT_TRUE(chunks.back().at("choices").as_array().empty());
  EXPECT_EQ(chunks.back().at("usage").at("completion_tokens"), 7);
  for (const std::string& event : exchange->events()) EXPECT_EQ(event.find('\n'), std::string::npos);
}

TEST_F(GenerationTest, EveryChunkHasUsageWhereAskedFor) {
  auto exchange = post(read_completion, R"({"prompt":"a","stream":true,
                                            "stream_options":{"include_usage":true,"continuous_usage_stats":true}})");
  ASSERT_NE(engine_.wait_for(1), nullptr);
  say(1, "xy");
  end(1);
  for (const json::object& chunk : chunks_of(*exchange)) EXPECT_TRUE(chunk.contains("usage"));
}

TEST_F(GenerationTest, ManyPromptsTimesManyChoicesAreNumberedByPrompt) {
  auto exchange = post(read_completion, R"({"prompt":[[65],[66]],"n":2,"max_tokens":1})");
  ASSERT_NE(engine_.wait_for(2), nullptr);
  // Ends in another order than asked for.
  for (const auto& [id, choice, letter] : {std::tuple{2, 1, 'd'}, {2, 0, 'c'}, {1, 1, 'b'}, {1, 0, 'a'}}) {
    engine_.tell(static_cast<RequestId>(id),
                 {.token_ids = {letter}, .finish_reason = FinishReason::kLength, .choice_index = choice});
  }
  const json::object answer = answer_of(*exchange);
  ASSERT_EQ(answer.at("choices").as_array().size(), 4u);
  const char* expected[] = {"a", "b", "c", "d"};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(answer.at("choices").at(i).at("index").to_number<size_t>(), i);
    EXPECT_EQ(answer.at("choices").at(i).at("text"), expected[i]);
  }
  EXPECT_EQ(answer.at("usage").at("prompt_tokens"), 2);
  EXPECT_EQ(answer.at("usage").at("completion_tokens"), 4);
}

TEST_F(GenerationTest, BestOfReturnsTheLikeliestAndCountsAll) {
  auto exchange = post(read_completion, R"({"prompt":"a","best_of":3,"n":2,"max_tokens":1})");
  const Request* request = engine_.wait_for(1);
  ASSERT_NE(request, nullptr);
  EXPECT_EQ(request->sampling.n, 3);
  const float logprobs[] = {-3.0f, -1.0f, -2.0f};
  for (int c = 0; c < 3; ++c) {
    engine_.tell(1, {.token_ids = {'a' + c},
                     .logprobs = {{'a' + c, logprobs[c], 1, {}}},
                     .finish_reason = FinishReason::kLength,
                     .choice_index = c});
  }
  const json::object answer = answer_of(*exchange);
  ASSERT_EQ(answer.at("choices").as_array().size(), 2u);
  EXPECT_EQ(answer.at("choices").at(0).at("text"), "b");
  EXPECT_EQ(answer.at("choices").at(1).at("text"), "c");
  EXPECT_TRUE(answer.at("choices").at(0).at("logprobs").is_null());
  EXPECT_EQ(answer.at("usage").at("completion_tokens"), 3);
}

TEST_F(GenerationTest, CompletionLogprobsHaveOffsetsInCharacters) {
  auto exchange = post(read_completion, R"({"prompt":"né","logprobs":1,"echo":true,"max_tokens":4,"stop":"Z"})");
  const Request* request = engine_.wait_for(1);
  ASSERT_NE(request, nullptr);
  EXPECT_EQ(request->sampling.num_prompt_logprobs, 1);
  const auto entry = [](int32_t id, float logprob) {
    return TokenLogprobs{id, logprob, 1, {{id, logprob}, {'q', -9.0f}}};
  };
  const std::vector<int32_t> tokens = bytes_as_tokens("éxZ");
  std::vector<TokenLogprobs> logprobs;
  for (const int32_t id : tokens) logprobs.push_back(entry(id, id == 'x' ? -INFINITY : -0.5f));
  engine_.tell(1, {.token_ids = tokens,
                   .logprobs = logprobs,
                   .finish_reason = FinishReason::kLength,
                   .prompt_logprobs = {entry(0xc3, -0.25f), entry(0xa9, -0.125f)}});
  const json::object answer = answer_of(*exchange);
  EXPECT_EQ(answer.at("choices").at(0).at("text"),
            "néé"
            "x");
  const json::value& given = answer.at("choices").at(0).at("logprobs");
  EXPECT_EQ(given.at("tokens"), json::parse(R"(["n","bytes:\\xc3","bytes:\\xa9","bytes:\\xc3","bytes:\\xa9","x"])"));
  EXPECT_EQ(given.at("text_offset"), json::parse("[0,1,1,2,2,3]"));
  EXPECT_TRUE(given.at("token_logprobs").at(0).is_null());
  EXPECT_EQ(given.at("token_logprobs").at(1).as_double(), -0.25);
  EXPECT_EQ(given.at("token_logprobs").at(5).as_double(), -9999.0);  // no infinity in JSON
  EXPECT_EQ(given.at("top_logprobs").at(5).as_object().size(), 2u);
}

TEST_F(GenerationTest, ChatLogprobsHaveBytes) {
  auto exchange = post(read_chat, R"({"messages":[{"role":"user","content":"a"}],"logprobs":true,"top_logprobs":1,
                                      "stream":true})");
  ASSERT_NE(engine_.wait_for(1), nullptr);
  const std::vector<int32_t> tokens = bytes_as_tokens("é");
  for (const int32_t id : tokens) engine_.tell(1, {.token_ids = {id}, .logprobs = {{id, -0.5f, 1, {{id, -0.5f}}}}});
  end(1);
  json::array content;
  for (const json::object& chunk : chunks_of(*exchange)) {
    const json::value& logprobs = chunk.at("choices").at(0).at("logprobs");
    if (logprobs.is_null()) continue;
    for (const json::value& item : logprobs.at("content").as_array()) content.push_back(item);
  }
  ASSERT_EQ(content.size(), 2u);
  EXPECT_EQ(content[0].at("bytes"), json::parse("[195]"));
  EXPECT_EQ(content[1].at("top_logprobs").at(0).at("bytes"), json::parse("[169]"));
}

// F032, F034, F080.
TEST_F(GenerationTest, ErrorsBeforeTheFirstByteHaveTheirStatus) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"prompt":"a","n":0})", "n"},
      {R"({"prompt":[-1]})", "prompt"},
      {R"({"prompt":[259]})", "prompt"},
      {R"({"prompt":""})", "prompt"},
      {R"({"prompt":"a","logit_bias":{"259":1}})", "logit_bias"},
      {R"({"prompt":"a","stream":true,"min_tokens":5,"max_tokens":2})", "min_tokens"},
  };
  for (const auto& [body, param] : cases) {
    const json::object answer = answer_of(*post(read_completion, body), 400);
    EXPECT_EQ(error_param(answer), param) << body;
    EXPECT_EQ(answer.at("error").at("type"), "invalid_request_error");
  }
  const json::object unknown = answer_of(*post(read_completion, R"({"prompt":"a","model":"gpt-x"})"), 404);
  EXPECT_EQ(unknown.at("error").at("code"), "model_not_found");
  EXPECT_EQ(engine_.num_submitted(), 0u);

  engine_.refuse_with(overloaded("too many wait"));
  auto exchange = post(read_completion, R"({"prompt":"a","stream":true})");
  answer_of(*exchange, 429);
  bool has_retry_after = false;
  for (const auto& [name, value] : exchange->response().headers) has_retry_after |= name == "Retry-After";
  EXPECT_TRUE(has_retry_after);
  engine_.refuse_with(unavailable("draining"));
  answer_of(*post(read_chat, R"({"messages":[{"role":"user","content":"a"}]})"), 503);
  engine_.refuse_with(invalid_argument("the prompt has 100 tokens"));
  const json::object too_long =
      answer_of(*post(read_completion, R"({"prompt":")" + std::string(100, 'a') + R"("})"), 400);
  EXPECT_EQ(too_long.at("error").at("code"), "context_length_exceeded");
  EXPECT_EQ(error_param(too_long), "prompt");
  const json::object long_chat = answer_of(
      *post(read_chat, R"({"messages":[{"role":"user","content":")" + std::string(100, 'a') + R"("}]})"), 400);
  EXPECT_EQ(long_chat.at("error").at("code"), "context_length_exceeded");
  EXPECT_EQ(error_param(long_chat), "messages");
  // One that is refused for another reason is not too long.
  engine_.refuse_with(overloaded("too many wait"));
  const json::object busy = answer_of(*post(read_completion, R"({"prompt":")" + std::string(100, 'a') + R"("})"), 429);
  EXPECT_TRUE(busy.at("error").at("code").is_null());
}

// F080: one object an event, newlines and U+2028 in a delta escaped or harmless; then one line with the error.
TEST_F(GenerationTest, ErrorInTheMiddleOfAStreamIsOneLineAndTheEnd) {
  auto exchange = post(read_completion, R"({"prompt":"a","stream":true})");
  ASSERT_NE(engine_.wait_for(1), nullptr);
  for (const std::string& text : {std::string("a\n"), std::string("\r\nb"), std::string("\u2028")}) {
    engine_.tell(1, {.token_ids = bytes_as_tokens(text)});
  }
  ASSERT_TRUE(exchange->wait_for_events(3));
  engine_.tell(1, {.finish_reason = FinishReason::kError, .error = internal_error("the logits are not numbers")});
  ASSERT_TRUE(exchange->wait_until_ended());
  const std::vector<std::string> events = exchange->events();
  ASSERT_EQ(events.size(), 4u);
  std::string said;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(events[static_cast<size_t>(i)].find_first_of("\r\n"), std::string::npos);
    said += json::parse(events[static_cast<size_t>(i)]).at("choices").at(0).at("text").as_string();
  }
  EXPECT_EQ(said, "a\n\r\nb\u2028");
  const json::value last = json::parse(events.back());
  EXPECT_EQ(last.as_object().size(), 1u);
  EXPECT_EQ(last.at("error").at("message"), "the logits are not numbers");

  auto whole = post(read_completion, R"({"prompt":"a"})");
  ASSERT_NE(engine_.wait_for(2), nullptr);
  engine_.tell(2, {.finish_reason = FinishReason::kError, .error = internal_error("no numbers")});
  answer_of(*whole, 500);
}

TEST_F(GenerationTest, AClientThatGoesAwayEndsTheWorkWhereverItStands) {
  // While it generates.
  auto running = post(read_completion, R"({"prompt":["a","b"],"stream":true})");
  ASSERT_NE(engine_.wait_for(2), nullptr);
  say(1, "x");
  ASSERT_TRUE(running->wait_for_events(1));
  running->close();
  EXPECT_TRUE(engine_.wait_until_aborted(1));
  EXPECT_TRUE(engine_.wait_until_aborted(2));
  for (const RequestId id : {1, 2}) engine_.tell(id, {.finish_reason = FinishReason::kAborted});

  // Before it was read: nothing is submitted.
  auto early = FakeExchange::post("/v1", R"({"prompt":"a"})");
  early->close();
  Generation::start(context_, early, read_completion);
  context_.reset();
  pool_.reset();  // all tasks have run
  EXPECT_EQ(engine_.num_submitted(), 2u);
  EXPECT_EQ(running->facts().finish_reason, "abort");
  EXPECT_EQ(running->facts().error, "");  // no failure of the server
}

TEST_F(GenerationTest, ShutdownTellsWaitingClients) {
  auto exchange = post(read_completion, R"({"prompt":"a"})");
  ASSERT_NE(engine_.wait_for(1), nullptr);
  engine_.tell(1, {.finish_reason = FinishReason::kAborted});
  answer_of(*exchange, 503);
}

TEST_F(GenerationTest, TheModelsOwnEndIsNoStopReason) {
  auto exchange = post(read_completion, R"({"prompt":"a","stop_token_ids":[66]})");
  ASSERT_NE(engine_.wait_for(1), nullptr);
  engine_.tell(1, {.token_ids = {'A'}});
  engine_.tell(1, {.token_ids = {2}, .finish_reason = FinishReason::kStop, .stop_token_id = 2});
  const json::object answer = answer_of(*exchange);
  EXPECT_EQ(answer.at("choices").at(0).at("finish_reason"), "stop");
  EXPECT_TRUE(answer.at("choices").at(0).at("stop_reason").is_null());
}

// A token that was named as a stop ends the answer and is no part of its text, whatever it spells.
TEST_F(GenerationTest, AStopTokenIsNoText) {
  auto exchange = post(read_completion, R"({"prompt":"a","stop_token_ids":[66],"logprobs":0})");
  ASSERT_NE(engine_.wait_for(1), nullptr);
  engine_.tell(1, {.token_ids = {'A'}, .logprobs = {{'A', -1.0f, 1, {}}}});
  engine_.tell(1, {.token_ids = {'B'},
                   .logprobs = {{'B', -1.0f, 1, {}}},
                   .finish_reason = FinishReason::kStop,
                   .stop_token_id = 'B'});
  const json::object answer = answer_of(*exchange);
  EXPECT_EQ(answer.at("choices").at(0).at("text"), "A");
  EXPECT_EQ(answer.at("choices").at(0).at("stop_reason"), 66);
  // It has its log-probability, so that there is one for each token of "usage".
  EXPECT_EQ(answer.at("choices").at(0).at("logprobs").at("tokens"), json::parse(R"(["A","B"])"));
  EXPECT_EQ(answer.at("choices").at(0).at("logprobs").at("text_offset"), json::parse("[0,1]"));
  EXPECT_EQ(answer.at("usage").at("completion_tokens"), 2);
  EXPECT_EQ(answer.at("usage").at("completion_tokens"), 2);
}

TEST_F(GenerationTest, ChunksBeforeTheLastHaveNoUsage) {
  for (const GenerationReader read : {read_completion, read_chat}) {
    auto exchange = post(read, R"({"prompt":"a","messages":[{"role":"user","content":"a"}],"stream":true,
                                   "stream_options":{"include_usage":true}})");
    const RequestId id = read == read_completion ? 1 : 2;
    ASSERT_NE(engine_.wait_for(id), nullptr);
    say(id, "xy");
    end(id);
    const std::vector<json::object> chunks = chunks_of(*exchange);
    ASSERT_GE(chunks.size(), 3u);
    for (size_t i = 0; i + 1 < chunks.size(); ++i) EXPECT_TRUE(chunks[i].at("usage").is_null());
    EXPECT_TRUE(chunks.back().at("choices").as_array().empty());
    EXPECT_EQ(chunks.back().at("usage").at("completion_tokens"), 3);
  }
  auto without = post(read_completion, R"({"prompt":"a","stream":true})");
  ASSERT_NE(engine_.wait_for(3), nullptr);
  end(3);
  for (const json::object& chunk : chunks_of(*without)) EXPECT_FALSE(chunk.contains("usage"));
}

TEST_F(GenerationTest, WhatARequestLeavesOutIsTheModelsDefault) {
  context_->default_sampling.temperature = 0.7f;
  context_->default_sampling.top_k = 20;
  for (const GenerationReader read : {read_completion, read_chat}) {
    auto exchange = post(read, R"({"prompt":"a","messages":[{"role":"user","content":"a"}],"temperature":0.2})");
    const RequestId id = read == read_completion ? 1 : 2;
    const Request* request = engine_.wait_for(id);
    ASSERT_NE(request, nullptr);
    EXPECT_FLOAT_EQ(request->sampling.temperature, 0.2f);
    EXPECT_EQ(request->sampling.top_k, 20);
    end(id);
    answer_of(*exchange);
  }
}

TEST_F(GenerationTest, MetricsCountWhatHappened) {
  auto exchange = post(read_completion, R"({"prompt":"abcd","n":2})");
  ASSERT_NE(engine_.wait_for(1), nullptr);
  say(1, "xy", 0);
  end(1, 0);
  say(1, "z", 1);
  end(1, 1);
  answer_of(*exchange);
  pool_->create_strand();
  EXPECT_EQ(metrics_->generation_tokens.value(), 5.0);
  EXPECT_EQ(metrics_->prompt_tokens.value(), 4.0);
}

}  // namespace
}  // namespace quire

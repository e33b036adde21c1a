#include "server/embeddings.h"

#include <gtest/gtest.h>

#include "server/testing/api_fixture.h"

namespace quire {
namespace {

namespace json = boost::json;
using testing::FakeExchange;

class EmbeddingsTest : public testing::ApiFixture {
 protected:
  std::shared_ptr<FakeExchange> ask(const std::string& body) {
    auto exchange = FakeExchange::post("/v1/embeddings", body);
    start_embeddings(context_, exchange);
    return exchange;
  }
};

TEST_F(EmbeddingsTest, AnswersInTheOrderOfTheInputs) {
  auto exchange = ask(R"({"input":["a","bc"],"model":"tiny"})");
  const Request* request = engine_.wait_for(2);
  ASSERT_NE(request, nullptr);
  EXPECT_EQ(request->pooling, Pooling::kLast);
  EXPECT_EQ(request->sampling.max_tokens, 0);
  engine_.tell(2, {.finish_reason = FinishReason::kStop, .embedding = {0.0f, 1.0f, 0.0f, 0.0f}});
  engine_.tell(1, {.finish_reason = FinishReason::kStop, .embedding = {1.0f, 0.0f, 0.0f, 0.0f}});
  const json::object answer = answer_of(*exchange);
  EXPECT_EQ(answer.at("data").at(0).at("embedding").at(0).as_double(), 1.0);
  EXPECT_EQ(answer.at("data").at(1).at("embedding").at(1).as_double(), 1.0);
  EXPECT_EQ(answer.at("data").at(1).at("index"), 1);
  EXPECT_EQ(answer.at("usage"), json::parse(R"({"prompt_tokens":3,"total_tokens":3})"));
}

TEST_F(EmbeddingsTest, ShortensAndNormalizesAgainAndEncodes) {
  auto exchange = ask(R"({"input":[1,2],"dimensions":2,"encoding_format":"base64"})");
  ASSERT_NE(engine_.wait_for(1), nullptr);
  engine_.tell(1, {.finish_reason = FinishReason::kStop, .embedding = {0.3f, 0.4f, 0.5f, 0.70710678f}});
  // 0.6f, 0.8f as little-endian floats.
  EXPECT_EQ(answer_of(*exchange).at("data").at(0).at("embedding"), "mpkZP83MTD8=");
}

TEST_F(EmbeddingsTest, NormalizesOnlyWhereTheModelDoes) {
  for (const bool is_normalized : {false, true}) {
    context_->pooling.pooling = Pooling::kMean;
    context_->pooling.is_normalized = is_normalized;
    auto exchange = ask(R"({"input":[1,2],"dimensions":2})");
    const RequestId id = is_normalized ? 2 : 1;
    const Request* request = engine_.wait_for(id);
    ASSERT_NE(request, nullptr);
    EXPECT_EQ(request->pooling, Pooling::kMean);
    EXPECT_EQ(request->is_normalized, is_normalized);
    engine_.tell(id, {.finish_reason = FinishReason::kStop, .embedding = {3.0f, 4.0f, 0.0f, 0.0f}});
    const double wanted = is_normalized ? 0.6 : 3.0;
    EXPECT_NEAR(answer_of(*exchange).at("data").at(0).at("embedding").at(0).as_double(), wanted, 1e-6);
  }
}

TEST_F(EmbeddingsTest, RefusesWhatTheModelAsksForAndThereIsNot) {
  context_->pooling.unsupported = "1_Pooling/config.json asks for the maximum over all tokens";
  const json::object error = answer_of(*ask(R"({"input":"a"})"), 400).at("error").as_object();
  EXPECT_NE(std::string(error.at("message").as_string()).find("maximum over all tokens"), std::string::npos);
  EXPECT_EQ(engine_.num_submitted(), 0u);
}

TEST_F(EmbeddingsTest, RefusesWithTheField) {
  const std::pair<const char*, const char*> cases[] = {{R"({"input":""})", "input"},
                                                       {R"({"input":[9999]})", "input"},
                                                       {R"({"input":"a","dimensions":5})", "dimensions"},
                                                       {R"({"model":"tiny"})", "input"}};
  for (const auto& [body, param] : cases) {
    const json::object error = answer_of(*ask(body), 400).at("error").as_object();
    EXPECT_EQ(error.at("param"), param) << body;
    EXPECT_EQ(error.at("message").as_string().find("prompt"), json::string::npos) << error;
  }
  EXPECT_EQ(engine_.num_submitted(), 0u);
  engine_.refuse_with(invalid_argument("the prompt has 5000 tokens"));
  const json::object error =
      answer_of(*ask(R"({"input":")" + std::string(5000, 'a') + R"("})"), 400).at("error").as_object();
  EXPECT_EQ(error.at("param"), "input");
  EXPECT_EQ(error.at("code"), "context_length_exceeded");
}

TEST_F(EmbeddingsTest, AClientThatGoesAwayEndsTheWork) {
  auto exchange = ask(R"({"input":["a","b"]})");
  ASSERT_NE(engine_.wait_for(2), nullptr);
  exchange->close();
  EXPECT_TRUE(engine_.wait_until_aborted(1));
  EXPECT_TRUE(engine_.wait_until_aborted(2));
}

TEST_F(EmbeddingsTest, FailsWhereTheEngineFails) {
  auto exchange = ask(R"({"input":["a"]})");
  ASSERT_NE(engine_.wait_for(1), nullptr);
  engine_.tell(1, {.finish_reason = FinishReason::kError, .error = internal_error("no numbers")});
  answer_of(*exchange, 500);
}

}  // namespace
}  // namespace quire

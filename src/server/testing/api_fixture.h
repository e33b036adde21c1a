// For tests of the API's handlers: a text side of 256 byte tokens and a few markers, a pool, a scripted engine and the
// context over them.
#pragma once

#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "server/api_context.h"
#include "server/generation.h"
#include "server/testing/fake_exchange.h"
#include "server/testing/scripted_engine.h"

namespace quire::testing {

// Ids: bytes 0–255, then these.
constexpr int32_t kTokenBegin = 256;  // <|im_start|>
constexpr int32_t kTokenEnd = 257;    // <|im_end|>

inline std::vector<int32_t> bytes_as_tokens(std::string_view text) {
  std::vector<int32_t> ids;
  for (const char byte : text) ids.push_back(static_cast<int32_t>(static_cast<unsigned char>(byte)));
  return ids;
}

class ApiFixture : public ::testing::Test {
 protected:
  ApiFixture();

  // Another text side, for models that write calls or thinking in this way. Before the first request.
  void use_text(const std::string& chat_template, const TextFrontend::Parsers& parsers);

  std::shared_ptr<FakeExchange> post(GenerationReader read, const std::string& body);
  // Waits for the end and reads the answer.
  static boost::json::object answer_of(FakeExchange& exchange, int status = 200);
  // The same for a stream without its "[DONE]", which must be there.
  static std::vector<boost::json::object> chunks_of(FakeExchange& exchange);

  // What the model says to a request: text, then its own end.
  void say(RequestId id, std::string_view text, int choice_index = 0);
  void end(RequestId id, int choice_index = 0);
  // The field that an error names; empty: none.
  static std::string error_param(const boost::json::object& answer);

  // In the order in which they need each other: the pool ends its tasks first, then the engine lets requests go.
  MetricRegistry registry_;
  std::unique_ptr<ServerMetrics> metrics_;
  GrammarCache grammars_;
  std::unique_ptr<TextFrontend> text_;
  ScriptedEngine engine_;
  std::unique_ptr<TextPool> pool_;
  std::shared_ptr<ApiContext> context_;
};

}  // namespace quire::testing

#include "server/testing/api_fixture.h"

namespace quire::testing {

namespace json = boost::json;

namespace {

// GPT-2's printable spelling of a byte.
std::string spell_byte(int byte) {
  const auto is_printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
  };
  int code_point = byte;
  if (!is_printable(byte)) {
    code_point = 0x100;
    for (int b = 0; b < byte; ++b) code_point += is_printable(b) ? 0 : 1;
  }
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xC0 | (code_point >> 6)), static_cast<char>(0x80 | (code_point & 0x3F))};
}

TokenizerData byte_tokenizer() {
  TokenizerData data;
  data.model = "gpt2";
  data.pre = "qwen2";
  for (int byte = 0; byte < 256; ++byte) data.tokens.push_back(spell_byte(byte));
  data.token_types.assign(256, static_cast<int32_t>(TokenType::kNormal));
  for (const char* marker : {"<|im_start|>", "<|im_end|>"}) {
    data.tokens.emplace_back(marker);
    data.token_types.push_back(static_cast<int32_t>(TokenType::kControl));
  }
  // A vocabulary has merges.
  data.tokens.emplace_back("~~");
  data.token_types.push_back(static_cast<int32_t>(TokenType::kNormal));
  data.merges.emplace_back("~ ~");
  data.eos_id = kTokenEnd;
  return data;
}

const std::string kTemplate =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

}  // namespace

ApiFixture::ApiFixture() {
  auto pool = TextPool::create({.num_threads = 2, .max_waiting_long = 64});
  CHECK(pool.is_ok());
  pool_ = std::move(pool).value();
  metrics_ = std::make_unique<ServerMetrics>(registry_, "tiny");
  use_text(kTemplate, {.tools = "none", .reasoning = "none"});
}

void ApiFixture::use_text(const std::string& chat_template, const TextFrontend::Parsers& parsers) {
  context_.reset();
  auto tokenizer = Tokenizer::create(byte_tokenizer());
  CHECK(tokenizer.is_ok());
  auto text = TextFrontend::create(std::move(tokenizer).value(), chat_template, parsers);
  CHECK(text.is_ok());
  text_ = std::move(text).value();
  auto vocabulary = GrammarVocabulary::create(text_->tokenizer());
  CHECK(vocabulary.is_ok());
  engine_.limits_.vocab_size = text_->tokenizer().vocab_size();
  context_ = std::make_shared<ApiContext>(ApiContext{.engine = engine_,
                                                     .text = *text_,
                                                     .pool = *pool_,
                                                     .metrics = metrics_.get(),
                                                     .model_names = {"tiny", "other-name"},
                                                     .embedding_size = 4,
                                                     .grammar_vocabulary = vocabulary.value(),
                                                     .grammars = &grammars_,
                                                     .end_token_ids = {kTokenEnd}});
}

std::shared_ptr<FakeExchange> ApiFixture::post(GenerationReader read, const std::string& body) {
  auto exchange = FakeExchange::post("/v1", body);
  Generation::start(context_, exchange, read);
  return exchange;
}

json::object ApiFixture::answer_of(FakeExchange& exchange, int status) {
  EXPECT_TRUE(exchange.wait_until_ended());
  EXPECT_EQ(exchange.response().status, status) << exchange.response().body;
  return json::parse(exchange.response().body).as_object();
}

std::vector<json::object> ApiFixture::chunks_of(FakeExchange& exchange) {
  EXPECT_TRUE(exchange.wait_until_ended());
  std::vector<std::string> events = exchange.events();
  EXPECT_FALSE(events.empty());
  if (events.empty()) return {};
  EXPECT_EQ(events.back(), "[DONE]");
  events.pop_back();
  std::vector<json::object> chunks;
  for (const std::string& event : events) chunks.push_back(json::parse(event).as_object());
  return chunks;
}

void ApiFixture::say(RequestId id, std::string_view text, int choice_index) {
  for (const int32_t token : bytes_as_tokens(text)) {
    engine_.tell(id, {.token_ids = {token}, .choice_index = choice_index});
  }
}

void ApiFixture::end(RequestId id, int choice_index) {
  engine_.tell(id, {.token_ids = {kTokenEnd},
                    .finish_reason = FinishReason::kStop,
                    .stop_token_id = kTokenEnd,
                    .choice_index = choice_index});
}

std::string ApiFixture::error_param(const json::object& answer) {
  const json::value& param = answer.at("error").at("param");
  return param.is_null() ? std::string() : std::string(param.as_string());
}

}  // namespace quire::testing

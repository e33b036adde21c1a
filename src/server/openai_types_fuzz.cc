// Bodies of any kind become requests or errors that name what is wrong, within bounds; nothing crashes. The first byte
// says which reader gets the rest.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "server/openai_types.h"
#include "text/utf8.h"

namespace {

void check_error(const quire::ApiError& error) {
  CHECK(!error.status.is_ok());
  CHECK(!error.status.message().empty());
  CHECK(error.status.message().size() < 20'000);
  CHECK(quire::is_valid_utf8(error.status.message()));
}

void check_common(const quire::GenerationFields& fields, const quire::ApiLimits& limits) {
  CHECK(fields.sampling.params.n >= 1 && fields.sampling.params.n <= limits.max_n);
  CHECK(fields.sampling.params.num_logprobs <= limits.max_logprobs);
  CHECK(fields.sampling.params.max_tokens >= 0);
  CHECK(fields.sampling.stop.size() <= 64);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const quire::ApiLimits limits;
  if (data[0] % 3 == 0) {
    const auto parsed = quire::parse_completion_request(body, limits, {});
    if (const auto* error = std::get_if<quire::ApiError>(&parsed)) {
      check_error(*error);
    } else {
      const auto& request = std::get<quire::CompletionRequest>(parsed);
      check_common(request, limits);
      CHECK(!request.prompts.empty() && request.prompts.size() <= limits.max_prompts);
      CHECK(request.best_of >= request.sampling.params.n && request.best_of <= limits.max_n);
    }
  } else if (data[0] % 3 == 1) {
    const auto parsed = quire::parse_chat_request(body, limits, {});
    if (const auto* error = std::get_if<quire::ApiError>(&parsed)) {
      check_error(*error);
    } else {
      const auto& request = std::get<quire::ChatRequest>(parsed);
      check_common(request, limits);
      CHECK(request.conversation.at("messages").is_array());
      for (const auto& message : request.conversation.at("messages").get_array()) {
        CHECK(message.at("role").is_string() && message.at("content").is_string());
      }
      CHECK(request.tools.size() <= limits.max_tools);
    }
  } else {
    const auto parsed = quire::parse_embedding_request(body, limits);
    if (const auto* error = std::get_if<quire::ApiError>(&parsed)) check_error(*error);
  }
  return 0;
}

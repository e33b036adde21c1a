// Checking requests, field by field, before anything is set aside for them.
#include "engine/request.h"

#include <cmath>

namespace quire {

namespace {

Status bad(const char* field, const std::string& what) {
  return invalid_argument(std::string(field) + ": " + what);
}

Status check_range(const char* field, double value, double low, double high) {
  if (value >= low && value <= high) return ok_status();  // false for NaN
  char text[96];
  std::snprintf(text, sizeof(text), "%g is outside %g to %g", value, low, high);
  return bad(field, text);
}

Status check_token(const char* field, int64_t token, int64_t vocab_size) {
  if (token >= 0 && token < vocab_size) return ok_status();
  return bad(field, "token id " + std::to_string(token) + " is not in the vocabulary (0 to " +
                        std::to_string(vocab_size - 1) + ")");
}

Status check_tokens(const char* field, std::span<const int32_t> tokens, int64_t vocab_size) {
  for (const int32_t token : tokens) RETURN_IF_ERROR(check_token(field, token, vocab_size));
  return ok_status();
}

Status check_count(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return ok_status();
  return bad(field, std::to_string(value) + " is outside " + std::to_string(low) + " to " + std::to_string(high));
}

}  // namespace

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAborted:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return "none";
}

const char* abort_reason_name(AbortReason reason) {
  switch (reason) {
    case AbortReason::kCaller:
      return "caller";
    case AbortReason::kDisconnected:
      return "disconnected";
    case AbortReason::kTimeout:
      return "timeout";
    case AbortReason::kSlowReader:
      return "slow_reader";
    case AbortReason::kShutdown:
      return "shutdown";
  }
  return "caller";
}

Request Request::from_tokens(std::vector<int32_t> token_ids, SamplingParams sampling, std::shared_ptr<EventSink> sink) {
  Request request;
  request.prompt.push_back({std::move(token_ids)});
  request.sampling = std::move(sampling);
  request.sink = std::move(sink);
  return request;
}

int64_t Request::num_prompt_tokens() const {
  int64_t total = 0;
  for (const PromptSegment& segment : prompt) total += static_cast<int64_t>(segment.token_ids.size());
  return total;
}

Status validate_request(const Request& request, const RequestLimits& limits) {
  const SamplingParams& sampling = request.sampling;
  const int64_t vocab_size = limits.vocab_size;
  if (request.num_prompt_tokens() == 0) {
    return bad("prompt", "it is empty, and there is nothing to go on from: give at least one token");
  }
  for (const PromptSegment& segment : request.prompt) {
    RETURN_IF_ERROR(check_tokens("prompt", segment.token_ids, vocab_size));
  }
  if (request.adapter_id != 0) return unimplemented("adapters are not supported yet");
  if (request.pooling != Pooling::kNone) {
    // Nothing is generated: whoever asks for that as well has made a mistake.
    RETURN_IF_ERROR(check_count("n of an embedding", sampling.n, 1, 1));
    RETURN_IF_ERROR(check_count("max_tokens of an embedding", sampling.max_tokens, 0, 0));
    if (sampling.num_prompt_logprobs >= 0) return bad("prompt_logprobs", "an embedding has none");
    if (request.constraint != nullptr) return bad("constraint", "an embedding has none");
  }
  if (sampling.n < 1 || sampling.n > limits.max_n) {
    return bad("n", std::to_string(sampling.n) + " is outside 1 to " + std::to_string(limits.max_n) +
                        ": at most 128, and what --max-num-seqs lets run at once");
  }
  RETURN_IF_ERROR(check_range("temperature", sampling.temperature, 0.0, 100.0));
  RETURN_IF_ERROR(check_range("top_p", sampling.top_p, 0.0, 1.0));
  RETURN_IF_ERROR(check_range("min_p", sampling.min_p, 0.0, 1.0));
  RETURN_IF_ERROR(check_range("typical_p", sampling.typical_p, 0.0, 1.0));
  if (sampling.top_k < -1) return bad("top_k", "it is a count, or 0 or -1 for no filter");
  RETURN_IF_ERROR(check_range("repetition_penalty", sampling.repetition_penalty, 0.01f, 100.0));
  RETURN_IF_ERROR(check_range("presence_penalty", sampling.presence_penalty, -2.0, 2.0));
  RETURN_IF_ERROR(check_range("frequency_penalty", sampling.frequency_penalty, -2.0, 2.0));
  RETURN_IF_ERROR(
      check_count("logit_bias entries", static_cast<int64_t>(sampling.logit_bias.size()), 0, limits.max_logit_bias));
  for (const auto& [token, bias] : sampling.logit_bias) {
    RETURN_IF_ERROR(check_token("logit_bias", token, vocab_size));
    RETURN_IF_ERROR(check_range("logit_bias", bias, -100.0, 100.0));
  }
  RETURN_IF_ERROR(check_tokens("allowed_token_ids", sampling.allowed_token_ids, vocab_size));
  RETURN_IF_ERROR(check_tokens("banned_token_ids", sampling.banned_token_ids, vocab_size));
  RETURN_IF_ERROR(check_count("stop_token_ids", static_cast<int64_t>(sampling.stop_token_ids.size()), 0,
                              limits.max_stop_token_ids));
  RETURN_IF_ERROR(check_tokens("stop_token_ids", sampling.stop_token_ids, vocab_size));
  RETURN_IF_ERROR(check_count("max_tokens", sampling.max_tokens, 0, INT32_MAX));
  RETURN_IF_ERROR(check_count("min_tokens", sampling.min_tokens, 0, sampling.max_tokens));
  RETURN_IF_ERROR(check_count("logprobs", sampling.num_logprobs, -1, limits.max_logprobs));
  RETURN_IF_ERROR(check_count("prompt_logprobs", sampling.num_prompt_logprobs, -1, limits.max_logprobs));
  return ok_status();
}

}  // namespace quire

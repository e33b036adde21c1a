// Pieces of JSON that the API's answers are made of: usage, log-probabilities, ids and times. Pure functions.
#pragma once

#include <boost/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "server/answer_text.h"
#include "server/generation.h"

namespace quire {

// What every answer and every chunk of one request begins with.
struct AnswerHead {
  std::string id;
  int64_t created = 0;  // seconds since 1970
  std::string model;
};
AnswerHead make_head(std::string_view id_prefix, const HttpExchange& exchange, std::string model);

boost::json::object usage_to_json(const Usage& usage);

// JSON has no infinities; what cannot come has a very low number.
double finite_logprob(float logprob);

// The "logprobs" of completions. `offset_base`: characters before the first token's text.
boost::json::object completion_logprobs(const Tokenizer& tokenizer, std::span<const AnswerToken> tokens,
                                        int64_t offset_base);
// Puts the tokens of an echoed prompt in front. `logprobs` begins with the second token, as the engine gives them.
void prepend_prompt_logprobs(const Tokenizer& tokenizer, std::span<const int32_t> prompt_ids,
                             std::span<const TokenLogprobs> logprobs, int64_t num_echoed_characters,
                             boost::json::object& completion_logprobs);

// An entry of "logprobs.content" of chat.
boost::json::object chat_logprob(const Tokenizer& tokenizer, const TokenLogprobs& entry);

// "prompt_logprobs": null for the first token, then {id: {logprob, rank, decoded_token}}.
boost::json::array prompt_logprobs_to_json(const Tokenizer& tokenizer, std::span<const TokenLogprobs> logprobs);

// The string or token id that ended the answer, or null.
boost::json::value stop_reason(const ChoiceProgress& choice);

}  // namespace quire

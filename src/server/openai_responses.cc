#include "server/openai_responses.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace quire {

namespace json = boost::json;

AnswerHead make_head(std::string_view id_prefix, const HttpExchange& exchange, std::string model) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {std::string(id_prefix) + exchange.request_id(), std::chrono::duration_cast<std::chrono::seconds>(now).count(),
          std::move(model)};
}

json::object usage_to_json(const Usage& usage) {
  json::object object{{"prompt_tokens", usage.num_prompt_tokens},
                      {"completion_tokens", usage.num_completion_tokens},
                      {"total_tokens", usage.num_prompt_tokens + usage.num_completion_tokens},
                      {"prompt_tokens_details", json::object{{"cached_tokens", usage.num_cached_tokens}}}};
  if (usage.num_reasoning_tokens.has_value()) {
    object["completion_tokens_details"] = json::object{{"reasoning_tokens", *usage.num_reasoning_tokens}};
  }
  return object;
}

double finite_logprob(float logprob) {
  return std::isfinite(logprob) ? static_cast<double>(logprob) : -9999.0;
}

namespace {

// The best ones by their texts, the chosen one among them. Of two tokens with the same text the better counts.
json::object top_by_text(const Tokenizer& tokenizer, const TokenLogprobs& entry) {
  json::object top;
  for (const TokenLogprob& candidate : entry.top) {
    top.emplace(shown_token(tokenizer, candidate.token_id), finite_logprob(candidate.logprob));
  }
  top.emplace(shown_token(tokenizer, entry.token_id), finite_logprob(entry.logprob));
  return top;
}

json::array bytes_of(std::string_view bytes) {
  json::array list;
  list.reserve(bytes.size());
  for (const char byte : bytes) list.push_back(static_cast<int64_t>(static_cast<unsigned char>(byte)));
  return list;
}

json::object chat_token(const Tokenizer& tokenizer, int32_t token_id, float logprob) {
  return {{"token", shown_token(tokenizer, token_id)},
          {"logprob", finite_logprob(logprob)},
          {"bytes", bytes_of(tokenizer.piece(token_id))}};
}

}  // namespace

json::object completion_logprobs(const Tokenizer& tokenizer, std::span<const AnswerToken> tokens, int64_t offset_base) {
  json::array texts, logprobs, tops, offsets;
  for (const AnswerToken& token : tokens) {
    texts.push_back(json::value(shown_token(tokenizer, token.logprobs.token_id)));
    logprobs.push_back(finite_logprob(token.logprobs.logprob));
    tops.push_back(top_by_text(tokenizer, token.logprobs));
    offsets.push_back(offset_base + token.text_offset);
  }
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

void prepend_prompt_logprobs(const Tokenizer& tokenizer, std::span<const int32_t> prompt_ids,
                             std::span<const TokenLogprobs> logprobs, int64_t num_echoed_characters,
                             json::object& completion_logprobs) {
  json::array texts, values, tops, offsets;
  Detokenizer detokenizer(tokenizer, {.skips_special = false});
  int64_t offset = 0;
  for (size_t i = 0; i < prompt_ids.size(); ++i) {
    texts.push_back(json::value(shown_token(tokenizer, prompt_ids[i])));
    const bool has_entry = i > 0 && i - 1 < logprobs.size();
    values.push_back(has_entry ? json::value(finite_logprob(logprobs[i - 1].logprob)) : json::value(nullptr));
    tops.push_back(has_entry ? json::value(top_by_text(tokenizer, logprobs[i - 1])) : json::value(nullptr));
    offsets.push_back(std::min(offset, num_echoed_characters));
    // BOS stands before the text and is no part of it.
    if (i > 0 || prompt_ids[i] != tokenizer.bos_id()) offset += count_characters(detokenizer.add(prompt_ids[i]));
  }
  const auto put = [&](const char* name, json::array& front) {
    json::array& list = completion_logprobs[name].get_array();
    front.insert(front.end(), list.begin(), list.end());
    list = std::move(front);
  };
  put("tokens", texts);
  put("token_logprobs", values);
  put("top_logprobs", tops);
  put("text_offset", offsets);
}

json::object chat_logprob(const Tokenizer& tokenizer, const TokenLogprobs& entry) {
  json::object token = chat_token(tokenizer, entry.token_id, entry.logprob);
  json::array top;
  for (const TokenLogprob& candidate : entry.top) {
    top.push_back(chat_token(tokenizer, candidate.token_id, candidate.logprob));
  }
  token["top_logprobs"] = std::move(top);
  return token;
}

json::array prompt_logprobs_to_json(const Tokenizer& tokenizer, std::span<const TokenLogprobs> logprobs) {
  json::array list{nullptr};
  for (const TokenLogprobs& entry : logprobs) {
    json::object tokens;
    const auto add = [&](int32_t id, float logprob, int64_t rank) {
      tokens.emplace(std::to_string(id), json::object{{"logprob", finite_logprob(logprob)},
                                                      {"rank", rank},
                                                      {"decoded_token", shown_token(tokenizer, id)}});
    };
    add(entry.token_id, entry.logprob, entry.rank);
    for (size_t i = 0; i < entry.top.size(); ++i) {
      add(entry.top[i].token_id, entry.top[i].logprob, static_cast<int64_t>(i) + 1);
    }
    list.push_back(std::move(tokens));
  }
  return list;
}

json::value stop_reason(const ChoiceProgress& choice) {
  if (choice.stop_string != nullptr) return json::value(*choice.stop_string);
  if (choice.stop_token_id.has_value()) return *choice.stop_token_id;
  return nullptr;
}

}  // namespace quire

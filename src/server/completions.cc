#include "server/completions.h"

#include <algorithm>

#include "server/grammar_constraint.h"
#include "server/openai_responses.h"
#include "server/openai_types.h"

namespace quire {

namespace json = boost::json;

namespace {

struct EchoedPrompt {
  std::vector<int32_t> ids;
  std::string text;
  int64_t num_characters = 0;
};

struct WriterOptions {
  AnswerHead head;
  int num_generated = 1;  // for each prompt
  int num_returned = 1;   // the best of them
  bool has_logprobs = false;
  bool has_prompt_logprobs = false;
  bool returns_token_ids = false;
  bool includes_usage = false;                   // a stream whose last chunk has it: the others have null
  std::vector<EchoedPrompt> echoed;              // one a prompt, or none
  std::vector<std::vector<int32_t>> prompt_ids;  // where token ids are returned
};

// What is kept of a choice until the whole is written.
struct CollectedChoice {
  std::string text;
  std::vector<AnswerToken> tokens;
  std::vector<int32_t> token_ids;
  std::vector<TokenLogprobs> prompt_logprobs;
  FinishReason finish_reason = FinishReason::kNone;
  json::value stop_reason;
};

class CompletionWriter final : public ResponseWriter {
 public:
  CompletionWriter(const Tokenizer& tokenizer, WriterOptions options)
      : tokenizer_(tokenizer), options_(std::move(options)) {}

  void write_chunks(const ChoiceProgress& choice, AnswerPiece& piece, const Usage* usage,
                    std::vector<std::string>& events) override {
    const bool is_first =
        begun_.size() <= static_cast<size_t>(choice.index) || !begun_[static_cast<size_t>(choice.index)];
    std::string text = piece.joined();
    const EchoedPrompt* echo = echo_of(choice.prompt_index);
    if (is_first && echo != nullptr) text.insert(0, echo->text);
    if (text.empty() && piece.tokens.empty() && !choice.is_finished) return;
    if (is_first) {
      if (begun_.size() <= static_cast<size_t>(choice.index)) begun_.resize(static_cast<size_t>(choice.index) + 1);
      begun_[static_cast<size_t>(choice.index)] = true;
    }
    json::object entry{{"index", choice.index},
                       {"text", std::move(text)},
                       {"logprobs", nullptr},
                       {"finish_reason", nullptr},
                       {"stop_reason", nullptr}};
    const std::vector<TokenLogprobs>* prompt_logprobs = is_first ? choice.prompt_logprobs : nullptr;
    add_logprobs(choice.prompt_index, piece.tokens, is_first, prompt_logprobs, entry);
    if (choice.is_finished) {
      entry["finish_reason"] = finish_reason_name(choice.finish_reason);
      entry["stop_reason"] = stop_reason(choice);
    }
    if (options_.returns_token_ids) {
      entry["token_ids"] = json::value_from(choice.new_token_ids);
      if (is_first) entry["prompt_token_ids"] = json::value_from(prompt_ids_of(choice.prompt_index));
    }
    json::object chunk = head();
    chunk["choices"] = json::array{std::move(entry)};
    if (usage != nullptr) {
      chunk["usage"] = usage_to_json(*usage);
    } else if (options_.includes_usage) {
      chunk["usage"] = nullptr;
    }
    events.push_back(json::serialize(chunk));
  }

  std::string write_usage_chunk(const Usage& usage) override {
    json::object chunk = head();
    chunk["choices"] = json::array();
    chunk["usage"] = usage_to_json(usage);
    return json::serialize(chunk);
  }

  void collect(const ChoiceProgress& choice, AnswerPiece& piece) override {
    if (collected_.size() <= static_cast<size_t>(choice.index)) {
      collected_.resize(static_cast<size_t>(choice.index) + 1);
    }
    CollectedChoice& kept = collected_[static_cast<size_t>(choice.index)];
    kept.text += piece.joined();
    std::move(piece.tokens.begin(), piece.tokens.end(), std::back_inserter(kept.tokens));
    kept.token_ids.insert(kept.token_ids.end(), choice.new_token_ids.begin(), choice.new_token_ids.end());
    if (!choice.is_finished) return;
    kept.finish_reason = choice.finish_reason;
    kept.stop_reason = stop_reason(choice);
    if (choice.prompt_logprobs != nullptr) kept.prompt_logprobs = *choice.prompt_logprobs;
  }

  std::string write_whole(const Usage& usage) override {
    json::array choices;
    const size_t num_generated = static_cast<size_t>(options_.num_generated);
    for (size_t first = 0; first < collected_.size(); first += num_generated) {
      const int prompt_index = static_cast<int>(first / num_generated);
      for (const size_t i : best_of(first)) {
        const CollectedChoice& kept = collected_[i];
        const EchoedPrompt* echo = echo_of(prompt_index);
        json::object entry{{"index", choices.size()},
                           {"text", echo != nullptr ? echo->text + kept.text : kept.text},
                           {"logprobs", nullptr},
                           {"finish_reason", finish_reason_name(kept.finish_reason)},
                           {"stop_reason", kept.stop_reason}};
        add_logprobs(prompt_index, kept.tokens, true, &kept.prompt_logprobs, entry);
        if (options_.returns_token_ids) {
          entry["token_ids"] = json::value_from(kept.token_ids);
          entry["prompt_token_ids"] = json::value_from(prompt_ids_of(prompt_index));
        }
        choices.push_back(std::move(entry));
      }
    }
    json::object whole = head();
    whole["choices"] = std::move(choices);
    whole["usage"] = usage_to_json(usage);
    return json::serialize(whole);
  }

 private:
  json::object head() const {
    return {{"id", options_.head.id},
            {"object", "text_completion"},
            {"created", options_.head.created},
            {"model", options_.head.model}};
  }

  const EchoedPrompt* echo_of(int prompt_index) const {
    return options_.echoed.empty() ? nullptr : &options_.echoed[static_cast<size_t>(prompt_index)];
  }
  const std::vector<int32_t>& prompt_ids_of(int prompt_index) const {
    return options_.prompt_ids[static_cast<size_t>(prompt_index)];
  }

  void add_logprobs(int prompt_index, std::span<const AnswerToken> tokens, bool is_first,
                    const std::vector<TokenLogprobs>* prompt_logprobs, json::object& entry) const {
    const EchoedPrompt* echo = echo_of(prompt_index);
    if (options_.has_logprobs) {
      json::object logprobs = completion_logprobs(tokenizer_, tokens, echo != nullptr ? echo->num_characters : 0);
      if (echo != nullptr && is_first) {
        const std::span<const TokenLogprobs> given =
            prompt_logprobs == nullptr ? std::span<const TokenLogprobs>() : *prompt_logprobs;
        prepend_prompt_logprobs(tokenizer_, echo->ids, given, echo->num_characters, logprobs);
      }
      entry["logprobs"] = std::move(logprobs);
    }
    if (options_.has_prompt_logprobs && is_first && prompt_logprobs != nullptr) {
      entry["prompt_logprobs"] = prompt_logprobs_to_json(tokenizer_, *prompt_logprobs);
    }
  }

  // The choices of one prompt that are returned: those with the highest log-probability a token, best first.
  std::vector<size_t> best_of(size_t first) const {
    std::vector<size_t> order;
    for (size_t i = first; i < first + static_cast<size_t>(options_.num_generated) && i < collected_.size(); ++i) {
      order.push_back(i);
    }
    if (options_.num_returned < options_.num_generated) {
      const auto mean = [&](size_t i) {
        double sum = 0.0;
        for (const AnswerToken& token : collected_[i].tokens) sum += finite_logprob(token.logprobs.logprob);
        return collected_[i].tokens.empty() ? -9999.0 : sum / static_cast<double>(collected_[i].tokens.size());
      };
      std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return mean(a) > mean(b); });
      order.resize(static_cast<size_t>(options_.num_returned));
    }
    return order;
  }

  const Tokenizer& tokenizer_;
  const WriterOptions options_;
  std::vector<bool> begun_;
  std::vector<CollectedChoice> collected_;
};

}  // namespace

ApiResult<GenerationPlan> read_completion(const ApiContext& context, const HttpExchange& exchange) {
  ApiResult<CompletionRequest> parsed =
      parse_completion_request(exchange.request().body, context.limits, context.default_sampling);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return *error;
  CompletionRequest& request = std::get<CompletionRequest>(parsed);
  ApiResult<std::string> model = served_model(context, request.model);
  if (const ApiError* error = std::get_if<ApiError>(&model)) return *error;

  const Tokenizer& tokenizer = context.text.tokenizer();
  GenerationPlan plan;
  plan.model = std::get<std::string>(model);
  WriterOptions writer;
  writer.head = make_head("cmpl-", exchange, plan.model);
  for (PromptInput& prompt : request.prompts) {
    std::string* text = std::get_if<std::string>(&prompt);
    std::vector<int32_t> ids;
    if (text != nullptr) {
      Result<std::vector<int32_t>> encoded = context.text.encode_text(*text);
      if (!encoded.is_ok()) return to_api_error(encoded.status(), "prompt");
      ids = std::move(encoded).value();
    } else {
      ids = std::move(std::get<std::vector<int32_t>>(prompt));
    }
    if (request.sampling.has_echo) {
      EchoedPrompt echo{ids, text != nullptr ? std::move(*text) : tokenizer.decode(ids, {.skips_special = false}), 0};
      echo.num_characters = count_characters(echo.text);
      writer.echoed.push_back(std::move(echo));
    }
    if (request.returns_token_ids) writer.prompt_ids.push_back(ids);
    plan.prompts.push_back(std::move(ids));
  }

  plan.sampling = std::move(request.sampling.params);
  writer.num_returned = plan.sampling.n;
  writer.num_generated = request.best_of;
  writer.has_logprobs = plan.sampling.num_logprobs >= 0;
  writer.has_prompt_logprobs = plan.sampling.num_prompt_logprobs >= 0;
  writer.returns_token_ids = request.returns_token_ids;
  writer.includes_usage = request.stream.includes_usage;
  plan.sampling.n = request.best_of;
  if (request.best_of > writer.num_returned) plan.sampling.num_logprobs = std::max(plan.sampling.num_logprobs, 0);
  if (request.sampling.has_echo && writer.has_logprobs) {
    plan.sampling.num_prompt_logprobs = std::max(plan.sampling.num_prompt_logprobs, plan.sampling.num_logprobs);
  }
  plan.text.stop_strings = std::move(request.sampling.stop);
  plan.text.includes_stop_string = request.includes_stop_string;
  plan.text.min_tokens = plan.sampling.min_tokens;
  plan.text.skips_special = request.skips_special_tokens;
  plan.text.has_logprobs = plan.sampling.num_logprobs >= 0;
  plan.stream = request.stream;
  plan.priority = request.priority;
  plan.cache_salt = std::move(request.cache_salt);
  plan.returns_token_ids = request.returns_token_ids;
  Result<std::unique_ptr<TokenConstraint>> constraint = make_structure_constraint(context, request.structure);
  if (!constraint.is_ok()) return to_api_error(constraint.status(), request.structure.field);
  plan.constraint = std::move(constraint).value();
  plan.writer = std::make_unique<CompletionWriter>(tokenizer, std::move(writer));
  return plan;
}

}  // namespace quire

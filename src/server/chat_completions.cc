#include "server/chat_completions.h"

#include <algorithm>
#include <functional>

#include "server/grammar_constraint.h"
#include "server/openai_responses.h"
#include "server/openai_types.h"
#include "text/answer_parser.h"

namespace quire {

namespace json = boost::json;

namespace {

struct WriterOptions {
  AnswerHead head;
  int num_choices = 1;
  bool has_logprobs = false;
  bool has_prompt_logprobs = false;
  bool returns_token_ids = false;
  bool includes_usage = false;      // a stream whose last chunk has it: the others have null
  std::vector<int32_t> prompt_ids;  // where token ids are returned
  std::shared_ptr<const std::vector<ToolSpec>> tools;
  AnswerParserOptions parser;
  std::string seed_text;  // of the ids of tool calls
};

class ChatWriter final : public ResponseWriter {
 public:
  ChatWriter(const Tokenizer& tokenizer, const AnswerFormat& format, WriterOptions options)
      : tokenizer_(tokenizer), options_(std::move(options)) {
    const size_t seed = std::hash<std::string>()(options_.seed_text);
    for (int i = 0; i < options_.num_choices; ++i) {
      AnswerParserOptions parser = options_.parser;
      parser.id_seed = seed + static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u;
      choices_.push_back(Choice{AnswerParser(format, options_.tools, parser), {}, {}, {}, {}, {}, nullptr});
    }
  }

  void write_chunks(const ChoiceProgress& progress, AnswerPiece& piece, const Usage* usage,
                    std::vector<std::string>& events) override {
    Choice& choice = choice_of(progress);
    std::vector<json::object> deltas;
    for (const AnswerDelta& delta : parse(choice, progress, piece)) deltas.push_back(delta_to_json(delta));
    if (!choice.has_begun) {
      json::object first{{"role", "assistant"}, {"content", ""}};
      deltas.insert(deltas.begin(), std::move(first));
    } else if (deltas.empty() && (progress.is_finished || !piece.tokens.empty())) {
      deltas.emplace_back();
    }
    for (size_t i = 0; i < deltas.size(); ++i) {
      const bool is_last = i + 1 == deltas.size();
      json::object entry{{"index", progress.index},
                         {"delta", std::move(deltas[i])},
                         {"logprobs", nullptr},
                         {"finish_reason", nullptr}};
      // What came with several pieces at once is told with the last of them.
      if (is_last && options_.has_logprobs) entry["logprobs"] = logprobs_to_json(piece.tokens);
      if (is_last && progress.is_finished) {
        entry["finish_reason"] = finish_reason(choice, progress);
        entry["stop_reason"] = stop_reason(progress);
      }
      if (is_last && options_.returns_token_ids) entry["token_ids"] = json::value_from(progress.new_token_ids);
      json::object chunk = head("chat.completion.chunk");
      if (!choice.has_begun && i == 0) {
        if (options_.returns_token_ids) chunk["prompt_token_ids"] = json::value_from(options_.prompt_ids);
        if (options_.has_prompt_logprobs && progress.prompt_logprobs != nullptr) {
          chunk["prompt_logprobs"] = prompt_logprobs_to_json(tokenizer_, *progress.prompt_logprobs);
        }
      }
      chunk["choices"] = json::array{std::move(entry)};
      if (usage != nullptr) {
        chunk["usage"] = usage_of(*usage);
      } else if (options_.includes_usage) {
        chunk["usage"] = nullptr;
      }
      events.push_back(json::serialize(chunk));
    }
    choice.has_begun = true;
  }

  std::string write_usage_chunk(const Usage& usage) override {
    json::object chunk = head("chat.completion.chunk");
    chunk["choices"] = json::array();
    chunk["usage"] = usage_of(usage);
    return json::serialize(chunk);
  }

  void collect(const ChoiceProgress& progress, AnswerPiece& piece) override {
    Choice& choice = choice_of(progress);
    add_to_answer(parse(choice, progress, piece), &choice.answer);
    std::move(piece.tokens.begin(), piece.tokens.end(), std::back_inserter(choice.tokens));
    choice.token_ids.insert(choice.token_ids.end(), progress.new_token_ids.begin(), progress.new_token_ids.end());
    if (!progress.is_finished) return;
    choice.finish_reason = finish_reason(choice, progress);
    choice.stop_reason = stop_reason(progress);
    if (progress.prompt_logprobs != nullptr) prompt_logprobs_ = *progress.prompt_logprobs;
  }

  std::string write_whole(const Usage& usage) override {
    json::array choices;
    for (Choice& choice : choices_) {
      json::object message{{"role", "assistant"}};
      const ParsedAnswer& answer = choice.answer;
      const bool has_only_calls = answer.content.empty() && !answer.tool_calls.empty();
      message["content"] = has_only_calls ? json::value(nullptr) : json::value(answer.content);
      message["refusal"] = nullptr;
      if (!answer.reasoning.empty()) message["reasoning_content"] = answer.reasoning;
      if (!answer.tool_calls.empty()) {
        json::array calls;
        for (const ParsedAnswer::ToolCall& call : answer.tool_calls) {
          calls.push_back(json::object{{"id", call.id},
                                       {"type", "function"},
                                       {"function", json::object{{"name", call.name}, {"arguments", call.arguments}}}});
        }
        message["tool_calls"] = std::move(calls);
      }
      json::object entry{{"index", choices.size()},
                         {"message", std::move(message)},
                         {"logprobs", nullptr},
                         {"finish_reason", choice.finish_reason},
                         {"stop_reason", choice.stop_reason}};
      if (options_.has_logprobs) entry["logprobs"] = logprobs_to_json(choice.tokens);
      if (options_.returns_token_ids) entry["token_ids"] = json::value_from(choice.token_ids);
      choices.push_back(std::move(entry));
    }
    json::object whole = head("chat.completion");
    whole["choices"] = std::move(choices);
    whole["usage"] = usage_of(usage);
    if (options_.returns_token_ids) whole["prompt_token_ids"] = json::value_from(options_.prompt_ids);
    if (options_.has_prompt_logprobs) whole["prompt_logprobs"] = prompt_logprobs_to_json(tokenizer_, prompt_logprobs_);
    return json::serialize(whole);
  }

 private:
  struct Choice {
    AnswerParser parser;
    ParsedAnswer answer;
    std::vector<AnswerToken> tokens;
    std::vector<int32_t> token_ids;
    std::vector<AnswerDelta> deltas;  // scratch
    std::string finish_reason;
    json::value stop_reason;
    bool has_begun = false;
    int64_t num_tokens_seen = 0;
    int64_t num_reasoning_tokens = 0;
  };

  Choice& choice_of(const ChoiceProgress& progress) { return choices_[static_cast<size_t>(progress.index)]; }

  const std::vector<AnswerDelta>& parse(Choice& choice, const ChoiceProgress& progress, const AnswerPiece& piece) {
    choice.deltas.clear();
    const bool was_reasoning = choice.parser.is_reasoning();
    for (const AnswerPiece::Segment& segment : piece.segments) {
      choice.parser.add(segment.text, segment.is_special, &choice.deltas);
    }
    // Neither the token that begins the thinking counts as thought, nor the one that ends it.
    if (was_reasoning && choice.parser.is_reasoning()) {
      choice.num_reasoning_tokens += progress.num_tokens - choice.num_tokens_seen;
    }
    choice.num_tokens_seen = progress.num_tokens;
    if (progress.is_finished) choice.parser.finish(&choice.deltas);
    return choice.deltas;
  }

  json::object usage_of(Usage usage) const {
    int64_t num_reasoning_tokens = 0;
    for (const Choice& choice : choices_) num_reasoning_tokens += choice.num_reasoning_tokens;
    usage.num_reasoning_tokens = num_reasoning_tokens;
    return usage_to_json(usage);
  }

  static const char* finish_reason(const Choice& choice, const ChoiceProgress& progress) {
    if (progress.finish_reason == FinishReason::kStop && choice.parser.num_tool_calls() > 0) return "tool_calls";
    return finish_reason_name(progress.finish_reason);
  }

  static json::object delta_to_json(const AnswerDelta& delta) {
    switch (delta.kind) {
      case AnswerDelta::Kind::kContent:
        return {{"content", delta.text}};
      case AnswerDelta::Kind::kReasoning:
        return {{"reasoning_content", delta.text}};
      case AnswerDelta::Kind::kToolCallBegin:
        return {{"tool_calls",
                 json::array{json::object{{"index", delta.index},
                                          {"id", delta.id},
                                          {"type", "function"},
                                          {"function", json::object{{"name", delta.name}, {"arguments", ""}}}}}}};
      case AnswerDelta::Kind::kToolCallArguments:
        return {{"tool_calls", json::array{json::object{{"index", delta.index},
                                                        {"function", json::object{{"arguments", delta.text}}}}}}};
    }
    return {};
  }

  json::object logprobs_to_json(std::span<const AnswerToken> tokens) const {
    json::array content;
    for (const AnswerToken& token : tokens) content.push_back(chat_logprob(tokenizer_, token.logprobs));
    return {{"content", std::move(content)}, {"refusal", nullptr}};
  }

  json::object head(const char* object) const {
    return {{"id", options_.head.id},
            {"object", object},
            {"created", options_.head.created},
            {"model", options_.head.model}};
  }

  const Tokenizer& tokenizer_;
  const WriterOptions options_;
  std::vector<Choice> choices_;
  std::vector<TokenLogprobs> prompt_logprobs_;
};

ToolChoice to_tool_choice(const ToolChoiceRequest& request, bool is_parallel) {
  ToolChoice choice;
  choice.name = request.name;
  choice.is_parallel = is_parallel;
  switch (request.kind) {
    case ToolChoiceRequest::Kind::kNone:
      choice.kind = ToolChoice::Kind::kNone;
      break;
    case ToolChoiceRequest::Kind::kAuto:
      choice.kind = ToolChoice::Kind::kAuto;
      break;
    case ToolChoiceRequest::Kind::kRequired:
      choice.kind = ToolChoice::Kind::kRequired;
      break;
    case ToolChoiceRequest::Kind::kNamed:
      choice.kind = ToolChoice::Kind::kNamed;
      break;
  }
  return choice;
}

}  // namespace

ApiResult<GenerationPlan> read_chat(const ApiContext& context, const HttpExchange& exchange) {
  ApiResult<ChatRequest> parsed = parse_chat_request(exchange.request().body, context.limits, context.default_sampling);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return *error;
  ChatRequest& request = std::get<ChatRequest>(parsed);
  ApiResult<std::string> model = served_model(context, request.model);
  if (const ApiError* error = std::get_if<ApiError>(&model)) return *error;

  Result<RenderedPrompt> rendered = context.text.render_chat(request.conversation);
  if (!rendered.is_ok()) return to_api_error(rendered.status(), "messages");
  Result<std::vector<int32_t>> encoded = context.text.encode_rendered(rendered.value());
  if (!encoded.is_ok()) return to_api_error(encoded.status(), "messages");

  const bool has_tools = !request.tools.empty() && request.tool_choice.kind != ToolChoiceRequest::Kind::kNone;
  auto tools = std::make_shared<std::vector<ToolSpec>>();
  if (has_tools) {
    for (const ToolDefinition& tool : request.tools) {
      // A named tool is the only one that can be called.
      if (request.tool_choice.kind == ToolChoiceRequest::Kind::kNamed && tool.name != request.tool_choice.name)
        continue;
      tools->push_back({tool.name, tool.parameters_json, tool.is_strict});
    }
  }
  constexpr size_t kEndBytes = 8192;
  const std::string& prompt_text = rendered.value().text;
  const AnswerStart start = context.text.answer_format().start_of_answer(
      std::string_view(prompt_text).substr(prompt_text.size() - std::min(prompt_text.size(), kEndBytes)));

  GenerationPlan plan;
  plan.model = std::get<std::string>(model);
  plan.sampling = std::move(request.sampling.params);
  if (!request.has_max_tokens) {
    const int64_t num_left = context.engine.limits().max_model_len - static_cast<int64_t>(encoded.value().size());
    plan.sampling.max_tokens = std::max<int64_t>(num_left, 1);
  }
  WriterOptions writer;
  writer.head = make_head("chatcmpl-", exchange, plan.model);
  writer.num_choices = plan.sampling.n;
  writer.has_logprobs = plan.sampling.num_logprobs >= 0;
  writer.has_prompt_logprobs = plan.sampling.num_prompt_logprobs >= 0;
  writer.returns_token_ids = request.returns_token_ids;
  writer.includes_usage = request.stream.includes_usage;
  if (request.returns_token_ids) writer.prompt_ids = encoded.value();
  writer.tools = tools;
  writer.parser = {.reads_tools = has_tools,
                   .reads_reasoning = request.separates_reasoning,
                   .must_call = request.tool_choice.kind == ToolChoiceRequest::Kind::kRequired ||
                                request.tool_choice.kind == ToolChoiceRequest::Kind::kNamed,
                   .start = start};
  writer.seed_text = writer.head.id;

  plan.prompts.push_back(std::move(encoded).value());
  plan.text.stop_strings = std::move(request.sampling.stop);
  plan.text.includes_stop_string = request.includes_stop_string;
  plan.text.min_tokens = plan.sampling.min_tokens;
  plan.text.skips_special = request.skips_special_tokens;
  plan.text.has_logprobs = writer.has_logprobs;
  plan.text.is_marker = [format = &context.text.answer_format()](std::string_view piece) {
    return format->is_marker(piece);
  };
  plan.prompt_field = "messages";
  plan.stream = request.stream;
  plan.priority = request.priority;
  plan.cache_salt = std::move(request.cache_salt);
  plan.returns_token_ids = request.returns_token_ids;

  AnswerGrammarInput grammar;
  grammar.tools = *tools;
  // A tool that is named is called once.
  const bool is_parallel = request.has_parallel_tool_calls && !context.text.template_traits().takes_one_call &&
                           request.tool_choice.kind != ToolChoiceRequest::Kind::kNamed;
  grammar.choice = to_tool_choice(request.tool_choice, is_parallel);
  grammar.content = to_content_rule(request.structure);
  grammar.start = start;
  Result<std::unique_ptr<TokenConstraint>> constraint = make_answer_constraint(context, grammar);
  if (!constraint.is_ok()) {
    return to_api_error(constraint.status(), request.structure.field.empty() ? "tools" : request.structure.field);
  }
  plan.constraint = std::move(constraint).value();
  plan.writer = std::make_unique<ChatWriter>(context.text.tokenizer(), context.text.answer_format(), std::move(writer));
  return plan;
}

}  // namespace quire

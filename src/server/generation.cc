#include "server/generation.h"

#include <exception>
#include <utility>

#include "server/api_error.h"

namespace quire {

// One answer to one prompt.
struct Generation::Choice {
  AnswerText text;
  ChoiceProgress progress;
  bool has_engine_ended = false;
};

struct Generation::Prompt {
  std::vector<Choice> choices;
  std::unique_ptr<RequestMeter> meter;
  int num_prompt_tokens = 0;
  int num_cached_tokens = 0;
  int num_running = 0;  // choices that the engine has not ended
  FinishReason first_reason = FinishReason::kNone;
  std::vector<TokenLogprobs> prompt_logprobs;
  RequestTimes times;
};

class Generation::PromptSink final : public EventSink {
 public:
  PromptSink(std::shared_ptr<Generation> generation, int prompt_index)
      : generation_(std::move(generation)), prompt_index_(prompt_index) {}
  void on_event(const TokenEvent& event) override { generation_->on_event(prompt_index_, event); }

 private:
  const std::shared_ptr<Generation> generation_;
  const int prompt_index_;
};

void Generation::Inbox::clear() {
  events.clear();
  token_ids.clear();
  logprobs.clear();
}

ApiResult<std::string> served_model(const ApiContext& context, const std::string& asked) {
  if (asked.empty()) return context.model_names.front();
  for (const std::string& name : context.model_names) {
    if (name == asked) return name;
  }
  return ApiError{not_found("the model '" + asked + "' is not served here; " + context.model_names.front() + " is"),
                  "model", "model_not_found"};
}

ApiError to_api_error(const Status& status, std::string param) {
  if (param.empty()) param = field_of_message(status.message());
  return {status, std::move(param), {}};
}

ApiError refused_by_engine(const Status& status, std::string_view prompt_field, bool is_too_long) {
  constexpr std::string_view kPrompt = "prompt: ";
  ApiError error = to_api_error(status);
  if (status.message().starts_with(kPrompt)) {
    error.status = Status(status.code(), std::string(prompt_field) + ": " + status.message().substr(kPrompt.size()));
    error.param = prompt_field;
  }
  const bool can_never_fit =
      status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kResourceExhausted;
  if (is_too_long && can_never_fit) {
    error.code = "context_length_exceeded";
    error.param = prompt_field;
  }
  return error;
}

Generation::Generation(std::shared_ptr<const ApiContext> context, std::shared_ptr<HttpExchange> exchange,
                       GenerationReader read)
    : context_(std::move(context)),
      exchange_(std::move(exchange)),
      strand_(context_->pool.create_strand()),
      read_(read) {}

void Generation::start(std::shared_ptr<const ApiContext> context, std::shared_ptr<HttpExchange> exchange,
                       GenerationReader read) {
  const std::shared_ptr<Generation> self(new Generation(std::move(context), std::move(exchange), read));
  self->exchange_->on_closed([weak = std::weak_ptr(self)] {
    if (const auto generation = weak.lock()) generation->on_client_closed();
  });
  const Status posted = self->strand_->post_long(self->exchange_->request().body.size(), [self] { self->prepare(); });
  if (!posted.is_ok()) self->exchange_->respond(error_response(posted));
}

void Generation::on_client_closed() {
  {
    const std::lock_guard lock(ids_mutex_);
    is_closed_ = true;
  }
  abort_all(AbortReason::kDisconnected);
}

void Generation::abort_all(AbortReason reason) {
  std::vector<RequestId> ids;
  {
    const std::lock_guard lock(ids_mutex_);
    ids = request_ids_;
  }
  for (const RequestId id : ids) context_->engine.abort(id, reason);
}

// Reads the body, tokenizes, submits. Nothing has been answered before.
void Generation::prepare() {
  if (exchange_->is_closed()) return;
  try {
    ApiResult<GenerationPlan> read = read_(*context_, *exchange_);
    if (const ApiError* error = std::get_if<ApiError>(&read)) {
      fail(*error);
      return;
    }
    plan_ = std::move(std::get<GenerationPlan>(read));
    if (const Status made = make_choices(); !made.is_ok()) {
      fail(to_api_error(made));
      return;
    }
    submit_prompts();
  } catch (const std::exception& exception) {
    fail({internal_error(std::string("reading the request failed: ") + exception.what()), {}, {}});
  }
}

Status Generation::make_choices() {
  const int n = plan_.sampling.n;
  ASSIGN_OR_RETURN(const AnswerText text, AnswerText::create(context_->text.tokenizer(), plan_.text));
  prompts_.resize(plan_.prompts.size());
  for (size_t p = 0; p < prompts_.size(); ++p) {
    prompts_[p].choices.reserve(static_cast<size_t>(n));
    prompts_[p].num_running = n;
    prompts_[p].num_prompt_tokens = static_cast<int>(plan_.prompts[p].size());
    for (int c = 0; c < n; ++c) {
      Choice& choice = prompts_[p].choices.emplace_back(Choice{text, {}, false});
      choice.progress.index = static_cast<int>(p) * n + c;
      choice.progress.prompt_index = static_cast<int>(p);
    }
  }
  num_unfinished_ = static_cast<int>(prompts_.size()) * n;
  return ok_status();
}

void Generation::submit_prompts() {
  std::vector<Request> requests;
  for (size_t p = 0; p < prompts_.size(); ++p) {
    Request request = Request::from_tokens(std::move(plan_.prompts[p]), plan_.sampling,
                                           std::make_shared<PromptSink>(shared_from_this(), static_cast<int>(p)));
    request.priority = plan_.priority;
    request.cache_salt = plan_.cache_salt;
    request.share_key = static_cast<uint64_t>(exchange_->key_id());
    if (plan_.constraint != nullptr) request.constraint = plan_.constraint->clone();
    // All of them are checked before the first runs.
    const Status valid = validate_request(request, context_->engine.limits());
    if (!valid.is_ok()) {
      fail(refused_by_engine(valid, plan_.prompt_field, false));
      return;
    }
    requests.push_back(std::move(request));
  }
  const Clock::time_point arrived = Clock::now();
  for (size_t p = 0; p < requests.size(); ++p) {
    if (context_->metrics != nullptr) {
      prompts_[p].meter = std::make_unique<RequestMeter>(
          *context_->metrics, RequestMeter::Start{.arrived = arrived,
                                                  .num_prompt_tokens = requests[p].num_prompt_tokens(),
                                                  .n = plan_.sampling.n,
                                                  .max_tokens = plan_.sampling.max_tokens});
    }
    const int64_t num_prompt_tokens = requests[p].num_prompt_tokens();
    const Result<RequestId> id = context_->engine.submit(std::move(requests[p]));
    if (!id.is_ok()) {
      if (prompts_[p].meter != nullptr) prompts_[p].meter->discard();
      const bool is_too_long = num_prompt_tokens >= context_->engine.limits().max_model_len;
      fail(refused_by_engine(id.status(), plan_.prompt_field, is_too_long));
      return;
    }
    bool is_closed = false;
    {
      const std::lock_guard lock(ids_mutex_);
      request_ids_.push_back(id.value());
      is_closed = is_closed_;
    }
    if (is_closed) {
      abort_all(AbortReason::kDisconnected);
      return;
    }
  }
}

// The engine's thread waits: nothing but copying.
void Generation::on_event(int prompt_index, const TokenEvent& event) {
  bool must_post = false;
  {
    const std::lock_guard lock(inbox_mutex_);
    inbox_.token_ids.insert(inbox_.token_ids.end(), event.token_ids.begin(), event.token_ids.end());
    inbox_.logprobs.insert(inbox_.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    inbox_.events.push_back({prompt_index,
                             event.choice_index,
                             event.token_ids.size(),
                             event.logprobs.size(),
                             event.request_id,
                             event.finish_reason,
                             event.stop_token_id,
                             event.error,
                             event.num_prompt_tokens,
                             event.num_cached_tokens,
                             event.times,
                             {event.prompt_logprobs.begin(), event.prompt_logprobs.end()}});
    must_post = !is_drain_posted_;
    is_drain_posted_ = true;
  }
  if (must_post) strand_->post([self = shared_from_this()] { self->drain_inbox(); });
}

void Generation::drain_inbox() {
  {
    const std::lock_guard lock(inbox_mutex_);
    std::swap(inbox_, taken_);
    is_drain_posted_ = false;
  }
  try {
    size_t first_token = 0;
    size_t first_logprob = 0;
    for (EventRecord& event : taken_.events) {
      take_event(event, std::span(taken_.token_ids).subspan(first_token, event.num_tokens),
                 std::span(taken_.logprobs).subspan(first_logprob, event.num_logprobs));
      first_token += event.num_tokens;
      first_logprob += event.num_logprobs;
    }
  } catch (const std::exception& exception) {
    fail({internal_error(std::string("writing the answer failed: ") + exception.what()), {}, {}});
  }
  taken_.clear();
}

void Generation::take_event(EventRecord& event, std::span<const int32_t> token_ids, std::span<TokenLogprobs> logprobs) {
  Prompt& prompt = prompts_[static_cast<size_t>(event.prompt_index)];
  Choice& choice = prompt.choices[static_cast<size_t>(event.choice_index)];
  const bool is_last = event.finish_reason != FinishReason::kNone;
  if (choice.has_engine_ended) return;
  choice.has_engine_ended = is_last;
  prompt.num_cached_tokens = event.num_cached_tokens;
  prompt.times = event.times;
  if (!event.prompt_logprobs.empty()) prompt.prompt_logprobs = std::move(event.prompt_logprobs);
  if (prompt.meter != nullptr && !token_ids.empty()) {
    prompt.meter->on_tokens(event.choice_index, static_cast<int64_t>(token_ids.size()), event.times.last_token);
  }
  if (is_last) {
    if (prompt.first_reason == FinishReason::kNone) prompt.first_reason = event.finish_reason;
    if (--prompt.num_running == 0 && prompt.meter != nullptr) {
      prompt.meter->finish(prompt.first_reason, event.times.first_scheduled);
    }
  }

  ChoiceProgress& progress = choice.progress;
  if (has_ended_ || progress.is_finished) return;
  if (event.finish_reason == FinishReason::kError) {
    fail(to_api_error(event.error));
    return;
  }
  if (event.finish_reason == FinishReason::kAborted) {
    end_aborted();
    return;
  }
  AnswerPiece piece;
  bool is_stopped = false;
  for (size_t i = 0; i < token_ids.size() && !is_stopped; ++i) {
    if (plan_.returns_token_ids) progress.new_token_ids.push_back(token_ids[i]);
    // The token that stopped the answer counts and has its log-probability, but it is not text.
    const bool is_stop_token = event.stop_token_id.has_value() && i + 1 == token_ids.size();
    const bool is_text = !is_stop_token || plan_.text.includes_stop_string;
    const TokenLogprobs* given = logprobs.empty() ? nullptr : &logprobs[i];
    if (is_text) {
      is_stopped = choice.text.add(token_ids[i], given, piece);
    } else {
      choice.text.add_textless(given);
    }
    ++progress.num_tokens;
  }
  if (is_stopped && !is_last) context_->engine.stop_choice(event.request_id, event.choice_index);
  if (is_last && !is_stopped) choice.text.finish(piece);
  if (is_stopped || is_last) {
    progress.is_finished = true;
    progress.finish_reason = is_stopped ? FinishReason::kStop : event.finish_reason;
    progress.stop_string = choice.text.stop_string();
    // The model's own end is no reason that a client asked for.
    const std::vector<int32_t>& stops = plan_.sampling.stop_token_ids;
    const bool is_asked_for = !is_stopped && event.stop_token_id.has_value() &&
                              std::find(stops.begin(), stops.end(), *event.stop_token_id) != stops.end();
    if (is_asked_for) progress.stop_token_id = event.stop_token_id;
    --num_unfinished_;
  }
  publish(prompt, choice, piece);
  if (num_unfinished_ == 0) finish_answer();
}

void Generation::publish(Prompt& prompt, Choice& choice, AnswerPiece& piece) {
  ChoiceProgress& progress = choice.progress;
  progress.prompt_logprobs = prompt.prompt_logprobs.empty() ? nullptr : &prompt.prompt_logprobs;
  if (plan_.stream.is_on) {
    if (!has_begun_) {
      has_begun_ = true;
      exchange_->begin_events();
    }
    Usage now;
    if (plan_.stream.has_usage_in_every_chunk) now = usage();
    std::vector<std::string> events;
    plan_.writer->write_chunks(progress, piece, plan_.stream.has_usage_in_every_chunk ? &now : nullptr, events);
    for (const std::string& event : events) exchange_->send_event(event);
    if (!events.empty()) progress.new_token_ids.clear();
  } else {
    plan_.writer->collect(progress, piece);
    progress.new_token_ids.clear();
  }
}

void Generation::finish_answer() {
  has_ended_ = true;
  tell_facts(finish_reason_name(prompts_[0].choices[0].progress.finish_reason), {});
  if (plan_.stream.is_on) {
    if (plan_.stream.includes_usage) exchange_->send_event(plan_.writer->write_usage_chunk(usage()));
    exchange_->send_event("[DONE]");
    exchange_->end_events();
  } else {
    exchange_->respond({.status = 200, .body = plan_.writer->write_whole(usage())});
  }
}

// Before the first byte with the status that it means, afterwards as a last line of the stream.
void Generation::fail(const ApiError& error) {
  if (has_ended_) return;
  has_ended_ = true;
  tell_facts("error", error.status.message());
  if (has_begun_) {
    exchange_->send_event(error_json(error.status, error.param, error.code));
    exchange_->end_events();
  } else {
    exchange_->respond(error_response(error.status, error.param, error.code));
  }
  abort_all(AbortReason::kCaller);
}

// Nobody reads the answer where the client's going is why, so that is no failure to log.
void Generation::end_aborted() {
  bool has_client_gone = false;
  {
    const std::lock_guard lock(ids_mutex_);
    has_client_gone = is_closed_;
  }
  if (!has_client_gone) {
    fail({unavailable("the server is shutting down and gave this request up: send it again"), {}, {}});
    return;
  }
  has_ended_ = true;
  tell_facts("abort", {});
}

Usage Generation::usage() const {
  Usage total;
  for (const Prompt& prompt : prompts_) {
    total.num_prompt_tokens += prompt.num_prompt_tokens;
    total.num_cached_tokens += prompt.num_cached_tokens;
    for (const Choice& choice : prompt.choices) total.num_completion_tokens += choice.progress.num_tokens;
  }
  return total;
}

void Generation::tell_facts(const char* finish_reason, const std::string& error) {
  AnswerFacts facts;
  facts.model = plan_.model;
  facts.finish_reason = finish_reason;
  facts.error = error;
  if (!prompts_.empty()) {
    const Usage total = usage();
    facts.num_prompt_tokens = total.num_prompt_tokens;
    facts.num_cached_tokens = total.num_cached_tokens;
    facts.num_generated_tokens = total.num_completion_tokens;
    const RequestTimes& times = prompts_[0].times;
    if (times.first_scheduled != Clock::time_point{}) facts.queue_seconds = times.queue_seconds();
    if (times.first_token != Clock::time_point{}) facts.first_token_seconds = times.first_token_seconds();
  }
  exchange_->set_facts(std::move(facts));
}

}  // namespace quire

// The loop: schedule, run, sample, tell. Requests end in one place, end_choice.
#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "engine/model_runner.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"

namespace quire {

namespace {

constexpr double kDefaultShareOfGpu = 0.9;
constexpr double kDefaultShareOfCpu = 0.3;
constexpr int64_t kMostDefaultKvBytesOfCpu = int64_t{8} << 30;

Status check_options(const EngineOptions& options) {
  if (options.page_size < 8 || options.page_size > 256 || (options.page_size & (options.page_size - 1)) != 0) {
    return invalid_argument("--page-size " + std::to_string(options.page_size) +
                            " is not a power of two between 8 and 256");
  }
  if (options.max_num_seqs < 1 || options.max_num_seqs > 65536) {
    return invalid_argument("--max-num-seqs is outside 1 to 65536");
  }
  if (options.max_num_batched_tokens < options.max_num_seqs || options.max_num_batched_tokens > (1 << 20)) {
    return invalid_argument("--max-num-batched-tokens is outside " + std::to_string(options.max_num_seqs) +
                            " (--max-num-seqs: each gets a token a step) to 1048576");
  }
  if (options.max_model_len < 0) return invalid_argument("--max-model-len is negative");
  if (options.kv_cache_memory_bytes < 0) return invalid_argument("--kv-cache-memory is negative");
  if (!(options.memory_utilization >= 0.0 && options.memory_utilization <= 1.0)) {
    return invalid_argument("--gpu-memory-utilization is outside 0 to 1");
  }
  if (options.kv_dtype.has_value() && *options.kv_dtype != DType::kF32 && *options.kv_dtype != DType::kF16 &&
      *options.kv_dtype != DType::kBF16) {
    return unimplemented("--kv-cache-dtype is f32, f16 or bf16");
  }
  return ok_status();
}

bool contains(std::span<const int32_t> tokens, int32_t token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

}  // namespace

// One answer to a request.
struct Engine::Choice {
  Sequence* sequence = nullptr;  // null before it is forked and after it has ended
  bool is_finished = false;
  bool is_ending = false;  // its end has been asked for
};

struct Engine::ActiveRequest {
  RequestId id = 0;
  SamplingParams sampling;
  std::shared_ptr<EventSink> sink;
  uint64_t seed = 0;
  std::vector<int32_t> stop_tokens;  // all that stop it
  int64_t num_prompt_tokens = 0;
  std::vector<Choice> choices;
  std::vector<TokenLogprobs> prompt_logprobs;
  bool has_told_prompt_logprobs = false;
  bool was_admitted = false;
  int num_cached_tokens = 0;
  int num_unfinished = 0;
};

Result<std::unique_ptr<Engine>> Engine::create(Ops& ops, const Model& model, const EngineOptions& options) {
  RETURN_IF_ERROR(check_options(options));
  std::unique_ptr<Engine> engine(new Engine(ops, model, options));
  RETURN_IF_ERROR(engine->init());
  return engine;
}

Engine::Engine(Ops& ops, const Model& model, const EngineOptions& options)
    : ops_(ops), model_(model), options_(options) {}

Engine::~Engine() = default;

Status Engine::init() {
  const bool is_on_cpu = ops_.device().kind == DeviceKind::kCpu;
  const ModelConfig& model_config = model_.config();

  ModelRunnerConfig config;
  config.max_num_seqs = options_.max_num_seqs;
  config.max_num_batched_tokens = options_.max_num_batched_tokens;
  config.max_logit_rows = std::max(options_.max_num_seqs, 64);
  config.max_model_len = options_.max_model_len;
  config.page_size = options_.page_size;
  config.kv_dtype = options_.kv_dtype.value_or(options_.compute == Compute::kF32 ? DType::kF32
                                               : is_on_cpu                       ? DType::kF16
                                                                                 : model_config.dtype);
  config.kv_cache_memory_bytes = options_.kv_cache_memory_bytes;
  const Ops::MemorySize memory = ops_.memory();
  config.available_bytes = memory.free_bytes;
  config.memory_share = options_.memory_utilization > 0.0 ? options_.memory_utilization
                        : is_on_cpu                       ? kDefaultShareOfCpu
                                                          : kDefaultShareOfGpu;
  if (is_on_cpu) {
    if (options_.memory_utilization == 0.0) config.most_kv_bytes = kMostDefaultKvBytesOfCpu;
  } else {
    // The share is of all that the device has; the weights are in it already.
    const double spared = (1.0 - config.memory_share) * static_cast<double>(memory.total_bytes);
    config.available_bytes = std::max<int64_t>(0, memory.free_bytes - static_cast<int64_t>(spared));
    config.memory_share = 1.0;
  }
  ASSIGN_OR_RETURN(runner_, ModelRunner::create(ops_, model_, config));

  const MemoryPlan& plan = runner_->memory_plan();
  pool_ = std::make_unique<PagePool>(plan.num_pages);
  page_marks_.assign(static_cast<size_t>(plan.num_pages), -1);
  if (options_.has_prefix_cache) {
    std::vector<PrefixCache::GroupShape> shapes;
    for (const int window : runner_->group_windows()) shapes.push_back({window});
    prefix_cache_ = std::make_unique<PrefixCache>(pool_.get(), options_.page_size, std::move(shapes));
  }
  scheduler_ = std::make_unique<Scheduler>(SchedulerConfig{.max_num_seqs = options_.max_num_seqs,
                                                           .max_num_batched_tokens = options_.max_num_batched_tokens,
                                                           .max_logit_rows = config.max_logit_rows,
                                                           .max_model_len = plan.max_model_len,
                                                           .page_size = options_.page_size,
                                                           .group_windows = runner_->group_windows()},
                                           pool_.get(), prefix_cache_.get());
  const int64_t num_token_ids =
      options_.num_token_ids > 0 ? std::min(options_.num_token_ids, model_config.vocab_size) : model_config.vocab_size;
  sampler_ = std::make_unique<Sampler>(model_config.vocab_size, num_token_ids);

  limits_.vocab_size = num_token_ids;
  limits_.max_model_len = plan.max_model_len;
  limits_.max_n = std::min(options_.max_n, options_.max_num_seqs);
  limits_.max_logprobs = options_.max_logprobs;

  eos_token_ids_ = model_config.stop_token_ids;
  for (const int32_t token : options_.eos_token_ids) {
    if (!contains(eos_token_ids_, token)) eos_token_ids_.push_back(token);
  }
  std::random_device device;
  seed_source_ = (uint64_t{device()} << 32) | device();
  return ok_status();
}

Result<RequestId> Engine::add_request(Request request) {
  CHECK(!is_in_step_);
  CHECK(request.sink != nullptr);
  RETURN_IF_ERROR(validate_request(request, limits_));
  const int64_t num_prompt_tokens = request.num_prompt_tokens();
  RETURN_IF_ERROR(scheduler_->check_fits(num_prompt_tokens, request.sampling.max_tokens));

  auto active = std::make_unique<ActiveRequest>();
  active->id = next_request_id_++;
  active->sampling = std::move(request.sampling);
  active->sink = std::move(request.sink);
  const SamplingParams& sampling = active->sampling;
  // A request without a seed draws another one each time.
  seed_source_ += 0x9e3779b97f4a7c15u;
  active->seed = sampling.seed.value_or((seed_source_ ^ (seed_source_ >> 29)) * 0xbf58476d1ce4e5b9u);
  active->stop_tokens = sampling.stop_token_ids;
  if (!sampling.ignore_eos) {
    active->stop_tokens.insert(active->stop_tokens.end(), eos_token_ids_.begin(), eos_token_ids_.end());
  }
  active->num_prompt_tokens = num_prompt_tokens;
  active->num_unfinished = sampling.n;
  active->choices.resize(static_cast<size_t>(sampling.n));

  auto sequence = std::make_unique<Sequence>();
  sequence->request_id = active->id;
  sequence->priority = request.priority;
  sequence->num_seats = sampling.n;
  sequence->adapter_id = request.adapter_id;
  sequence->cache_salt = std::move(request.cache_salt);
  const int64_t longest = std::min(num_prompt_tokens + sampling.max_tokens, limits_.max_model_len);
  sequence->token_ids.reserve(static_cast<size_t>(longest));
  for (const PromptSegment& segment : request.prompt) {
    sequence->token_ids.insert(sequence->token_ids.end(), segment.token_ids.begin(), segment.token_ids.end());
  }
  sequence->num_prompt_tokens = num_prompt_tokens;
  if (sampling.num_prompt_logprobs >= 0) {
    sequence->next_prompt_logit = 0;
    active->prompt_logprobs.reserve(static_cast<size_t>(num_prompt_tokens));
  }
  sequence->sampling.constraint = std::move(request.constraint);
  if (Sampler::needs_counts(sampling)) Sampler::count_prompt(sequence->sampling, sequence->token_ids);

  const RequestId id = active->id;
  // Nothing to generate and nothing to score: it ends with the next step.
  const bool is_empty = sampling.max_tokens == 0 && (sampling.num_prompt_logprobs < 0 || num_prompt_tokens == 1);
  if (is_empty) {
    pending_endings_.push_back({id, -1, FinishReason::kLength});
  } else {
    active->choices[0].sequence = scheduler_->add(std::move(sequence));
  }
  requests_.emplace(id, std::move(active));
  return id;
}

Engine::ActiveRequest* Engine::find(RequestId request_id) {
  const auto it = requests_.find(request_id);
  return it == requests_.end() ? nullptr : it->second.get();
}

void Engine::abort(RequestId request_id) {
  ActiveRequest* request = find(request_id);
  if (request == nullptr) return;
  for (Choice& choice : request->choices) choice.is_ending = true;
  pending_endings_.push_back({request_id, -1, FinishReason::kAborted});
  if (!is_in_step_) end_pending();
}

void Engine::stop_choice(RequestId request_id, int choice_index) {
  ActiveRequest* request = find(request_id);
  if (request == nullptr || choice_index < 0 || choice_index >= static_cast<int>(request->choices.size())) return;
  request->choices[static_cast<size_t>(choice_index)].is_ending = true;
  pending_endings_.push_back({request_id, choice_index, FinishReason::kStop});
  if (!is_in_step_) end_pending();
}

// Ends what was asked for. The events may ask for more.
void Engine::end_pending() {
  is_in_step_ = true;
  for (size_t i = 0; i < pending_endings_.size(); ++i) {
    const Ending ending = pending_endings_[i];
    if (ending.choice_index < 0) {
      end_all(ending.request_id, ending.reason);
    } else if (ActiveRequest* request = find(ending.request_id); request != nullptr) {
      end_choice(*request, ending.choice_index, ending.reason);
    }
  }
  pending_endings_.clear();
  is_in_step_ = false;
}

bool Engine::has_work() const {
  return !requests_.empty();
}

Status Engine::step() {
  CHECK(!is_in_step_);
  end_pending();
  const auto begin = std::chrono::steady_clock::now();
  const StepPlan& plan = scheduler_->schedule();
  stats_.num_preemptions += plan.num_preempted;
  // With everything preempted this step is empty, and the next one admits again.
  if (plan.rows.empty()) return ok_status();

  const int64_t step = pool_->begin_step();
  const std::span<const float> logits = runner_->run(plan);
  pool_->end_step(step);
  scheduler_->complete();
  ++stats_.num_steps;
  stats_.kv_useful_share_sum += useful_share();
  int num_decode_tokens = 0;
  for (const StepRow& row : plan.rows) {
    if (row.num_tokens == 1 && row.first_position >= row.sequence->num_prompt_tokens) ++num_decode_tokens;
  }

  is_in_step_ = true;
  for (const StepRow& row : plan.rows) {
    if (row.num_logit_rows > 0) read_logits(row, logits);
  }
  is_in_step_ = false;
  end_pending();

  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double decode_share = static_cast<double>(num_decode_tokens) / plan.num_tokens;
  stats_.num_decode_tokens += num_decode_tokens;
  stats_.num_prefill_tokens += plan.num_tokens - num_decode_tokens;
  stats_.decode_seconds += seconds * decode_share;
  stats_.prefill_seconds += seconds * (1.0 - decode_share);
  return ok_status();
}

std::span<const float> Engine::logit_row(std::span<const float> logits, int row) const {
  const size_t vocab_size = static_cast<size_t>(model_.config().vocab_size);
  return logits.subspan(static_cast<size_t>(row) * vocab_size, vocab_size);
}

void Engine::read_logits(const StepRow& row, std::span<const float> logits) {
  Sequence& sequence = *row.sequence;
  ActiveRequest* const request = find(sequence.request_id);
  CHECK(request != nullptr);
  if (!request->was_admitted) {
    request->was_admitted = true;
    request->num_cached_tokens = static_cast<int>(sequence.num_cached_tokens);
    stats_.num_cached_tokens += sequence.num_cached_tokens;
  }
  if (sequence.next_prompt_logit < sequence.num_prompt_tokens - 1) {
    const Status status = read_prompt_logprobs(*request, row, logits);
    if (!status.is_ok()) {
      fail(*request, sequence, status);
      return;
    }
  }
  if (row.end_position() < sequence.num_tokens()) return;
  if (request->sampling.max_tokens == 0) {
    end_all(request->id, FinishReason::kLength);
    return;
  }
  const std::span<const float> last = logit_row(logits, row.first_logit_row + row.num_logit_rows - 1);
  if (sequence.num_seats == 1) {
    sample_choice(*request, sequence, last);
    return;
  }
  fork_choices(*request, sequence);
  for (const RequestId id = request->id; Sequence * forked : forked_) {
    // The request goes with its last choice.
    if (ActiveRequest* rest = find(id); rest != nullptr) sample_choice(*rest, *forked, last);
  }
}

Status Engine::read_prompt_logprobs(ActiveRequest& request, const StepRow& row, std::span<const float> logits) {
  Sequence& sequence = *row.sequence;
  const int64_t first = row.end_position() - row.num_logit_rows;
  CHECK(first == sequence.next_prompt_logit);
  const int64_t end = std::min(row.end_position(), sequence.num_prompt_tokens - 1);
  for (int64_t position = first; position < end; ++position) {
    ASSIGN_OR_RETURN(TokenLogprobs entry,
                     sampler_->logprobs_of(logit_row(logits, row.first_logit_row + static_cast<int>(position - first)),
                                           sequence.token_ids[static_cast<size_t>(position + 1)],
                                           request.sampling.num_prompt_logprobs));
    request.prompt_logprobs.push_back(std::move(entry));
  }
  sequence.next_prompt_logit = end;
  return ok_status();
}

// The prompt has been computed by one sequence: now every choice gets its own. Fills forked_.
void Engine::fork_choices(ActiveRequest& request, Sequence& sequence) {
  forked_.assign(1, &sequence);
  for (size_t c = 0; c < request.choices.size(); ++c) {
    Choice& choice = request.choices[c];
    if (choice.is_finished || choice.sequence == &sequence) continue;
    choice.sequence = scheduler_->fork(sequence, static_cast<int>(c));
    choice.sequence->sampling.counts = sequence.sampling.counts;
    if (sequence.sampling.constraint != nullptr) {
      choice.sequence->sampling.constraint = sequence.sampling.constraint->clone();
    }
    forked_.push_back(choice.sequence);
  }
  CHECK(sequence.num_seats == 1);
}

void Engine::sample_choice(ActiveRequest& request, Sequence& sequence, std::span<const float> logits) {
  const int choice_index = sequence.choice_index;
  if (request.choices[static_cast<size_t>(choice_index)].is_ending) return;
  const SamplingParams& sampling = request.sampling;
  const bool may_stop = sequence.num_output_tokens() >= sampling.min_tokens;
  Result<Sample> sample = sampler_->sample(
      {.logits = logits,
       .params = sampling,
       .state = sequence.sampling,
       .seed = request.seed,
       .choice_index = choice_index,
       .output_index = sequence.num_output_tokens(),
       .suppressed_token_ids = may_stop ? std::span<const int32_t>() : std::span<const int32_t>(request.stop_tokens)});
  if (!sample.is_ok()) {
    fail(request, sequence, sample.status());
    return;
  }
  const int32_t token = sample.value().token_id;
  scheduler_->keep_pages(sequence);
  sequence.token_ids.push_back(token);
  if (Sampler::needs_counts(sampling)) Sampler::count_output(sequence.sampling, token);
  if (sequence.sampling.constraint != nullptr) sequence.sampling.constraint->accept(token);
  ++stats_.num_generated_tokens;

  TokenEvent event;
  event.choice_index = choice_index;
  event.token_ids = std::span(&token, 1);
  if (sampling.num_logprobs >= 0) event.logprobs = std::span(&sample.value().logprobs, 1);
  if (contains(request.stop_tokens, token) && may_stop) {
    event.finish_reason = FinishReason::kStop;
    event.stop_token_id = token;
  } else if (sequence.num_output_tokens() >= sampling.max_tokens || sequence.num_tokens() >= limits_.max_model_len) {
    event.finish_reason = FinishReason::kLength;
  }
  emit(request, event);
  if (event.finish_reason != FinishReason::kNone) close_choice(request, choice_index);
}

// The sequence's contents cannot be trusted: its choice ends, or all of them while it stands for all.
void Engine::fail(ActiveRequest& request, Sequence& sequence, const Status& status) {
  scheduler_->forget_pages(sequence);
  if (sequence.num_seats > 1) {
    end_all(request.id, FinishReason::kError, status);
  } else {
    end_choice(request, sequence.choice_index, FinishReason::kError, status);
  }
}

void Engine::emit(ActiveRequest& request, TokenEvent& event) {
  event.request_id = request.id;
  event.num_prompt_tokens = static_cast<int>(request.num_prompt_tokens);
  event.num_cached_tokens = request.num_cached_tokens;
  if (!request.has_told_prompt_logprobs) {
    event.prompt_logprobs = request.prompt_logprobs;
    request.has_told_prompt_logprobs = true;
  }
  request.sink->on_event(event);
}

void Engine::end_choice(ActiveRequest& request, int choice_index, FinishReason reason, const Status& error) {
  if (request.choices[static_cast<size_t>(choice_index)].is_finished) return;
  TokenEvent event;
  event.choice_index = choice_index;
  event.finish_reason = reason;
  event.error = error;
  emit(request, event);
  close_choice(request, choice_index);
}

void Engine::end_all(RequestId request_id, FinishReason reason, const Status& error) {
  const ActiveRequest* request = find(request_id);
  const int num_choices = request == nullptr ? 0 : static_cast<int>(request->choices.size());
  for (int c = 0; c < num_choices; ++c) {
    ActiveRequest* rest = find(request_id);  // gone once its last choice has ended
    if (rest == nullptr) return;
    end_choice(*rest, c, reason, error);
  }
}

// Gives back what the choice holds. The request itself goes with its last choice: do not touch it afterwards.
void Engine::close_choice(ActiveRequest& request, int choice_index) {
  Choice& choice = request.choices[static_cast<size_t>(choice_index)];
  CHECK(!choice.is_finished);
  choice.is_finished = true;
  --request.num_unfinished;
  if (Sequence* sequence = choice.sequence; sequence != nullptr && (sequence->num_seats == 1)) {
    scheduler_->finish(sequence);
    choice.sequence = nullptr;
  } else {
    // Not forked yet: one seat less for the sequence that stands for all, which goes on for another choice.
    Sequence* shared = nullptr;
    for (Choice& other : request.choices) shared = other.sequence != nullptr ? other.sequence : shared;
    if (shared != nullptr) {
      --shared->num_seats;
      choice.sequence = nullptr;
      if (shared->choice_index == choice_index) {
        for (size_t c = 0; c < request.choices.size(); ++c) {
          if (request.choices[c].is_finished) continue;
          shared->choice_index = static_cast<int>(c);
          request.choices[c].sequence = shared;
          break;
        }
      }
    }
  }
  if (request.num_unfinished == 0) requests_.erase(request.id);
}

EngineStats Engine::stats() const {
  EngineStats stats = stats_;
  stats.num_running = scheduler_->num_running();
  stats.num_waiting = scheduler_->num_waiting();
  stats.num_pages = pool_->num_pages();
  stats.num_pages_used = pool_->num_used();
  stats.num_pages_used_peak = pool_->peak_used();
  stats.num_pages_cached = pool_->num_cached_unused();
  return stats;
}

void Engine::reset_stats() {
  stats_ = EngineStats{};
  pool_->reset_peak();
}

const MemoryPlan& Engine::memory_plan() const {
  return runner_->memory_plan();
}

void Engine::clear_prefix_cache() {
  if (prefix_cache_ != nullptr) prefix_cache_->clear();
}

// Of the slots of the pages in use, those that hold a token; shared pages are counted once.
double Engine::useful_share() {
  const int64_t page_size = options_.page_size;
  int64_t num_empty = 0;
  for (const auto& sequence : scheduler_->running()) {
    for (const PageTable& table : sequence->tables) {
      const int64_t num_in_last = table.num_tokens() % page_size;
      if (num_in_last == 0) continue;
      int64_t& mark = page_marks_[static_cast<size_t>(table.page_ids().back())];
      if (std::exchange(mark, stats_.num_steps) != stats_.num_steps) num_empty += page_size - num_in_last;
    }
  }
  const int64_t num_slots = pool_->num_used() * page_size;
  return num_slots == 0 ? 1.0 : 1.0 - static_cast<double>(num_empty) / static_cast<double>(num_slots);
}

}  // namespace quire

// Making an engine, taking requests in, and what it tells of itself. The step is in engine_step.cc.
#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "engine/active_request.h"
#include "engine/device_sampler.h"
#include "engine/model_runner.h"
#include "engine/parallel_sampler.h"
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
  if ((options.max_num_batched_tokens != 0 && options.max_num_batched_tokens < options.max_num_seqs) ||
      options.max_num_batched_tokens > (1 << 20)) {
    return invalid_argument("--max-num-batched-tokens is outside " + std::to_string(options.max_num_seqs) +
                            " (--max-num-seqs: each gets a token a step) to 1048576");
  }
  if (options.max_model_len < 0) return invalid_argument("--max-model-len is negative");
  if (options.swap_space_bytes < 0) return invalid_argument("--swap-space is negative");
  if (options.preemption == PreemptionMode::kSwap && options.swap_space_bytes == 0) {
    return invalid_argument("--preemption swap needs a --swap-space, such as 2GiB");
  }
  if (options.kv_cache_memory_bytes < 0) return invalid_argument("--kv-cache-memory is negative");
  if (!(options.memory_utilization >= 0.0 && options.memory_utilization <= 1.0)) {
    return invalid_argument("--gpu-memory-utilization is outside 0 to 1");
  }
  return ok_status();
}

bool contains(std::span<const int32_t> tokens, int32_t token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(Ops& ops, const Model& model, const EngineOptions& options) {
  RETURN_IF_ERROR(check_options(options));
  if (options.kv_dtype.has_value() && !ops.takes_kv_dtype(*options.kv_dtype)) {
    const DType dtype = *options.kv_dtype;
    const std::string name(dtype == DType::kF8E4M3 ? "fp8" : dtype == DType::kI8 ? "int8" : dtype_name(dtype));
    return unimplemented("--kv-cache-dtype " + name + " is for a GPU: here it is f32, f16 or bf16");
  }
  std::unique_ptr<Engine> engine(new Engine(ops, model, options));
  RETURN_IF_ERROR(engine->init());
  return engine;
}

Engine::Engine(Ops& ops, const Model& model, const EngineOptions& options)
    : ops_(ops), model_(model), options_(options) {}

Engine::~Engine() {
  if (is_next_launched_) (void)runner_->finish();  // it uses what goes now
}

Status Engine::init() {
  const bool is_on_cpu = ops_.device().kind == DeviceKind::kCpu;
  const ModelConfig& model_config = model_.config();

  ModelRunnerConfig config;
  config.max_num_seqs = options_.max_num_seqs;
  config.max_num_batched_tokens = options_.max_num_batched_tokens;
  config.step_seconds = options_.step_seconds;
  config.max_logit_rows = std::max(options_.max_num_seqs, 64);
  config.max_model_len = options_.max_model_len;
  config.page_size = options_.page_size;
  config.is_strict = options_.is_strict;
  config.kv_dtype = options_.kv_dtype.value_or(options_.compute == Compute::kF32 ? DType::kF32
                                               : is_on_cpu                       ? DType::kBF16
                                                                                 : model_.activation_dtype());
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
  if (options_.preemption != PreemptionMode::kRecompute) config.swap_space_bytes = options_.swap_space_bytes;
  const int64_t num_token_ids =
      options_.num_token_ids > 0 ? std::min(options_.num_token_ids, model_config.vocab_size) : model_config.vocab_size;
  const DeviceSampler::Limits sampling = {.max_rows = config.max_logit_rows,
                                          .vocab_size = model_config.vocab_size,
                                          .num_token_ids = num_token_ids,
                                          .max_logprobs = options_.max_logprobs};
  if (!is_on_cpu) config.sampling_bytes = DeviceSampler::device_bytes(sampling);
  ASSIGN_OR_RETURN(runner_, ModelRunner::create(ops_, model_, config));
  if (!is_on_cpu) {
    ASSIGN_OR_RETURN(device_samplers_, DeviceSampler::create(ops_, sampling));
  }

  const MemoryPlan& plan = runner_->memory_plan();
  if (options_.max_num_batched_tokens == 0) {
    step_budget_.emplace(StepBudget::Bounds{.step_seconds = options_.step_seconds,
                                            .least = StepBudget::least_for(options_.max_num_seqs),
                                            .most = plan.max_num_batched_tokens},
                         plan.prefill_tokens_per_second);
  }
  options_.max_num_batched_tokens = plan.max_num_batched_tokens;
  pool_ = std::make_unique<PagePool>(plan.num_pages);
  page_marks_.assign(static_cast<size_t>(plan.num_pages), -1);
  if (options_.has_prefix_cache) {
    std::vector<PrefixCache::GroupShape> shapes;
    for (const int window : runner_->group_windows()) shapes.push_back({window});
    prefix_cache_ = std::make_unique<PrefixCache>(pool_.get(), options_.page_size, std::move(shapes));
  }
  if (plan.num_swap_pages > 0) {
    swap_space_ = std::make_unique<SwapSpace>(pool_.get(), options_.page_size, plan.num_swap_pages);
  }
  const PreemptionCosts costs = {.prefill_tokens_per_second = runner_->prefill_tokens_per_second(),
                                 .swap_bytes_per_second = runner_->swap_bytes_per_second(),
                                 .page_bytes = plan.page_bytes};
  scheduler_ = std::make_unique<Scheduler>(SchedulerConfig{.max_num_seqs = options_.max_num_seqs,
                                                           .max_num_batched_tokens = options_.max_num_batched_tokens,
                                                           .max_logit_rows = config.max_logit_rows,
                                                           .max_model_len = plan.max_model_len,
                                                           .page_size = options_.page_size,
                                                           .group_windows = runner_->group_windows(),
                                                           .preemption = options_.preemption,
                                                           .costs = costs,
                                                           .is_strict = options_.is_strict,
                                                           .shares_drawn_pages = options_.shares_drawn_pages},
                                           pool_.get(), prefix_cache_.get(), swap_space_.get());
  sampler_ = std::make_unique<Sampler>(model_config.vocab_size, num_token_ids);
  if (options_.num_sampling_threads > 1) {
    parallel_sampler_ =
        std::make_unique<ParallelSampler>(options_.num_sampling_threads, model_config.vocab_size, num_token_ids);
  }

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

Status Engine::check_request(const Request& request) const {
  RETURN_IF_ERROR(validate_request(request, limits_));
  return scheduler_->check_fits(request.num_prompt_tokens(), request.sampling.max_tokens);
}

Result<RequestId> Engine::add_request(Request request) {
  CHECK(!is_telling_);
  CHECK(request.sink != nullptr);
  RETURN_IF_ERROR(check_request(request));
  const int64_t num_prompt_tokens = request.num_prompt_tokens();

  auto active = std::make_unique<ActiveRequest>();
  active->id = request.id != 0 ? request.id : next_request_id_;
  CHECK(find(active->id) == nullptr);
  next_request_id_ = std::max(next_request_id_, active->id + 1);
  active->arrived = request.arrived != Clock::time_point{} ? request.arrived : Clock::now();
  active->sampling = std::move(request.sampling);
  active->sink = std::move(request.sink);
  // Of a token that stands there twice the biases lie side by side, in their order: so a device adds them.
  std::stable_sort(active->sampling.logit_bias.begin(), active->sampling.logit_bias.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
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
  sequence->share_key = request.share_key;
  sequence->pooling = request.pooling;
  if (request.pooling != Pooling::kNone) {
    active->pooling = request.pooling;
    active->is_normalized = request.is_normalized;
    active->pooled.resize(static_cast<size_t>(model_.config().hidden_size));
  }
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
  const bool is_empty = sampling.max_tokens == 0 && request.pooling == Pooling::kNone &&
                        (sampling.num_prompt_logprobs < 0 || num_prompt_tokens == 1);
  if (is_empty) {
    active->was_scheduled = true;
    pending_endings_.push_back({id, -1, FinishReason::kLength});
  } else {
    active->choices[0].sequence = scheduler_->add(std::move(sequence));
    ++num_requests_queued_;
  }
  ++stats_.num_requests;
  requests_.emplace(id, std::move(active));
  return id;
}

bool Engine::has_work() const {
  return !requests_.empty() || is_next_launched_;
}

EngineStats Engine::stats() const {
  EngineStats stats = stats_;
  stats.step_tokens = step_budget_.has_value() ? step_budget_->num_tokens() : options_.max_num_batched_tokens;
  stats.num_running = scheduler_->num_running();
  stats.num_waiting = scheduler_->num_waiting();
  stats.num_pages = pool_->num_pages();
  stats.num_pages_used = pool_->num_used();
  stats.num_pages_used_peak = pool_->peak_used();
  stats.num_swap_pages = swap_space_ == nullptr ? 0 : swap_space_->pool().num_pages();
  stats.num_swap_pages_used = swap_space_ == nullptr ? 0 : swap_space_->pool().num_used();
  stats.num_pages_cached = pool_->num_cached_unused();
  stats.num_requests_active = static_cast<int>(requests_.size());
  stats.num_requests_queued = num_requests_queued_;
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

}  // namespace quire

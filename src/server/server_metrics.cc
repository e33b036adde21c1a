#include "server/server_metrics.h"

#include "base/check.h"

namespace quire {

namespace {

// Token latencies reach from half a millisecond (a small model on a GPU) to seconds (a large one on a CPU).
constexpr double kTokenSeconds[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,  0.15, 0.2,
                                    0.3,    0.4,   0.5,    0.75,  1.0,  2.5,   5.0,  7.5,   10.0, 20.0, 40.0};
constexpr double kFirstTokenSeconds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25,  0.5,   0.75,
                                         1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0};
constexpr double kRequestSeconds[] = {0.01, 0.05, 0.1,  0.3,  0.5,  0.8,  1.0,   1.5,   2.0,   2.5,   5.0,  10.0,
                                      15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920, 7680};
constexpr double kTokenCounts[] = {1,    2,    5,    10,    20,    50,    100,    200,    500,
                                   1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000};
constexpr double kStepTokens[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
constexpr double kChoices[] = {1, 2, 5, 10, 20};

double seconds_between(RequestMeter::TimePoint begin, RequestMeter::TimePoint end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

ServerMetrics::ServerMetrics(MetricRegistry& registry, const std::string& model_name)
    : ServerMetrics(registry, MetricLabels{{"model_name", model_name}}) {}

ServerMetrics::ServerMetrics(MetricRegistry& registry, const MetricLabels& model)
    : num_requests_running(registry.gauge("vllm:num_requests_running", "Requests that run now.", model)),
      num_requests_waiting(
          registry.gauge("vllm:num_requests_waiting", "Requests that have never been scheduled yet.", model)),
      kv_cache_usage(registry.gauge("vllm:kv_cache_usage_perc", "Share of the KV pages in use, 0 to 1.", model)),
      gpu_cache_usage(
          registry.gauge("vllm:gpu_cache_usage_perc", "Share of the KV pages in use, 0 to 1 (the older name).", model)),
      cpu_cache_usage(registry.gauge("vllm:cpu_cache_usage_perc", "Share of the swap space in use, 0 to 1.", model)),
      num_kv_pages(registry.gauge("quire_kv_pages", "KV pages that there are.", model)),
      num_kv_pages_used(registry.gauge("quire_kv_pages_used", "KV pages that requests hold.", model)),
      num_kv_pages_cached(
          registry.gauge("quire_kv_pages_cached", "KV pages that nobody holds, kept by the prefix cache.", model)),
      num_step_tokens(registry.gauge("quire_step_tokens", "Tokens that a step may have now.", model)),
      num_swap_pages_used(registry.gauge("quire_swap_pages_used", "Pages of the swap space in use.", model)),
      num_preemptions(registry.counter("vllm:num_preemptions_total",
                                       "How often a running sequence had to give way to others.", model)),
      num_swap_outs(registry.counter("quire_swap_outs_total",
                                     "Sequences that gave way and whose pages went to the swap space.", model)),
      num_swap_ins(registry.counter("quire_swap_ins_total", "Sequences that came back from the swap space.", model)),
      prefix_cache_queries(registry.counter("vllm:prefix_cache_queries_total",
                                            "Prompt tokens that were looked up in the prefix cache.", model)),
      prefix_cache_hits(registry.counter("vllm:prefix_cache_hits_total",
                                         "Prompt tokens that were found in the prefix cache.", model)),
      iteration_tokens(registry.histogram("vllm:iteration_tokens_total", "Tokens computed in a step of the engine.",
                                          kStepTokens, model)),
      prompt_tokens(registry.counter("vllm:prompt_tokens_total", "Tokens of prompts, cached ones too.", model)),
      generation_tokens(registry.counter("vllm:generation_tokens_total", "Tokens generated.", model)),
      time_to_first_token(registry.histogram("vllm:time_to_first_token_seconds",
                                             "From a request's arrival to its first token.", kFirstTokenSeconds,
                                             model)),
      inter_token_latency(registry.histogram("vllm:inter_token_latency_seconds", "Between two tokens of an answer.",
                                             kTokenSeconds, model)),
      time_per_output_token(registry.histogram("vllm:time_per_output_token_seconds",
                                               "Between two tokens of an answer (the older name).", kTokenSeconds,
                                               model)),
      request_time_per_output_token(registry.histogram("vllm:request_time_per_output_token_seconds",
                                                       "Mean time between the tokens of a request.", kTokenSeconds,
                                                       model)),
      e2e_request_latency(registry.histogram("vllm:e2e_request_latency_seconds", "From a request's arrival to its end.",
                                             kRequestSeconds, model)),
      request_queue_time(registry.histogram("vllm:request_queue_time_seconds",
                                            "From a request's arrival until it was first scheduled.", kRequestSeconds,
                                            model)),
      request_inference_time(registry.histogram("vllm:request_inference_time_seconds",
                                                "From when a request was first scheduled to its end.", kRequestSeconds,
                                                model)),
      request_prefill_time(registry.histogram("vllm:request_prefill_time_seconds",
                                              "From when a request was first scheduled to its first token.",
                                              kRequestSeconds, model)),
      request_decode_time(registry.histogram("vllm:request_decode_time_seconds",
                                             "From a request's first token to its last.", kRequestSeconds, model)),
      request_prompt_tokens(
          registry.histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", kTokenCounts, model)),
      request_generation_tokens(registry.histogram("vllm:request_generation_tokens",
                                                   "Tokens generated for a request, all choices together.",
                                                   kTokenCounts, model)),
      request_max_num_generation_tokens(registry.histogram("vllm:request_max_num_generation_tokens",
                                                           "Tokens generated for the longest choice of a request.",
                                                           kTokenCounts, model)),
      request_params_n(registry.histogram("vllm:request_params_n", "n of a request.", kChoices, model)),
      request_params_max_tokens(
          registry.histogram("vllm:request_params_max_tokens", "max_tokens of a request.", kTokenCounts, model)) {
  constexpr FinishReason kReasons[] = {FinishReason::kStop, FinishReason::kLength, FinishReason::kAborted,
                                       FinishReason::kError};
  constexpr const char* kNames[] = {"stop", "length", "abort", "error"};
  request_success.fill(nullptr);
  for (size_t i = 0; i < std::size(kReasons); ++i) {
    MetricLabels labels = model;
    labels.emplace_back("finished_reason", kNames[i]);
    request_success[static_cast<size_t>(kReasons[i])] =
        &registry.counter("vllm:request_success_total", "Requests that ended, by why they did.", labels);
  }
}

void set_engine_metrics(ServerMetrics& metrics, const EngineSnapshot& snapshot) {
  const EngineStats& stats = snapshot.stats;
  static_assert(std::size(kStepTokens) == EngineStats::kStepTokenBounds.size());
  metrics.num_requests_running.set(snapshot.num_active - snapshot.num_queued);
  metrics.num_requests_waiting.set(snapshot.num_queued);
  const double usage = stats.num_pages > 0 ? static_cast<double>(stats.num_pages_used) / stats.num_pages : 0.0;
  metrics.kv_cache_usage.set(usage);
  metrics.gpu_cache_usage.set(usage);
  const double swapped =
      stats.num_swap_pages > 0 ? static_cast<double>(stats.num_swap_pages_used) / stats.num_swap_pages : 0.0;
  metrics.cpu_cache_usage.set(swapped);
  metrics.num_kv_pages.set(stats.num_pages);
  metrics.num_kv_pages_used.set(stats.num_pages_used);
  metrics.num_kv_pages_cached.set(stats.num_pages_cached);
  metrics.num_step_tokens.set(stats.step_tokens);
  metrics.num_swap_pages_used.set(stats.num_swap_pages_used);
  metrics.num_preemptions.raise_to(static_cast<double>(stats.num_preemptions));
  metrics.num_swap_outs.raise_to(static_cast<double>(stats.num_swap_outs));
  metrics.num_swap_ins.raise_to(static_cast<double>(stats.num_swap_ins));
  metrics.prefix_cache_queries.raise_to(static_cast<double>(stats.num_queried_tokens));
  metrics.prefix_cache_hits.raise_to(static_cast<double>(stats.num_cached_tokens));
  std::array<uint64_t, EngineStats::kStepTokenBounds.size() + 1> steps{};
  for (size_t i = 0; i < steps.size(); ++i) steps[i] = static_cast<uint64_t>(stats.num_steps_by_tokens[i]);
  metrics.iteration_tokens.set(steps, static_cast<double>(stats.num_prefill_tokens + stats.num_decode_tokens));
}

RequestMeter::RequestMeter(ServerMetrics& metrics, const Start& start)
    : metrics_(metrics),
      start_(start),
      choices_(static_cast<size_t>(start.n > 0 ? start.n : 1)),
      num_open_choices_(static_cast<int>(choices_.size())) {}

RequestMeter::~RequestMeter() {
  if (!is_finished_) finish(FinishReason::kAborted, TimePoint{});
}

void RequestMeter::on_event(const TokenEvent& event) {
  on_tokens(event.choice_index, static_cast<int64_t>(event.token_ids.size()), event.times.last_token);
  if (event.finish_reason == FinishReason::kNone) return;
  const auto weight = [](FinishReason reason) {
    return reason == FinishReason::kNone      ? 0
           : reason == FinishReason::kError   ? 3
           : reason == FinishReason::kAborted ? 2
                                              : 1;
  };
  if (weight(event.finish_reason) > weight(reason_)) reason_ = event.finish_reason;
  if (--num_open_choices_ == 0) finish(reason_, event.times.first_scheduled, event.times.finished);
}

void RequestMeter::on_tokens(int choice_index, int64_t num_tokens, TimePoint time) {
  CHECK(choice_index >= 0 && choice_index < static_cast<int>(choices_.size()));
  if (num_tokens <= 0 || is_finished_) return;
  if (first_token_ == TimePoint{}) {
    first_token_ = time;
    first_token_seconds_ = seconds_between(start_.arrived, time);
    metrics_.time_to_first_token.observe(first_token_seconds_);
  }
  count_prompt();
  ChoiceState& choice = choices_[static_cast<size_t>(choice_index)];
  if (choice.num_tokens > 0) {
    // Tokens that come together (accepted drafts) share the gap before them.
    const double gap = seconds_between(choice.last_token, time) / static_cast<double>(num_tokens);
    for (int64_t i = 0; i < num_tokens; ++i) {
      metrics_.inter_token_latency.observe(gap);
      metrics_.time_per_output_token.observe(gap);
    }
  }
  choice.last_token = time;
  choice.num_tokens += num_tokens;
  num_generated_ += num_tokens;
  metrics_.generation_tokens.add(static_cast<double>(num_tokens));
}

// Once a request, with its first token or at its end, so that the counter and the histogram of prompts agree whenever
// nothing runs.
void RequestMeter::count_prompt() {
  if (has_counted_prompt_) return;
  has_counted_prompt_ = true;
  metrics_.prompt_tokens.add(static_cast<double>(start_.num_prompt_tokens));
}

void RequestMeter::finish(FinishReason reason, TimePoint first_scheduled, TimePoint time) {
  if (is_finished_) return;
  is_finished_ = true;
  count_prompt();
  metrics_.e2e_request_latency.observe(seconds_between(start_.arrived, time));
  if (first_scheduled != TimePoint{}) {
    queue_seconds_ = seconds_between(start_.arrived, first_scheduled);
    metrics_.request_queue_time.observe(queue_seconds_);
    metrics_.request_inference_time.observe(seconds_between(first_scheduled, time));
    if (first_token_ != TimePoint{}) {
      metrics_.request_prefill_time.observe(seconds_between(first_scheduled, first_token_));
    }
  }
  int64_t longest = 0;
  TimePoint last_token = first_token_;
  for (const ChoiceState& choice : choices_) {
    if (choice.num_tokens > longest) longest = choice.num_tokens;
    if (choice.num_tokens > 0 && choice.last_token > last_token) last_token = choice.last_token;
  }
  if (first_token_ != TimePoint{}) {
    const double decode_seconds = seconds_between(first_token_, last_token);
    metrics_.request_decode_time.observe(decode_seconds);
    if (longest > 1) {
      metrics_.request_time_per_output_token.observe(decode_seconds / static_cast<double>(longest - 1));
    }
  }
  metrics_.request_prompt_tokens.observe(static_cast<double>(start_.num_prompt_tokens));
  metrics_.request_generation_tokens.observe(static_cast<double>(num_generated_));
  metrics_.request_max_num_generation_tokens.observe(static_cast<double>(longest));
  metrics_.request_params_n.observe(static_cast<double>(start_.n));
  metrics_.request_params_max_tokens.observe(static_cast<double>(start_.max_tokens));
  Counter* counter = metrics_.request_success[static_cast<size_t>(reason)];
  CHECK(counter != nullptr);
  counter->add();
}

}  // namespace quire

// The server's metrics, by vLLM's names, so that existing dashboards work; and how one request is counted. RequestMeter
// is for the handlers of completions, chat and embeddings; gauges are set from the engine's snapshot at a scrape
// (app/serve). Any thread, lock-free.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine_loop.h"
#include "engine/request.h"
#include "server/metrics.h"

namespace quire {

struct ServerMetrics {
  ServerMetrics(MetricRegistry& registry, const std::string& model_name);
  ServerMetrics(MetricRegistry& registry, const MetricLabels& model);

  Gauge& num_requests_running;
  Gauge& num_requests_waiting;
  Gauge& kv_cache_usage;
  Gauge& gpu_cache_usage;  // its older name, which dashboards still ask for
  Gauge& cpu_cache_usage;
  Gauge& num_kv_pages;
  Gauge& num_kv_pages_used;
  Gauge& num_kv_pages_cached;
  Gauge& num_step_tokens;
  Gauge& num_swap_pages_used;
  Counter& num_preemptions;
  Counter& num_swap_outs;
  Counter& num_swap_ins;
  Counter& prefix_cache_queries;
  Counter& prefix_cache_hits;
  Histogram& iteration_tokens;

  Counter& prompt_tokens;
  Counter& generation_tokens;
  Histogram& time_to_first_token;
  Histogram& inter_token_latency;
  Histogram& time_per_output_token;          // inter_token_latency under its older name
  Histogram& request_time_per_output_token;  // one mean a request
  Histogram& e2e_request_latency;
  Histogram& request_queue_time;
  Histogram& request_inference_time;
  Histogram& request_prefill_time;
  Histogram& request_decode_time;
  Histogram& request_prompt_tokens;
  Histogram& request_generation_tokens;
  Histogram& request_max_num_generation_tokens;
  Histogram& request_params_n;
  Histogram& request_params_max_tokens;
  // By FinishReason: stop, length, abort, error. (kNone's is unused.)
  std::array<Counter*, 5> request_success;
};

// What the engine counts itself, for a scrape. Calls come one at a time.
void set_engine_metrics(ServerMetrics& metrics, const EngineSnapshot& snapshot);

// Counts one request from its arrival to its end, whatever that is: sums over requests agree with the token counters,
// aborted requests included. One call at a time (the events of a request come one after another); if it is destroyed
// before finish, the request counts as aborted.
class RequestMeter {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Start {
    TimePoint arrived;
    int64_t num_prompt_tokens = 0;
    int n = 1;
    int64_t max_tokens = 0;
  };
  RequestMeter(ServerMetrics& metrics, const Start& start);
  ~RequestMeter();
  RequestMeter(const RequestMeter&) = delete;
  RequestMeter& operator=(const RequestMeter&) = delete;

  // All that the engine tells of the request, in order: counts tokens, and finishes when all choices have ended.
  void on_event(const TokenEvent& event);

  // What on_event is made of. `num_tokens` tokens of a choice have come, now or at `time`.
  void on_tokens(int choice_index, int64_t num_tokens, TimePoint time = std::chrono::steady_clock::now());
  // All choices have ended. `first_scheduled`: when the engine took the request out of its queue (a default-constructed
  // time: never).
  void finish(FinishReason reason, TimePoint first_scheduled, TimePoint time = std::chrono::steady_clock::now());

  // The engine refused the request: it is in no series.
  void discard() { is_finished_ = true; }

  int64_t num_generated_tokens() const { return num_generated_; }
  double queue_seconds() const { return queue_seconds_; }              // after finish; negative: never scheduled
  double first_token_seconds() const { return first_token_seconds_; }  // negative: none came

 private:
  struct ChoiceState {
    TimePoint last_token{};
    int64_t num_tokens = 0;
  };

  void count_prompt();

  ServerMetrics& metrics_;
  Start start_;
  std::vector<ChoiceState> choices_;
  TimePoint first_token_{};
  int64_t num_generated_ = 0;
  double queue_seconds_ = -1.0;
  double first_token_seconds_ = -1.0;
  int num_open_choices_;
  FinishReason reason_ = FinishReason::kNone;  // of the choices that have ended: error before abort before the others
  bool has_counted_prompt_ = false;
  bool is_finished_ = false;
};

}  // namespace quire

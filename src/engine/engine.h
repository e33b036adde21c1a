// The engine: requests in, token events out. Each step() schedules, builds the batch, runs the model and samples. While
// the model runs, the sinks are told what the step before has sampled, and the next step's rows are planned as far as
// they are known. When step() returns nothing runs; events of it may be held until the next. One thread owns an engine
// and calls all of its methods; nothing in it locks. A server puts a queue in front; `generate`, `chat` and `bench`
// call it directly:
//
//   ASSIGN_OR_RETURN(auto engine, Engine::create(*ops, *model, options));
//   ASSIGN_OR_RETURN(RequestId id, engine->add_request(Request::from_tokens(ids, sampling, sink)));
//   while (engine->has_work()) RETURN_IF_ERROR(engine->step());
//
// A later request whose prompt begins with tokens that are still in the pages (a conversation's earlier turns) reuses
// them through the prefix cache.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "engine/held_events.h"
#include "engine/memory_plan.h"
#include "engine/preemption.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/step_budget.h"
#include "models/model.h"
#include "ops/ops.h"

namespace quire {

class DeviceSampler;
class ModelRunner;
class ParallelSampler;
class PagePool;
class PrefixCache;
struct ActiveRequest;
struct SampleCall;
class Scheduler;
class SwapSpace;
struct Sequence;
struct StepPlan;
struct StepRow;

struct EngineOptions {
  int max_num_seqs = 32;
  int max_num_batched_tokens = 512;   // 0: what `step_seconds` are enough for, at the rate of the last steps
  double step_seconds = 0.25;         // so long do running answers stall while a prompt is read
  int64_t max_model_len = 0;          // 0: the model's context, or less where the pages allow less
  int page_size = 16;                 // a power of two, 8 to 256
  int64_t kv_cache_memory_bytes = 0;  // 0: a share of what is available
  double memory_utilization = 0.0;    // that share; 0: 0.9 on a GPU, 0.3 on a CPU (and there 8 GiB at most)
  std::optional<DType> kv_dtype;  // none: f32 under Compute::kF32, else bf16 on the CPU and the model's dtype on a GPU
  Compute compute = Compute::kAuto;  // as the ops were made; likewise:
  bool is_strict = false;            // BackendOptions::is_strict, of a GPU
  bool shares_drawn_pages = true;    // SchedulerConfig's
  bool has_prefix_cache = true;
  bool launches_ahead = true;  // on a GPU: a step that decodes before the one ahead of it has ended, where that can be
  // When pages run out, the newest sequence gives way: its pages go to the swap space, or its tokens are computed
  // again.
  PreemptionMode preemption = PreemptionMode::kAuto;
  int64_t swap_space_bytes = 0;        // of host memory
  std::vector<int32_t> eos_token_ids;  // besides those of the model's config: the tokenizer's
  // Token ids that the tokenizer knows: those at or above are neither accepted nor sampled. 0: all rows of the
  // embedding.
  int64_t num_token_ids = 0;
  int num_sampling_threads = 1;  // of the host, the caller's included
  std::string model_hash;        // of the model's contents; needed only for keeping the prefix cache in a file
  int max_n = 128;               // and at most max_num_seqs
  int max_logprobs = 20;
};

// Counters since the engine was made, which never fall; gauges are of now.
struct EngineStats {
  // num_steps by the tokens that they computed: of entry i, those with at most kStepTokenBounds[i] that are in no entry
  // before; the last entry has all larger ones.
  static constexpr std::array<int, 13> kStepTokenBounds = {1,   8,    16,   32,   64,   128,  256,
                                                           512, 1024, 2048, 4096, 8192, 16384};
  std::array<int64_t, kStepTokenBounds.size() + 1> num_steps_by_tokens{};

  int64_t num_steps = 0;
  int64_t num_steps_ahead = 0;     // of them, those that were launched before the one ahead had ended
  int64_t num_prefill_tokens = 0;  // computed for prompts, recomputed ones too
  int64_t num_decode_tokens = 0;   // computed one a step
  int64_t num_generated_tokens = 0;
  int64_t num_prompt_tokens = 0;   // of requests that were scheduled, each counted once
  int64_t num_queried_tokens = 0;  // of them, those that the prefix cache was asked for
  int64_t num_cached_tokens = 0;   // and those that it had
  int64_t num_preemptions = 0;     // of both kinds
  int64_t num_swap_outs = 0;       // of them, those whose pages went to the swap space
  int64_t num_swap_ins = 0;
  int64_t num_requests = 0;                               // that came
  std::array<int64_t, kNumFinishReasons> num_finished{};  // choices, by FinishReason
  std::array<int64_t, kNumAbortReasons> num_aborted{};    // requests, by AbortReason
  double prefill_seconds = 0.0;                           // a step's time, divided over its tokens
  double decode_seconds = 0.0;
  double kv_useful_share_sum = 0.0;  // over the steps; divided by num_steps: useful bytes of the pages in use

  int step_tokens = 0;  // that a step may have
  int num_running = 0;  // sequences
  int num_waiting = 0;
  int num_requests_active = 0;  // without their last event
  int num_requests_queued = 0;  // of them, those that have never been scheduled
  int num_pages = 0;
  int num_pages_used = 0;
  int num_pages_used_peak = 0;
  int num_swap_pages = 0;
  int num_swap_pages_used = 0;
  int num_pages_cached = 0;  // in nobody's use, kept for reuse
};

class Engine {
 public:
  // `ops` and `model` outlive the engine.
  static Result<std::unique_ptr<Engine>> create(Ops& ops, const Model& model, const EngineOptions& options);
  ~Engine();

  // Queues a request. What can never run is refused here, with the reason; a refused request gets no events.
  Result<RequestId> add_request(Request request);

  // What add_request would refuse it for. Reads constants alone, so that any thread may ask.
  Status check_request(const Request& request) const;

  // Ends a request: each of its unfinished choices gets a last event (kAborted) and its pages are free. Unknown or
  // finished ids are ignored.
  void abort(RequestId request_id, AbortReason reason = AbortReason::kCaller);
  void abort_all(AbortReason reason);
  // Ends all requests with this error.
  void fail_all(const Status& error);

  // Ends one choice because the caller found a stop string in its text: last event kStop.
  void stop_choice(RequestId request_id, int choice_index);

  // One round. The events of the last one, after which there is no work, are told before it returns. An error here is
  // the device's or our own: the engine cannot go on. Errors of one request are events.
  Status step();

  bool has_work() const;
  int max_num_seqs() const { return options_.max_num_seqs; }
  EngineStats stats() const;
  void reset_stats();
  const MemoryPlan& memory_plan() const;
  const RequestLimits& limits() const { return limits_; }
  // The kept prefixes to a file, and back from it into pages that are free. Between steps. What is not of this very
  // model and these settings, or is damaged, or larger than `max_bytes`, is refused with the reason, and nothing of it
  // is taken; kNotFound: there is no such file. What is saved has at most so many bytes too, the newest prefixes first.
  // Both need EngineOptions::model_hash.
  struct PrefixFileTokens {
    int64_t num_tokens = 0;
    int64_t num_left_out = 0;  // there was no room for them in the file, or in the pages
  };
  Result<PrefixFileTokens> save_prefix_cache(const std::string& path, int64_t max_bytes = INT64_MAX);
  Result<PrefixFileTokens> load_prefix_cache(const std::string& path, int64_t max_bytes = INT64_MAX);
  // Forgets all kept prefixes (those in use stay with their owners).
  void clear_prefix_cache();

 private:
  Engine(Ops& ops, const Model& model, const EngineOptions& options);
  Status init();

  // engine_step.cc
  void note_scheduled(const StepPlan& plan, Clock::time_point now);
  void plan_ahead(const StepPlan& plan);
  bool can_launch_ahead(const StepPlan& plan);
  void launch_ahead();
  // num_ahead: tokens that the plan's sequences will have got by then.
  void start(const StepPlan& plan, int num_ahead);
  void plan_sampling(DeviceSampler& sampler, const StepPlan& plan, int num_ahead);
  DeviceSampler* other_sampler() const;
  Status drop_launched(int64_t step);
  double useful_share();

  // engine_prefix_file.cc
  std::string prefix_file_key() const;
  Status load_prefix_entries(class PrefixFileReader& reader, PrefixFileTokens* tokens);

  // engine_output.cc: from a step's logits to events, and the ends of requests
  // num_ahead: tokens that the sequence will have got by then.
  SampleCall sample_call(const ActiveRequest& request, const Sequence& sequence, std::span<const float> logits,
                         int num_ahead = 0) const;
  void sample_ahead(const StepPlan& plan, std::span<const float> logits);
  void read_logits(const StepRow& row, std::span<const float> logits, std::optional<Result<Sample>> sample);
  void read_hidden(const StepRow& row, std::span<const float> hidden);
  void finish_embedding(ActiveRequest& request, Sequence& sequence);
  Status read_prompt_logprobs(ActiveRequest& request, const StepRow& row, std::span<const float> logits);
  void fork_choices(ActiveRequest& request, Sequence& sequence);
  void sample_choice(ActiveRequest& request, Sequence& sequence, Result<Sample> sample);
  void fail(ActiveRequest& request, Sequence& sequence, const Status& status);
  void emit(ActiveRequest& request, TokenEvent& event);
  void end_choice(ActiveRequest& request, int choice_index, FinishReason reason, const Status& error = {});
  void end_all(RequestId request_id, FinishReason reason, const Status& error = {});
  void close_choice(ActiveRequest& request, int choice_index);
  void end_pending();
  void publish();
  void settle();
  ActiveRequest* find(RequestId request_id);
  ActiveRequest& owner_of(const Sequence& sequence);
  std::span<const float> logit_row(std::span<const float> logits, int row) const;

  Ops& ops_;
  const Model& model_;
  EngineOptions options_;
  RequestLimits limits_;
  std::vector<int32_t> eos_token_ids_;
  // In the order in which they refer to each other: pages are given back before the pool goes.
  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<PrefixCache> prefix_cache_;
  std::unique_ptr<SwapSpace> swap_space_;  // may be null
  std::unique_ptr<Scheduler> scheduler_;
  std::optional<StepBudget> step_budget_;  // none: it is fixed
  std::unique_ptr<Sampler> sampler_;
  std::unique_ptr<ParallelSampler> parallel_sampler_;  // null: one thread
  // Of steps in turns; null on the CPU: there the logits lie before the host anyhow.
  std::array<std::unique_ptr<DeviceSampler>, 2> device_samplers_;
  DeviceSampler* device_sampler_ = nullptr;  // of the step that is read next
  std::unordered_map<RequestId, std::unique_ptr<ActiveRequest>> requests_;
  struct Ending {
    RequestId request_id;
    int choice_index;  // -1: all
    FinishReason reason;
  };
  std::vector<Ending> pending_endings_;  // asked for from inside events, or before the first step
  HeldEvents held_events_;
  bool is_telling_ = false;  // sinks
  int num_requests_queued_ = 0;
  Clock::time_point step_end_;  // of the step whose logits are being read
  RequestId next_request_id_ = 1;
  uint64_t seed_source_ = 0;  // of requests without a seed
  EngineStats stats_;
  std::vector<std::optional<Result<Sample>>> samples_;  // of the plan's rows: what has been sampled of it already
  std::vector<SampleCall> sample_calls_;                // of the rows that are sampled side by side
  std::vector<std::optional<Result<Sample>>*> sample_targets_;
  std::vector<Sequence*> forked_;    // scratch
  std::vector<float> embedding_;     // likewise
  std::vector<int64_t> page_marks_;  // per page: the step that counted it last
  // A step that was launched before the one ahead of it was read.
  bool is_next_launched_ = false;
  int64_t next_step_ = 0;  // of the pool
};

}  // namespace quire

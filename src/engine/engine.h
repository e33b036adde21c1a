// The engine: requests in, token events out. Each step() schedules, builds the batch, runs the model, samples and tells
// the sinks. One thread owns an engine and calls all of its methods; nothing in it locks. A server puts a queue in
// front; `generate`, `chat` and `bench` call it directly:
//
//   ASSIGN_OR_RETURN(auto engine, Engine::create(*ops, *model, options));
//   ASSIGN_OR_RETURN(RequestId id, engine->add_request(Request::from_tokens(ids, sampling, sink)));
//   while (engine->has_work()) RETURN_IF_ERROR(engine->step());
//
// A later request whose prompt begins with tokens that are still in the pages (a conversation's earlier turns) reuses
// them through the prefix cache.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "engine/memory_plan.h"
#include "engine/request.h"
#include "models/model.h"
#include "ops/ops.h"

namespace quire {

struct EngineOptions {
  int max_num_seqs = 32;
  int max_num_batched_tokens = 512;
  int64_t max_model_len = 0;          // 0: the model's context, or less where the pages allow less
  int page_size = 16;                 // a power of two, 8 to 256
  int64_t kv_cache_memory_bytes = 0;  // 0: a share of what is available
  double memory_utilization = 0.0;    // that share; 0: 0.9 on a GPU, 0.3 on a CPU (and there 8 GiB at most)
  std::optional<DType> kv_dtype;  // none: f32 under Compute::kF32, else f16 on the CPU and the model's dtype on a GPU
  Compute compute = Compute::kAuto;  // as the ops were made
  bool has_prefix_cache = true;
  std::vector<int32_t> eos_token_ids;  // besides those of the model's config: the tokenizer's
  int max_n = 128;
  int max_logprobs = 20;
};

// Counters since the engine was made; gauges are of now.
struct EngineStats {
  int64_t num_steps = 0;
  int64_t num_prefill_tokens = 0;  // computed for prompts, recomputed ones too
  int64_t num_decode_tokens = 0;   // computed one a step
  int64_t num_generated_tokens = 0;
  int64_t num_cached_tokens = 0;  // prompt tokens found in the prefix cache
  int64_t num_preemptions = 0;
  double prefill_seconds = 0.0;  // a step's time, divided over its tokens
  double decode_seconds = 0.0;
  double kv_useful_share_sum = 0.0;  // over the steps; divided by num_steps: useful bytes of the pages in use

  int num_running = 0;  // sequences
  int num_waiting = 0;
  int num_pages = 0;
  int num_pages_used = 0;
  int num_pages_used_peak = 0;
  int num_pages_cached = 0;  // in nobody's use, kept for reuse
};

class Engine {
 public:
  virtual ~Engine() = default;

  // `ops` and `model` outlive the engine.
  static Result<std::unique_ptr<Engine>> create(Ops& ops, const Model& model, const EngineOptions& options);

  // Queues a request. What can never run is refused here, with the reason; a refused request gets no events.
  virtual Result<RequestId> add_request(Request request) = 0;

  // Ends a request: each of its unfinished choices gets a last event (kAborted) and its pages are free. Unknown or
  // finished ids are ignored.
  virtual void abort(RequestId request_id) = 0;

  // Ends one choice because the caller found a stop string in its text: last event kStop.
  virtual void stop_choice(RequestId request_id, int choice_index) = 0;

  // One round. An error here is the device's or our own: the engine cannot go on. Errors of one request are events.
  virtual Status step() = 0;

  virtual bool has_work() const = 0;
  virtual EngineStats stats() const = 0;
  virtual void reset_stats() = 0;
  virtual const MemoryPlan& memory_plan() const = 0;
  virtual const RequestLimits& limits() const = 0;
  // Forgets all kept prefixes (those in use stay with their owners).
  virtual void clear_prefix_cache() = 0;
};

}  // namespace quire

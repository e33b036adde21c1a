#include "app/bench_run.h"

#include <algorithm>
#include <chrono>
#include <random>

namespace quire::app {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Counts the tokens of all sequences, and how many sequences have begun.
class CountingSink final : public EventSink {
 public:
  void on_event(const TokenEvent& event) override {
    if (event.finish_reason == FinishReason::kError && error_.is_ok()) error_ = event.error;
    if (event.finish_reason != FinishReason::kNone) ++num_finished_;
    if (event.token_ids.empty()) return;
    num_tokens_ += static_cast<int64_t>(event.token_ids.size());
    if (std::find(begun_.begin(), begun_.end(), event.request_id) == begun_.end()) begun_.push_back(event.request_id);
  }

  int64_t num_tokens() const { return num_tokens_; }
  int num_begun() const { return static_cast<int>(begun_.size()); }
  int num_finished() const { return num_finished_; }
  const Status& error() const { return error_; }

 private:
  int64_t num_tokens_ = 0;
  int num_finished_ = 0;
  std::vector<RequestId> begun_;
  Status error_;
};

Result<std::vector<RequestId>> submit(Engine& engine, const BenchCell& cell, int64_t max_tokens, uint64_t seed,
                                      const std::shared_ptr<CountingSink>& sink) {
  std::mt19937_64 random(seed);
  // The first ids of a vocabulary are control tokens in most models; the rest is as good as any text for timing.
  std::uniform_int_distribution<int32_t> any_token(static_cast<int32_t>(engine.limits().vocab_size / 16),
                                                   static_cast<int32_t>(engine.limits().vocab_size - 1));
  std::vector<RequestId> ids;
  std::vector<int32_t> shared_prompt;
  for (int i = 0; i < cell.batch_size; ++i) {
    std::vector<int32_t> prompt = shared_prompt;
    if (prompt.empty()) {
      prompt.resize(static_cast<size_t>(cell.prompt_len));
      for (int32_t& token : prompt) token = any_token(random);
    }
    if (cell.is_prompt_shared) shared_prompt = prompt;
    SamplingParams sampling = cell.sampling;
    sampling.max_tokens = max_tokens;
    sampling.n = 1;
    ASSIGN_OR_RETURN(const RequestId id, engine.add_request(Request::from_tokens(std::move(prompt), sampling, sink)));
    ids.push_back(id);
  }
  return ids;
}

double useful_share(const EngineStats& stats) {
  return stats.num_steps > 0 ? stats.kv_useful_share_sum / static_cast<double>(stats.num_steps) : 0.0;
}

// Why the sequences of a cell do not all decode at one time.
Status do_not_run_at_once(const Engine& engine, const BenchCell& cell, int64_t max_tokens) {
  const MemoryPlan& plan = engine.memory_plan();
  const std::string what = "the " + std::to_string(cell.batch_size) + " sequences of this batch do not run at once: ";
  if (cell.batch_size > plan.max_num_seqs) return resource_exhausted(what + "raise --max-num-seqs");
  const int64_t num_prompts = cell.is_prompt_shared ? 1 : cell.batch_size;
  const int64_t num_tokens = num_prompts * cell.prompt_len + cell.batch_size * max_tokens;
  if (num_tokens > int64_t{plan.num_pages} * plan.page_size) {
    return resource_exhausted(what + "raise --kv-cache-memory, or lower --batch-sizes or the lengths");
  }
  return resource_exhausted(what + "the first end before the last prompt is read, " +
                            std::to_string(plan.max_num_batched_tokens) +
                            " tokens a step at most: raise --max-num-batched-tokens");
}

}  // namespace

Result<BenchTimes> run_bench_cell(Engine& engine, const BenchCell& cell, uint64_t seed) {
  const int64_t context = engine.limits().max_model_len;
  if (cell.prompt_len + cell.gen_len > context) {
    return invalid_argument(std::to_string(cell.prompt_len) + " prompt tokens and " + std::to_string(cell.gen_len) +
                            " generated ones are more than the context of " + std::to_string(context) +
                            " tokens: lower --prompt-lens or --gen-lens, or raise what limits it: --max-model-len, up "
                            "to what the model allows, or --kv-cache-memory");
  }
  engine.clear_prefix_cache();
  engine.reset_stats();
  BenchTimes times;
  auto sink = std::make_shared<CountingSink>();

  // Sequences that are ahead decode while others are still in prefill, so those tokens are counted out of both figures:
  // the prefill time is that of requests of one token each.
  ASSIGN_OR_RETURN(std::vector<RequestId> ids, submit(engine, cell, 1, seed, sink));
  Clock::time_point begin = Clock::now();
  while (engine.has_work()) {
    RETURN_IF_ERROR(engine.step());
    ++times.num_prefill_steps;
  }
  RETURN_IF_ERROR(sink->error());
  times.prefill_tok_s = static_cast<double>(cell.batch_size * cell.prompt_len) / seconds_since(begin);

  // Decode: once all are known to have begun, gen_len steps. The first to begin is num_prefill_steps tokens ahead by
  // then, and one more, as a step's tokens are told while the next one runs. None may end before the last step has.
  const int64_t num_ahead = times.num_prefill_steps + 1;
  times.num_decode_steps = std::min(cell.gen_len, context - cell.prompt_len - num_ahead);
  if (times.num_decode_steps <= 0) {
    times.num_decode_steps = 0;
    times.kv_useful_share = useful_share(engine.stats());
    return times;
  }
  engine.clear_prefix_cache();
  sink = std::make_shared<CountingSink>();
  ASSIGN_OR_RETURN(ids, submit(engine, cell, times.num_decode_steps + num_ahead, seed + 1, sink));
  while (engine.has_work() && sink->num_begun() < cell.batch_size && sink->num_finished() == 0)
    RETURN_IF_ERROR(engine.step());
  RETURN_IF_ERROR(sink->error());
  if (sink->num_begun() < cell.batch_size || engine.stats().num_running < cell.batch_size) {
    return do_not_run_at_once(engine, cell, times.num_decode_steps + num_ahead);
  }
  const int64_t num_tokens_before = sink->num_tokens();
  begin = Clock::now();
  for (int64_t i = 0; i < times.num_decode_steps; ++i) RETURN_IF_ERROR(engine.step());
  const double decode_seconds = seconds_since(begin);
  if (engine.stats().num_preemptions > 0) {
    return resource_exhausted(
        "the KV pages ran out, so that sequences gave way while being measured: raise --kv-cache-memory, or lower "
        "--batch-sizes or the lengths");
  }
  times.decode_tok_s = static_cast<double>(sink->num_tokens() - num_tokens_before) / decode_seconds;
  RETURN_IF_ERROR(sink->error());

  for (const RequestId id : ids) engine.abort(id);
  while (engine.has_work()) RETURN_IF_ERROR(engine.step());
  times.kv_useful_share = useful_share(engine.stats());
  return times;
}

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  const double median = values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
  return {median, values.front(), values.back()};
}

}  // namespace quire::app

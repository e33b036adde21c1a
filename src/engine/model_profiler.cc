// Measuring steps. Their rows read page 0 again and again, and write nothing.
#include "engine/model_profiler.h"

#include <algorithm>
#include <chrono>

namespace quire {

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
// Contexts past this are extrapolated.
constexpr int64_t kLongestContext = 16384;
// A CPU might take a minute for the largest step: it runs small ones and draws lines through them.
constexpr int kCpuTokens = 8;
constexpr int kCpuRateTokens = 512;
constexpr int kGpuRateTokens = 2048;
// Long enough for the clock, and for a step to be past its fixed costs.
constexpr double kTellingSeconds = 0.05;
constexpr int kNumRepeats = 2;
// Tokens before the chunk that is read: attention over them is a part of the time.
constexpr int64_t kTypicalContext = 1024;

bool is_cpu(const Ops& ops) {
  return ops.device().kind == DeviceKind::kCpu;
}

struct StepShape {
  int64_t num_tokens = 0;
  int64_t num_logit_rows = 0;
  int64_t num_hidden_rows = 0;
};

// More than a decoder's forward can need of scratch for its activations, from the sizes alone.
int64_t activation_bound(const ModelConfig& config, const StepShape& shape) {
  const int64_t floats_per_token =
      12 * config.hidden_size + 4 * config.intermediate_size + 4 * (config.query_size() + 2 * config.kv_size());
  const int64_t floats_per_logit_row = config.vocab_size + 4 * config.hidden_size;
  return 4 * (shape.num_tokens * floats_per_token + shape.num_logit_rows * floats_per_logit_row +
              shape.num_hidden_rows * 8 * config.hidden_size) +
         64 * kMiB;
}

}  // namespace

Result<std::vector<std::unique_ptr<AttentionPlan>>> create_attention_plans(Ops& ops, const Model& model,
                                                                           std::span<const KvGroup> groups,
                                                                           const StepBounds& bounds) {
  std::vector<std::unique_ptr<AttentionPlan>> plans;
  for (const KvGroup& group : groups) {
    ASSIGN_OR_RETURN(auto plan,
                     ops.create_attention_plan({.num_heads = model.config().num_heads,
                                                .num_kv_heads = group.num_kv_heads,
                                                .head_dim = group.head_dim,
                                                .page_size = bounds.page_size,
                                                .window = group.window,
                                                .kv_dtype = group.dtype,
                                                .max_num_tokens = bounds.max_num_tokens,
                                                .max_num_sequences = bounds.max_num_rows + bounds.num_extra_parts,
                                                .max_context = bounds.max_context}));
    plans.push_back(std::move(plan));
  }
  return plans;
}

Result<StepOutput> run_forward(Ops& ops, const Model& model, StepBatch& batch, const StepMemory& memory) {
  StepContext context{.ops = ops,
                      .op_context = OpContext{memory.arena},
                      .layer_kv = memory.cache.layer_kv(),
                      .layer_group = memory.cache.layer_group()};
  for (size_t g = 0; g < memory.attention_plans.size(); ++g) {
    batch.kv_groups[g].plan = memory.attention_plans[g].get();
    ops.plan_attention(context.op_context, *memory.attention_plans[g], batch.kv_groups[g].batch);
  }
  return model.forward(context, batch);
}

StepBounds ModelProfiler::scratch_bounds(const Ops& ops, const StepBounds& bounds) {
  const int most = is_cpu(ops) ? kCpuTokens : bounds.max_num_tokens;
  StepBounds profiled = bounds;
  profiled.max_context = std::min(bounds.max_context, kLongestContext);
  profiled.max_num_rows = std::min({bounds.max_num_rows, bounds.max_logit_rows, most});
  profiled.max_logit_rows = profiled.max_num_rows;
  // Many sequences may fill a step that is longer than any of them.
  const int64_t most_in_rows = bounds.max_context * (is_cpu(ops) ? 1 : profiled.max_num_rows);
  const int64_t num_tokens = std::min<int64_t>({bounds.max_num_tokens, most, most_in_rows});
  profiled.max_num_tokens = std::max(static_cast<int>(num_tokens), profiled.max_num_rows);
  return profiled;
}

StepBounds ModelProfiler::rate_bounds(const Ops& ops, const StepBounds& bounds) {
  const int64_t most = is_cpu(ops) ? kCpuRateTokens : kGpuRateTokens;
  const int64_t asked_for = bounds.max_num_tokens > 0 ? bounds.max_num_tokens : most;
  const int num_tokens = static_cast<int>(std::min({most, asked_for, bounds.max_context}));
  return {.max_num_tokens = num_tokens,
          .max_num_rows = 1,
          .max_logit_rows = 1,
          .max_context = std::min(num_tokens + kTypicalContext, bounds.max_context),
          .page_size = bounds.page_size};
}

Result<std::unique_ptr<ModelProfiler>> ModelProfiler::create(Ops& ops, const Model& model,
                                                             std::span<const KvGroup> groups,
                                                             const StepBounds& bounds) {
  std::unique_ptr<ModelProfiler> profiler(new ModelProfiler(ops, model, bounds));
  ASSIGN_OR_RETURN(profiler->attention_plans_, create_attention_plans(ops, model, groups, bounds));
  const BatchLimits limits = {.max_num_tokens = bounds.max_num_tokens,
                              .max_num_rows = bounds.max_num_rows,
                              .max_output_rows = bounds.max_logit_rows + bounds.max_num_tokens,
                              .max_pages_per_sequence = (bounds.max_context + bounds.page_size - 1) / bounds.page_size,
                              .num_kv_groups = static_cast<int>(groups.size())};
  ASSIGN_OR_RETURN(profiler->builder_, BatchBuilder::create(ops, limits));
  ASSIGN_OR_RETURN(DeviceBuffer page, ops.allocate(KvCache::page_bytes(groups, bounds.page_size), "a KV page"));
  profiler->cache_ = std::make_unique<KvCache>(std::move(page), groups, bounds.page_size, 1);
  const StepShape largest = {.num_tokens = bounds.max_num_tokens,
                             .num_logit_rows = bounds.max_logit_rows,
                             .num_hidden_rows = bounds.max_num_tokens};
  ASSIGN_OR_RETURN(DeviceBuffer block,
                   ops.allocate(2 * activation_bound(model.config(), largest), "the scratch of the profiling step"));
  profiler->arena_ = std::make_unique<Arena>(std::move(block));
  return profiler;
}

Status ModelProfiler::run(const BatchBuilder::ProfileShape& shape) {
  arena_->reset();
  OpContext context{*arena_};
  StepBatch& batch = builder_->build_profile(context, shape, bounds_.page_size);
  RETURN_IF_ERROR(run_forward(ops_, model_, batch, {*arena_, *cache_, attention_plans_}).status());
  ops_.synchronize(context);
  return ok_status();
}

Result<double> ModelProfiler::measure_prefill_rate() {
  double best_rate = 0.0;
  for (int num_tokens = std::min(kCpuTokens, bounds_.max_num_tokens);;
       num_tokens = std::min(2 * num_tokens, bounds_.max_num_tokens)) {
    const BatchBuilder::ProfileShape shape = {
        .tokens_per_row = num_tokens,
        .context_length = std::min<int64_t>(num_tokens + kTypicalContext, bounds_.max_context)};
    if (best_rate == 0.0) RETURN_IF_ERROR(run(shape));  // the first time memory is touched does not count
    double seconds = 0.0;
    for (int i = 0; i < kNumRepeats; ++i) {  // somebody else may have the processor for a while
      const auto begin = std::chrono::steady_clock::now();
      RETURN_IF_ERROR(run(shape));
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      best_rate = std::max(best_rate, num_tokens / std::max(seconds, 1e-9));
    }
    if (seconds >= kTellingSeconds || num_tokens == bounds_.max_num_tokens) return best_rate;
  }
}

// A GPU runs the largest step. A CPU runs small ones: scratch grows with tokens and logit rows, each by itself; the
// scratch of its attention is in the plan, whatever the context.
Status ModelProfiler::measure_scratch() {
  const int num_rows = bounds_.max_num_rows;
  const int num_tokens = static_cast<int>(std::min<int64_t>(bounds_.max_num_tokens, bounds_.max_context));
  const auto peak_after = [this](const BatchBuilder::ProfileShape& shape) -> Result<int64_t> {
    RETURN_IF_ERROR(run(shape));
    return arena_->peak_bytes();
  };
  // Rising in every direction, so that the peak after each is its own.
  ASSIGN_OR_RETURN(peaks_.one_token, peak_after({}));
  if (!is_cpu(ops_)) RETURN_IF_ERROR(run({.context_length = bounds_.max_context}));
  ASSIGN_OR_RETURN(peaks_.many_tokens,
                   peak_after({.tokens_per_row = num_tokens, .context_length = num_tokens, .is_pooled = true}));
  ASSIGN_OR_RETURN(peaks_.many_rows, peak_after({.num_rows = num_rows}));
  if (is_cpu(ops_)) return ok_status();
  const int tokens_per_row = std::max(1, bounds_.max_num_tokens / num_rows);  // at most max_context: scratch_bounds
  ASSIGN_OR_RETURN(peaks_.largest, peak_after({.num_rows = num_rows,
                                               .tokens_per_row = tokens_per_row,
                                               .context_length = tokens_per_row,
                                               .is_pooled = true}));
  return ok_status();
}

int64_t ModelProfiler::scratch_bytes(const StepBounds& bounds) const {
  if (!is_cpu(ops_)) {
    // More logit rows than sequences may be wanted, and rows of equal length leave up to a token of each.
    return peaks_.largest +
           activation_bound(model_.config(), {.num_tokens = bounds_.max_num_tokens % bounds_.max_num_rows,
                                              .num_logit_rows = bounds.max_logit_rows - bounds_.max_num_rows});
  }
  const int num_tokens = static_cast<int>(std::min<int64_t>(bounds_.max_num_tokens, bounds_.max_context));
  const auto slope = [](int64_t high, int64_t low, int count) {
    return count > 1 ? static_cast<double>(high - low) / (count - 1) : 0.0;
  };
  const double estimate = static_cast<double>(peaks_.one_token) +
                          slope(peaks_.many_tokens, peaks_.one_token, num_tokens) * bounds.max_num_tokens +
                          slope(peaks_.many_rows, peaks_.one_token, bounds_.max_num_rows) * bounds.max_logit_rows;
  const int64_t bound = activation_bound(model_.config(), {.num_tokens = bounds.max_num_tokens,
                                                           .num_logit_rows = bounds.max_logit_rows,
                                                           .num_hidden_rows = bounds.max_num_tokens}) -
                        64 * kMiB;
  return std::max(static_cast<int64_t>(estimate), bound / 4);
}

}  // namespace quire

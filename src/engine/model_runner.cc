// Sizing everything at start, and running a step.
#include "engine/model_runner.h"

#include <algorithm>
#include <chrono>

#include "ops/host_memory.h"

namespace quire {

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

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

Result<std::unique_ptr<ModelRunner>> ModelRunner::create(Ops& ops, const Model& model,
                                                         const ModelRunnerConfig& config) {
  std::unique_ptr<ModelRunner> runner(new ModelRunner(ops, model, config));
  RETURN_IF_ERROR(runner->init());
  return runner;
}

Status ModelRunner::init() {
  kv_groups_ = model_.kv_groups(config_.kv_dtype);
  RETURN_IF_ERROR(KvCache::validate_groups(kv_groups_, model_.config().num_layers));
  for (const KvGroup& group : kv_groups_) {
    ASSIGN_OR_RETURN(auto plan, ops_.create_attention_plan({.num_heads = model_.config().num_heads,
                                                            .num_kv_heads = group.num_kv_heads,
                                                            .head_dim = group.head_dim,
                                                            .page_size = config_.page_size,
                                                            .window = group.window,
                                                            .max_num_tokens = config_.max_num_batched_tokens,
                                                            .max_num_sequences = config_.max_num_seqs}));
    attention_plans_.push_back(std::move(plan));
  }
  ASSIGN_OR_RETURN(const int64_t arena_bytes, profile());

  MemoryPlanInput input;
  input.available_bytes = config_.available_bytes;
  input.weight_bytes = model_.weight_bytes();
  input.scratch_bytes = arena_bytes;
  input.page_bytes = KvCache::page_bytes(kv_groups_, config_.page_size);
  input.page_size = config_.page_size;
  input.num_kv_groups = static_cast<int>(kv_groups_.size());
  for (const KvGroup& group : kv_groups_) input.kv_bytes_per_token += group.bytes_per_token();
  input.kv_cache_memory_bytes = config_.kv_cache_memory_bytes;
  input.memory_share = config_.memory_share;
  input.swap_space_bytes = config_.swap_space_bytes;
  input.available_host_bytes = available_host_bytes();
  input.is_on_host = is_on_cpu();
  input.most_kv_bytes = config_.most_kv_bytes;
  input.requested_max_model_len = config_.max_model_len;
  input.model_max_context = model_.config().max_context;
  input.max_num_seqs = config_.max_num_seqs;
  input.pages_of_sequence = [this](int64_t num_tokens) {
    int64_t total = 0;
    for (const int window : group_windows()) {
      total += PageTable::max_pages(num_tokens, config_.page_size, window, config_.max_num_batched_tokens);
    }
    return total;
  };
  ASSIGN_OR_RETURN(memory_plan_, plan_memory(input));

  // On the CPU untouched memory costs nothing, so the arena may be larger than what was measured on small steps.
  const int64_t capacity = is_on_cpu() ? 2 * arena_bytes + 64 * kMiB : arena_bytes;
  ASSIGN_OR_RETURN(DeviceBuffer scratch, ops_.allocate(capacity, "the scratch of a step"));
  arena_ = std::make_unique<Arena>(std::move(scratch));
  const BatchLimits limits = {
      .max_num_tokens = config_.max_num_batched_tokens,
      .max_num_rows = config_.max_num_seqs,
      .max_output_rows = config_.max_logit_rows + config_.max_num_batched_tokens,
      .max_pages_per_sequence = (memory_plan_.max_model_len + config_.page_size - 1) / config_.page_size,
      .num_kv_groups = static_cast<int>(kv_groups_.size())};
  ASSIGN_OR_RETURN(batch_builder_, BatchBuilder::create(ops_, limits));
  ASSIGN_OR_RETURN(DeviceBuffer pages, ops_.allocate(memory_plan_.kv_bytes, "KV pages"));
  kv_cache_ = std::make_unique<KvCache>(std::move(pages), kv_groups_, config_.page_size, memory_plan_.num_pages);
  if (memory_plan_.num_swap_pages > 0) {
    ASSIGN_OR_RETURN(swap_memory_, ops_.allocate_for_host(memory_plan_.swap_bytes, "the swap space (--swap-space)"));
    measure_swapping();
  }
  page_copies_.reserve(static_cast<size_t>(config_.max_num_seqs) * kv_groups_.size());
  if (!is_on_cpu()) {
    const int64_t num_bytes = int64_t{config_.max_logit_rows} * model_.config().vocab_size * int64_t{sizeof(float)};
    ASSIGN_OR_RETURN(host_logits_, ops_.allocate_for_host(num_bytes, "the logits of a step"));
    const int64_t num_floats = int64_t{config_.max_num_batched_tokens} * model_.config().hidden_size;
    ASSIGN_OR_RETURN(host_hidden_, ops_.allocate_for_host(num_floats * int64_t{sizeof(float)}, "hidden states"));
    hidden_floats_.resize(static_cast<size_t>(num_floats));
  }
  return ok_status();
}

std::vector<int> ModelRunner::group_windows() const {
  std::vector<int> windows;
  for (const KvGroup& group : kv_groups_) windows.push_back(group.kind == KvKind::kSlidingWindow ? group.window : 0);
  return windows;
}

// How much scratch the largest step takes. A GPU runs that very step. A CPU, where it could take a minute, runs small
// steps and draws the line through them: scratch grows with tokens, logit rows and context, each by itself.
Result<int64_t> ModelRunner::profile() {
  const int64_t model_context = std::max<int64_t>(model_.config().max_context, 1);
  const int64_t context = config_.max_model_len > 0 ? std::min(config_.max_model_len, model_context) : model_context;
  const int most = is_on_cpu() ? 8 : config_.max_num_batched_tokens;
  const int num_tokens = static_cast<int>(std::min<int64_t>({config_.max_num_batched_tokens, most, context}));
  const int num_rows = std::min({config_.max_num_seqs, config_.max_logit_rows, most});
  const int64_t profiled_context = std::min<int64_t>(context, 16384);

  const BatchLimits limits = {.max_num_tokens = std::max(num_tokens, num_rows),
                              .max_num_rows = num_rows,
                              .max_output_rows = num_rows + std::max(num_tokens, num_rows),
                              .max_pages_per_sequence = (profiled_context + config_.page_size - 1) / config_.page_size,
                              .num_kv_groups = static_cast<int>(kv_groups_.size())};
  ASSIGN_OR_RETURN(auto builder, BatchBuilder::create(ops_, limits));
  ASSIGN_OR_RETURN(DeviceBuffer page, ops_.allocate(KvCache::page_bytes(kv_groups_, config_.page_size), "a KV page"));
  const KvCache cache(std::move(page), kv_groups_, config_.page_size, 1);
  ASSIGN_OR_RETURN(
      DeviceBuffer block,
      ops_.allocate(2 * activation_bound(model_.config(), {limits.max_num_tokens, num_rows, limits.max_num_tokens}),
                    "the scratch of the profiling step"));
  Arena arena(std::move(block));
  Status failure;
  const auto measure = [&](const BatchBuilder::ProfileShape& shape) {
    arena.reset();
    const int64_t before = arena.peak_bytes();
    OpContext context_of_step{arena};
    StepBatch& batch = builder->build_profile(context_of_step, shape, config_.page_size);
    if (const auto output = forward(batch, arena, cache); !output.is_ok()) failure = output.status();
    ops_.synchronize(context_of_step);
    return std::max(before, arena.peak_bytes());
  };
  // Rising in every direction, so that the peak after each is its own.
  const double one = static_cast<double>(measure({}));
  const double long_context = static_cast<double>(measure({.context_length = profiled_context}));
  const double tokens =
      static_cast<double>(measure({.tokens_per_row = num_tokens, .context_length = num_tokens, .is_pooled = true}));
  const double rows = static_cast<double>(measure({.num_rows = num_rows}));
  RETURN_IF_ERROR(failure);
  if (!is_on_cpu()) {
    const int tokens_per_row = std::max(1, num_tokens / num_rows);
    const int64_t full = measure({.num_rows = num_rows,
                                  .tokens_per_row = tokens_per_row,
                                  .context_length = std::max<int64_t>(tokens_per_row, 1),
                                  .is_pooled = true});
    RETURN_IF_ERROR(failure);
    // More logit rows than sequences may be wanted.
    return full +
           activation_bound(model_.config(), {.num_tokens = 0, .num_logit_rows = config_.max_logit_rows - num_rows});
  }

  const auto slope = [](double high, double low, double count) { return count > 1 ? (high - low) / (count - 1) : 0.0; };
  const double estimate = one + slope(tokens, one, num_tokens) * config_.max_num_batched_tokens +
                          slope(rows, one, num_rows) * config_.max_logit_rows +
                          (long_context - one) * static_cast<double>(context) / static_cast<double>(profiled_context);
  const int64_t bound = activation_bound(model_.config(), {config_.max_num_batched_tokens, config_.max_logit_rows,
                                                           config_.max_num_batched_tokens}) -
                        64 * kMiB;
  return std::max(static_cast<int64_t>(estimate), bound / 4);
}

Result<StepOutput> ModelRunner::forward(StepBatch& batch, Arena& arena, const KvCache& cache) {
  StepContext context{
      .ops = ops_, .op_context = OpContext{arena}, .layer_kv = cache.layer_kv(), .layer_group = cache.layer_group()};
  for (size_t g = 0; g < attention_plans_.size(); ++g) {
    batch.kv_groups[g].plan = attention_plans_[g].get();
    ops_.plan_attention(context.op_context, *attention_plans_[g], batch.kv_groups[g].batch);
  }
  return model_.forward(context, batch);
}

Result<ModelRunner::Output> ModelRunner::run(const StepPlan& plan) {
  CHECK(plan.num_tokens > 0);
  arena_->reset();
  OpContext context{*arena_};
  copy_pages(context, plan);
  StepBatch& batch = batch_builder_->build(context, plan);
  ASSIGN_OR_RETURN(const StepOutput output, forward(batch, *arena_, *kv_cache_));
  const TensorView& logits = output.logits;
  CHECK(logits.size(0) == plan.num_logit_rows);
  CHECK(logits.is_contiguous());
  CHECK(output.hidden.size(0) == plan.num_hidden_rows);
  const void* host_logits = logits.raw_data();
  if (!is_on_cpu()) {
    ops_.copy_to_host(context, host_logits_.data(), logits.raw_data(), logits.num_elements() * 4);
    host_logits = host_logits_.data();
  }
  ops_.synchronize(context);
  Output on_host;
  on_host.logits = {static_cast<const float*>(host_logits), static_cast<size_t>(logits.num_elements())};
  if (plan.num_hidden_rows > 0) on_host.hidden = hidden_floats(context, output.hidden);
  return on_host;
}

void ModelRunner::copy_pages(const StepPlan& plan) {
  OpContext context{*arena_};
  copy_pages(context, plan);
  ops_.synchronize(context);
}

// In the plan's order: a page that is copied out may be written by what comes later.
void ModelRunner::copy_pages(OpContext& context, const StepPlan& plan) {
  const int64_t page_bytes = kv_cache_->page_bytes();
  const auto at = [page_bytes](void* base, int32_t page) { return static_cast<char*>(base) + page * page_bytes; };
  for (const SwapCopy& copy : plan.swap_outs) {
    ops_.copy_to_host(context, at(swap_memory_.data(), copy.host_page.page()), at(kv_cache_->base(), copy.device_page),
                      page_bytes);
  }
  for (const SwapCopy& copy : plan.swap_ins) {
    ops_.copy_to_device(context, at(kv_cache_->base(), copy.device_page),
                        at(swap_memory_.data(), copy.host_page.page()), page_bytes);
  }
  if (plan.copies.empty()) return;
  page_copies_.clear();
  for (const PageCopyRequest& copy : plan.copies) page_copies_.push_back({copy.from.page(), copy.to});
  ops_.copy_pages(context, kv_cache_->base(), page_bytes, page_copies_);
}

// How fast pages are copied out and in, for the choice between swapping and computing again. The pages hold nothing
// yet.
void ModelRunner::measure_swapping() {
  constexpr int64_t kMostBytes = 32 * kMiB;
  const int64_t page_bytes = kv_cache_->page_bytes();
  const int num_pages = static_cast<int>(std::min<int64_t>(
      {kv_cache_->num_pages(), memory_plan_.num_swap_pages, std::max<int64_t>(kMostBytes / page_bytes, 1)}));
  OpContext context{*arena_};
  const auto copy_all = [&] {
    for (int page = 0; page < num_pages; ++page) {
      char* device = static_cast<char*>(kv_cache_->base()) + page * page_bytes;
      char* host = static_cast<char*>(swap_memory_.data()) + page * page_bytes;
      ops_.copy_to_host(context, host, device, page_bytes);
      ops_.copy_to_device(context, device, host, page_bytes);
    }
    ops_.synchronize(context);
  };
  copy_all();  // the first time memory is touched does not count
  const auto begin = std::chrono::steady_clock::now();
  copy_all();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  swap_bytes_per_second_ = 2.0 * static_cast<double>(num_pages * page_bytes) / std::max(seconds, 1e-9);
}

// The step has ended.
std::span<const float> ModelRunner::hidden_floats(OpContext& context, const TensorView& hidden) {
  CHECK(hidden.is_contiguous());
  const size_t num_elements = static_cast<size_t>(hidden.num_elements());
  const void* data = hidden.raw_data();
  if (!is_on_cpu()) {
    ops_.copy_to_host(context, host_hidden_.data(), data, hidden.num_elements() * dtype_bytes(hidden.dtype()));
    ops_.synchronize(context);
    data = host_hidden_.data();
  }
  if (hidden.dtype() == DType::kF32) return {static_cast<const float*>(data), num_elements};
  CHECK(hidden.dtype() == DType::kF16 || hidden.dtype() == DType::kBF16);
  const auto to_float = hidden.dtype() == DType::kF16 ? f16_to_f32 : bf16_to_f32;
  hidden_floats_.resize(std::max(hidden_floats_.size(), num_elements));
  const uint16_t* bits = static_cast<const uint16_t*>(data);
  std::transform(bits, bits + num_elements, hidden_floats_.begin(), to_float);
  return std::span<const float>(hidden_floats_).first(num_elements);
}

}  // namespace quire

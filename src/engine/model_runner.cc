// Sizing everything at start, and running a step.
#include "engine/model_runner.h"

#include <algorithm>
#include <chrono>

#include "engine/device_sampler.h"
#include "engine/step_budget.h"
#include "ops/host_memory.h"

namespace quire {

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
// Of the KV pages, what the scratch of steps that are larger than the first ones may take in their place.
constexpr int64_t kMostShareOfGrowth = 16;

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
  const int64_t model_context = std::max<int64_t>(model_.config().max_context, 1);
  StepBounds bounds = {
      .max_num_tokens = config_.max_num_batched_tokens,
      .max_num_rows = config_.max_num_seqs,
      .max_logit_rows = config_.max_logit_rows,
      .max_context = config_.max_model_len > 0 ? std::min(config_.max_model_len, model_context) : model_context,
      .page_size = config_.page_size,
      .num_extra_parts = config_.is_strict ? kMostExtraParts : 0};
  if (config_.max_num_batched_tokens == 0 || config_.swap_space_bytes > 0) {
    ASSIGN_OR_RETURN(const auto profiler,
                     ModelProfiler::create(ops_, model_, kv_groups_, ModelProfiler::rate_bounds(ops_, bounds)));
    ASSIGN_OR_RETURN(prefill_tokens_per_second_, profiler->measure_prefill_rate());
  }
  // What attention takes of a GPU's memory is a part of the plan.
  const bool is_step_known = !is_on_cpu() && config_.max_num_batched_tokens > 0;
  if (is_step_known) {
    ASSIGN_OR_RETURN(attention_plans_, create_attention_plans(ops_, model_, kv_groups_, bounds));
    for (const auto& plan : attention_plans_) attention_bytes_ += plan->device_bytes();
  }
  RETURN_IF_ERROR(plan_steps_and_memory(bounds));
  bounds.max_num_tokens = config_.max_num_batched_tokens;
  if (!is_step_known) {
    ASSIGN_OR_RETURN(attention_plans_, create_attention_plans(ops_, model_, kv_groups_, bounds));
  }

  // On the CPU untouched memory costs nothing, so the arena may be larger than what was measured on small steps.
  const int64_t scratch_bytes = memory_plan_.scratch_bytes - attention_bytes_ - config_.sampling_bytes;
  const int64_t capacity = is_on_cpu() ? 2 * scratch_bytes + 64 * kMiB : scratch_bytes;
  ASSIGN_OR_RETURN(DeviceBuffer scratch, ops_.allocate(capacity, "the scratch of a step"));
  arena_ = std::make_unique<Arena>(std::move(scratch));
  const BatchLimits limits = {
      .max_num_tokens = config_.max_num_batched_tokens,
      .max_num_rows = config_.max_num_seqs + bounds.num_extra_parts,
      .max_output_rows = config_.max_logit_rows + config_.max_num_batched_tokens,
      .max_pages_per_sequence = (memory_plan_.max_model_len + config_.page_size - 1) / config_.page_size,
      .num_kv_groups = static_cast<int>(kv_groups_.size()),
      .is_strict = config_.is_strict};
  ASSIGN_OR_RETURN(batch_builder_, BatchBuilder::create(ops_, limits));
  ASSIGN_OR_RETURN(DeviceBuffer pages, ops_.allocate(memory_plan_.kv_bytes, "KV pages"));
  kv_cache_ = std::make_unique<KvCache>(std::move(pages), kv_groups_, config_.page_size, memory_plan_.num_pages);
  if (memory_plan_.num_swap_pages > 0) {
    ASSIGN_OR_RETURN(swap_memory_, ops_.allocate_for_host(memory_plan_.swap_bytes, "the swap space (--swap-space)"));
    measure_swapping();
  }
  page_copies_.reserve(static_cast<size_t>(config_.max_num_seqs) * kv_groups_.size());
  if (is_on_cpu()) {
    step_thread_ = std::make_unique<StepThread>([this] { newest().output = compute(newest()); });
  } else {
    marks_ = create_work_marks(ops_, static_cast<int>(steps_.size()));
    const int64_t num_bytes = int64_t{config_.max_logit_rows} * model_.config().vocab_size * int64_t{sizeof(float)};
    ASSIGN_OR_RETURN(host_logits_, ops_.allocate_for_host(num_bytes, "the logits of a step"));
    const int64_t num_floats = int64_t{config_.max_num_batched_tokens} * model_.config().hidden_size;
    ASSIGN_OR_RETURN(host_hidden_, ops_.allocate_for_host(num_floats * int64_t{sizeof(float)}, "hidden states"));
    hidden_floats_.resize(static_cast<size_t>(num_floats));
  }
  return ok_status();
}

// Settles how large a step may ever be, and divides the memory.
Status ModelRunner::plan_steps_and_memory(StepBounds bounds) {
  int first = config_.max_num_batched_tokens;
  int largest = first;
  if (first == 0) {
    const StepBudget::Bounds budget = {
        .step_seconds = config_.step_seconds, .least = StepBudget::least_for(config_.max_num_seqs), .most = INT32_MAX};
    first = StepBudget::choose(budget, prefill_tokens_per_second_);
    largest = StepBudget::largest_for(first);
    memory_plan_.first_step_tokens = first;
  }
  bounds.max_num_tokens = largest;
  ASSIGN_OR_RETURN(const auto profiler,
                   ModelProfiler::create(ops_, model_, kv_groups_, ModelProfiler::scratch_bounds(ops_, bounds)));
  RETURN_IF_ERROR(profiler->measure_scratch());

  MemoryPlanInput input = memory_plan_input();
  const auto plan_for = [&](int num_tokens) {
    config_.max_num_batched_tokens = num_tokens;
    bounds.max_num_tokens = num_tokens;
    input.scratch_bytes = profiler->scratch_bytes(bounds) + attention_bytes_ + config_.sampling_bytes;
    return plan_memory(input);
  };
  ASSIGN_OR_RETURN(MemoryPlan plan, plan_for(first));
  // Steps that may become larger one day shall not cost the pages of today.
  for (int most = largest; most > first; most /= 2) {
    const Result<MemoryPlan> larger = plan_for(most);
    if (larger.is_ok() && larger.value().max_model_len == plan.max_model_len &&
        larger.value().scratch_bytes - plan.scratch_bytes <= plan.kv_bytes / kMostShareOfGrowth) {
      plan = larger.value();
      plan.max_num_batched_tokens = most;
      break;
    }
  }
  config_.max_num_batched_tokens = std::max(first, plan.max_num_batched_tokens);
  plan.max_num_batched_tokens = config_.max_num_batched_tokens;
  plan.first_step_tokens = memory_plan_.first_step_tokens;
  plan.max_num_seqs = config_.max_num_seqs;
  plan.prefill_tokens_per_second = prefill_tokens_per_second_;
  memory_plan_ = plan;
  return ok_status();
}

MemoryPlanInput ModelRunner::memory_plan_input() const {
  MemoryPlanInput input;
  input.available_bytes = config_.available_bytes;
  input.weight_bytes = model_.weight_bytes();
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
  return input;
}

std::vector<int> ModelRunner::group_windows() const {
  std::vector<int> windows;
  for (const KvGroup& group : kv_groups_) windows.push_back(group.kind == KvKind::kSlidingWindow ? group.window : 0);
  return windows;
}

void ModelRunner::plan_attention(OpContext& context, StepBatch& batch) {
  for (size_t g = 0; g < attention_plans_.size(); ++g) {
    batch.kv_groups[g].plan = attention_plans_[g].get();
    ops_.plan_attention(context, *attention_plans_[g], batch.kv_groups[g].batch);
  }
}

Result<StepOutput> ModelRunner::forward(StepBatch& batch, Arena& arena, const KvCache& cache) {
  StepContext context{
      .ops = ops_, .op_context = OpContext{arena}, .layer_kv = cache.layer_kv(), .layer_group = cache.layer_group()};
  return model_.forward(context, batch);
}

// Steps that only decode are padded to sizes that many of them share, and repeated as recordings.
BatchBuilder::Padding ModelRunner::padding_of(const StepPlan& plan) const {
  const int num_rows = static_cast<int>(plan.rows.size());
  bool is_decode = plan.num_tokens == num_rows && plan.num_logit_rows == num_rows && plan.num_hidden_rows == 0;
  if (config_.is_strict) {  // the last token of a prompt is no drawn one
    for (const StepRow& row : plan.rows) is_decode &= row.num_prompt_tokens() == 0;
  }
  BatchBuilder::Padding padding;
  if (is_decode && ops_.can_record()) {
    padding.num_rows = StepRecordings::padded_rows(num_rows, config_.max_num_seqs);
    const int64_t max_pages = (memory_plan_.max_model_len + config_.page_size - 1) / config_.page_size;
    padding.num_pages = StepRecordings::padded_pages(BatchBuilder::num_pages_of(plan), max_pages);
  }
  return padding;
}

Result<StepOutput> ModelRunner::compute(const Step& step) {
  OpContext context{*arena_};
  StepBatch& batch = *step.batch;
  plan_attention(context, batch);
  if (step.padding.num_rows == 0) return forward(batch, *arena_, *kv_cache_);

  StepRecordings::Shape shape = {.num_rows = step.padding.num_rows, .num_pages = step.padding.num_pages, .plans = {}};
  for (const auto& attention : attention_plans_) shape.plans.push_back(attention->shape());
  StepRecordings::Entry* entry = recordings_.find(shape);
  if (entry == nullptr || entry->was_refused) return forward(batch, *arena_, *kv_cache_);
  if (entry->recording == nullptr) {
    ops_.begin_recording(context);
    Result<StepOutput> output = forward(batch, *arena_, *kv_cache_);
    entry->recording = ops_.end_recording(context);
    RETURN_IF_ERROR(output.status());
    entry->output = output.value();
    if (entry->recording == nullptr) {
      entry->was_refused = true;
      arena_->reset();
      return forward(batch, *arena_, *kv_cache_);
    }
  }
  ops_.replay(context, *entry->recording);
  return entry->output;
}

void ModelRunner::begin(const StepPlan& plan) {
  CHECK(num_steps_ == 0);
  begin(plan, /*has_drawn_ids=*/false);
}

void ModelRunner::begin_behind(const StepPlan& plan) {
  CHECK(can_begin_behind());
  CHECK(!plan.has_copies());
  CHECK(plan.num_tokens == newest().num_logit_rows && plan.num_logit_rows == newest().num_logit_rows);
  begin(plan, /*has_drawn_ids=*/true);
}

void ModelRunner::begin(const StepPlan& plan, bool has_drawn_ids) {
  CHECK(plan.num_tokens > 0);
  arena_->reset();
  OpContext context{*arena_};
  copy_pages(context, plan);
  ++num_steps_;
  Step& step = newest();
  step.padding = padding_of(plan);
  step.batch = &batch_builder_->build(context, plan, step.padding, has_drawn_ids);
  step.num_logit_rows = plan.num_logit_rows;
  step.num_hidden_rows = plan.num_hidden_rows;
  step.sampler = nullptr;
  if (is_on_cpu()) {
    step_thread_->begin();
  } else {
    step.output = compute(step);
  }
}

// What the device samples and brings, enqueued behind the forward.
void ModelRunner::sample(DeviceSampler& sampler) {
  CHECK(!is_on_cpu());
  Step& step = newest();
  if (!step.output->is_ok()) return;
  step.sampler = &sampler;
  OpContext context{*arena_};
  const TensorView logits = step.output->value().logits.slice(0, 0, step.num_logit_rows);
  const int64_t row_bytes = logits.size(1) * static_cast<int64_t>(sizeof(float));
  for (const int row : sampler.host_rows()) {
    ops_.copy_to_host(context, static_cast<char*>(host_logits_.data()) + row * row_bytes,
                      static_cast<const char*>(logits.raw_data()) + row * row_bytes, row_bytes);
  }
  // The forward has read its token ids.
  if (step.num_logit_rows > 0) sampler.enqueue(context, logits, batch_builder_->token_ids(step.num_logit_rows));
  if (marks_ != nullptr) marks_->record(&step == steps_.data() ? 0 : 1);
}

Result<ModelRunner::Output> ModelRunner::finish() {
  CHECK(num_steps_ > 0);
  Step& step = steps_[static_cast<size_t>(first_step_)];
  if (is_on_cpu()) step_thread_->wait();
  RETURN_IF_ERROR(step.output->status());
  const StepOutput& output = step.output->value();
  CHECK(output.logits.size(0) >= step.num_logit_rows);  // padded rows come last
  CHECK(output.logits.is_contiguous());
  CHECK(output.hidden.size(0) == step.num_hidden_rows);
  OpContext context{*arena_};
  if (!is_on_cpu() && step.sampler == nullptr) {
    ops_.copy_to_host(context, host_logits_.data(), output.logits.raw_data(),
                      step.num_logit_rows * output.logits.size(1) * static_cast<int64_t>(sizeof(float)));
  }
  if (marks_ != nullptr && step.sampler != nullptr) {
    marks_->wait(first_step_);
  } else {
    ops_.synchronize(context);
  }
  if (step.sampler != nullptr && step.num_logit_rows > 0) step.sampler->finish(context);
  const size_t num_rows = static_cast<size_t>(step.num_logit_rows);
  const void* logits = is_on_cpu() ? output.logits.raw_data() : host_logits_.data();
  Output on_host;
  on_host.logits = {static_cast<const float*>(logits), num_rows * static_cast<size_t>(output.logits.size(1))};
  if (step.num_hidden_rows > 0) on_host.hidden = hidden_floats(context, output.hidden);
  first_step_ = (first_step_ + 1) % 2;
  --num_steps_;
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

void ModelRunner::read_page(int32_t page, std::span<std::byte> bytes) {
  CHECK(bytes.size() == static_cast<size_t>(kv_cache_->page_bytes()));
  OpContext context{*arena_};
  const char* data = static_cast<const char*>(kv_cache_->base()) + page * kv_cache_->page_bytes();
  ops_.copy_to_host(context, bytes.data(), data, kv_cache_->page_bytes());
  ops_.synchronize(context);
}

void ModelRunner::write_page(int32_t page, std::span<const std::byte> bytes) {
  CHECK(bytes.size() == static_cast<size_t>(kv_cache_->page_bytes()));
  OpContext context{*arena_};
  char* data = static_cast<char*>(kv_cache_->base()) + page * kv_cache_->page_bytes();
  ops_.copy_to_device(context, data, bytes.data(), kv_cache_->page_bytes());
  ops_.synchronize(context);
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

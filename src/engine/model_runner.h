// Runs a step on the device: copies shared pages, builds the batch, plans attention, calls the model, brings the logits
// to the host. Between begin and finish the device works and the caller is free: a GPU by itself, the CPU by a thread
// of the runner's. It owns what a step needs: the scratch arena, the KV memory, the attention plans; all of it is sized
// and taken at creation, after a profiling step has told what the largest step needs. Used by the engine, on its
// thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/batch_builder.h"
#include "engine/memory_plan.h"
#include "engine/model_profiler.h"
#include "engine/step_plan.h"
#include "engine/step_recordings.h"
#include "engine/step_thread.h"
#include "kv/kv_cache.h"
#include "models/model.h"
#include "ops/ops.h"
#include "ops/work_marks.h"
#include "tensor/arena.h"

namespace quire {

class DeviceSampler;

struct ModelRunnerConfig {
  int max_num_seqs = 32;
  int max_num_batched_tokens = 512;  // 0: a multiple of what a step of `step_seconds` reads of prompts now
  double step_seconds = 0.25;
  int max_logit_rows = 64;
  int64_t max_model_len = 0;  // 0: not said
  int page_size = 16;
  DType kv_dtype = DType::kF16;
  int64_t kv_cache_memory_bytes = 0;  // 0: by the share
  double memory_share = 0.0;
  int64_t most_kv_bytes = INT64_MAX;
  int64_t available_bytes = 0;
  bool is_strict = false;        // BackendOptions::is_strict
  int64_t swap_space_bytes = 0;  // of host memory, for pages of sequences that had to give way
  int64_t sampling_bytes = 0;    // of the device's memory, that others take
};

class ModelRunner {
 public:
  static Result<std::unique_ptr<ModelRunner>> create(Ops& ops, const Model& model, const ModelRunnerConfig& config);

  // Computes the plan's rows. What is wanted of them is on the host, valid until the next begin. An error means that
  // nothing can run any more.
  struct Output {
    std::span<const float> logits;  // [plan.num_logit_rows][vocab_size]; with sampling: the rows that are the host's
    std::span<const float> hidden;  // [plan.num_hidden_rows][hidden_size]
  };
  // begin has taken from the plan's sequences and tables all that it needs: they may change meanwhile. The plan's
  // copies stay until finish, which follows each begin. Where the device is not the host, and only there, sample may
  // come between them: it enqueues what the sampler has been told. Without it all logits come to the host.
  void begin(const StepPlan& plan);
  void sample(DeviceSampler& sampler);
  // The step that has begun first.
  Result<Output> finish();

  // A second step may begin behind one that has been sampled, before it has ended: with the same rows, of one token
  // each, which is what that step draws. To be sampled too; whatever it copies is for its own finish.
  bool can_begin_behind() const {
    return num_steps_ == 1 && steps_[static_cast<size_t>(first_step_)].sampler != nullptr;
  }
  void begin_behind(const StepPlan& plan);

  // Only the copies of a plan without rows; begin does them itself. Not while a step runs; likewise:
  void copy_pages(const StepPlan& plan);

  // The bytes of a page of the pool, between steps. For keeping pages on a disk.
  void read_page(int32_t page, std::span<std::byte> bytes);
  void write_page(int32_t page, std::span<const std::byte> bytes);

  const MemoryPlan& memory_plan() const { return memory_plan_; }
  std::span<const KvGroup> kv_groups() const { return kv_groups_; }
  std::vector<int> group_windows() const;
  // Of reading prompts; 0: it was not measured, since nothing goes by it.
  double prefill_tokens_per_second() const { return prefill_tokens_per_second_; }
  double swap_bytes_per_second() const { return swap_bytes_per_second_; }  // measured at start; 0: no swap space
  KvCache& kv_cache() { return *kv_cache_; }

 private:
  struct Step {
    StepBatch* batch = nullptr;
    BatchBuilder::Padding padding;
    int num_logit_rows = 0;
    int num_hidden_rows = 0;
    DeviceSampler* sampler = nullptr;
    std::optional<Result<StepOutput>> output;
  };

  ModelRunner(Ops& ops, const Model& model, const ModelRunnerConfig& config)
      : ops_(ops), model_(model), config_(config) {}
  Status init();
  Status plan_steps_and_memory(StepBounds bounds);
  MemoryPlanInput memory_plan_input() const;
  void measure_swapping();
  void copy_pages(OpContext& context, const StepPlan& plan);
  std::span<const float> hidden_floats(OpContext& context, const TensorView& hidden);
  void plan_attention(OpContext& context, StepBatch& batch);
  Result<StepOutput> forward(StepBatch& batch, Arena& arena, const KvCache& cache);
  BatchBuilder::Padding padding_of(const StepPlan& plan) const;
  Result<StepOutput> compute(const Step& step);
  void begin(const StepPlan& plan, bool has_drawn_ids);
  Step& newest() { return steps_[static_cast<size_t>((first_step_ + num_steps_ - 1) % 2)]; }
  bool is_on_cpu() const { return ops_.device().kind == DeviceKind::kCpu; }

  Ops& ops_;
  const Model& model_;
  ModelRunnerConfig config_;
  std::vector<KvGroup> kv_groups_;
  std::vector<std::unique_ptr<AttentionPlan>> attention_plans_;
  int64_t attention_bytes_ = 0;  // of the device, in the memory plan
  MemoryPlan memory_plan_;
  std::unique_ptr<BatchBuilder> batch_builder_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<KvCache> kv_cache_;
  std::vector<Ops::PageCopy> page_copies_;
  DeviceBuffer swap_memory_;  // host pages
  double swap_bytes_per_second_ = 0.0;
  double prefill_tokens_per_second_ = 0.0;
  StepRecordings recordings_;
  // The steps that run, from first_step_ on. The mark of each stands behind what brings its tokens to the host.
  std::array<Step, 2> steps_;
  int first_step_ = 0;
  int num_steps_ = 0;
  std::unique_ptr<WorkMarks> marks_;  // null where the ops compute at once
  DeviceBuffer host_logits_;          // where the device is not the host; likewise:
  DeviceBuffer host_hidden_;          // as the device has them
  std::vector<float> hidden_floats_;
  std::unique_ptr<StepThread> step_thread_;  // on the CPU; last: it uses all of the above
};

}  // namespace quire

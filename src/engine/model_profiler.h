// Runs steps over throwaway memory before the real memory is taken, to learn how much scratch a step needs and how long
// it takes. Used by engine/model_runner at start; gone before anything is served.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/batch_builder.h"
#include "kv/kv_cache.h"
#include "models/model.h"
#include "ops/ops.h"
#include "tensor/arena.h"

namespace quire {

// What bounds the steps that are to be served.
struct StepBounds {
  int max_num_tokens = 0;
  int max_num_rows = 0;  // sequences
  int max_logit_rows = 0;
  int64_t max_context = 0;
  int page_size = 16;
  int num_extra_parts = 0;  // of rows: StepPlan::num_extra_parts
};

Result<std::vector<std::unique_ptr<AttentionPlan>>> create_attention_plans(Ops& ops, const Model& model,
                                                                           std::span<const KvGroup> groups,
                                                                           const StepBounds& bounds);

// Plans the attention of the batch and calls the model.
struct StepMemory {
  Arena& arena;
  const KvCache& cache;
  std::span<const std::unique_ptr<AttentionPlan>> attention_plans;
};
Result<StepOutput> run_forward(Ops& ops, const Model& model, StepBatch& batch, const StepMemory& memory);

class ModelProfiler {
 public:
  // For steps up to these bounds.
  static Result<std::unique_ptr<ModelProfiler>> create(Ops& ops, const Model& model, std::span<const KvGroup> groups,
                                                       const StepBounds& bounds);

  // Prompt tokens a second: steps that double in size, until one takes long enough to tell or is the largest.
  Result<double> measure_prefill_rate();

  // How much scratch steps take. Then, of the largest step of `bounds`, at least what create() was given:
  Status measure_scratch();
  int64_t scratch_bytes(const StepBounds& bounds) const;

  // The bounds of a profiler for measure_scratch, and for measure_prefill_rate.
  static StepBounds scratch_bounds(const Ops& ops, const StepBounds& bounds);
  static StepBounds rate_bounds(const Ops& ops, const StepBounds& bounds);

 private:
  ModelProfiler(Ops& ops, const Model& model, const StepBounds& bounds) : ops_(ops), model_(model), bounds_(bounds) {}
  Status run(const BatchBuilder::ProfileShape& shape);

  Ops& ops_;
  const Model& model_;
  StepBounds bounds_;
  // Peaks of the steps that were run; each is as large as the one before in all that it does not name.
  struct ScratchPeaks {
    int64_t one_token = 0;
    int64_t many_tokens = 0;
    int64_t many_rows = 0;
    int64_t largest = 0;  // on a GPU
  };
  ScratchPeaks peaks_;
  std::vector<std::unique_ptr<AttentionPlan>> attention_plans_;
  std::unique_ptr<BatchBuilder> builder_;
  std::unique_ptr<KvCache> cache_;  // one page
  std::unique_ptr<Arena> arena_;
};

}  // namespace quire

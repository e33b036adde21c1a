// Turns a StepPlan into a StepBatch: the token ids, positions, page tables and slots of a step as tensors on the
// device. Everything is laid out in one block on the host and copied at once; both blocks are sized at start for the
// largest step. Called by engine/model_runner, once a step, on the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "engine/step_plan.h"
#include "layers/step_context.h"
#include "ops/ops.h"

namespace quire {

struct BatchLimits {
  int max_num_tokens = 0;
  int max_num_rows = 0;                // of attention: sequences of a step, and parts of them
  int max_output_rows = 0;             // logits and hidden states
  int64_t max_pages_per_sequence = 0;  // logical pages, those left behind included
  int num_kv_groups = 1;
  bool is_strict = false;  // a row's parts are rows of attention: StepRow::num_strict_parts
};

class BatchBuilder {
 public:
  static Result<std::unique_ptr<BatchBuilder>> create(Ops& ops, const BatchLimits& limits);

  // The batch borrows the builder's blocks: it is valid until the next build. A padded batch has more rows than the
  // plan (of one token each, which write nothing and see nothing) and wider page tables, so that its sizes are those of
  // other steps too.
  struct Padding {
    int num_rows = 0;       // 0: as the plan
    int64_t num_pages = 0;  // likewise
  };
  StepBatch& build(OpContext& context, const StepPlan& plan, const Padding& padding);
  // Columns that the page tables of a plan need.
  static int64_t num_pages_of(const StepPlan& plan);

  // A batch of equal rows over page 0, for profiling: each row computes `tokens_per_row` tokens at the end of a context
  // of `context_length`, and writes nothing. Wanted are the logits of each row's last token and, where `is_pooled`, the
  // hidden states of all tokens.
  struct ProfileShape {
    int num_rows = 1;
    int tokens_per_row = 1;
    int64_t context_length = 1;
    bool is_pooled = false;
  };
  StepBatch& build_profile(OpContext& context, const ProfileShape& profile, int page_size);

  int64_t num_bytes() const { return device_block_.num_bytes(); }

 private:
  // One array of the block.
  template <typename T>
  struct Section {
    T* host = nullptr;
    ConstTensorView device;
  };

  BatchBuilder(Ops& ops, const BatchLimits& limits, DeviceBuffer host_block, DeviceBuffer device_block);
  template <typename T>
  Section<T> take(int64_t rows, int64_t columns, bool is_matrix);
  void shape(int num_rows, int num_tokens, int num_output_rows, int64_t num_pages);
  void finish(OpContext& context, int num_rows, int num_tokens);
  int num_parts_of(const StepRow& row) const { return limits_.is_strict ? row.num_strict_parts() : 1; }

  Ops& ops_;
  BatchLimits limits_;
  DeviceBuffer host_block_;
  DeviceBuffer device_block_;
  int64_t used_bytes_ = 0;
  Section<int32_t> token_ids_;
  Section<int32_t> positions_;
  Section<int32_t> output_rows_;
  Section<int32_t> query_starts_;
  Section<int32_t> context_lengths_;
  std::vector<Section<int32_t>> page_tables_;  // a KV group each
  std::vector<Section<int64_t>> slots_;
  std::vector<uint8_t> is_prompt_;  // a row of attention each
  StepBatch batch_;
};

}  // namespace quire

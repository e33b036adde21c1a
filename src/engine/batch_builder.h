// Turns a StepPlan into a StepBatch: the token ids, positions, page tables and slots of a step as tensors on the
// device. Everything is laid out in one block on the host and copied at once; all blocks are sized at start for the
// largest step. Two blocks on the host take turns, so that a step can be laid out while the copy for the one before it
// may still be under way. Called by engine/model_runner, once a step, on the engine's thread.
#pragma once

#include <array>
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
  // `has_drawn_ids`: the token ids are on the device already, drawn by the step before, whose rows were the same.
  StepBatch& build(OpContext& context, const StepPlan& plan, const Padding& padding, bool has_drawn_ids = false);
  // Where the ids of a step's first tokens lie on the device, and those of the next step may be drawn to.
  TensorView token_ids(int64_t count) const { return TensorView(device_block_.data(), DType::kI32, {count}); }
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

  BatchBuilder(Ops& ops, const BatchLimits& limits, std::array<DeviceBuffer, 2> host_blocks, DeviceBuffer device_block);
  template <typename T>
  Section<T> take(int64_t rows, int64_t columns, bool is_matrix);
  void shape(int num_rows, int num_tokens, int num_output_rows, int64_t num_pages);
  void finish(OpContext& context, int num_rows, int num_tokens, int num_drawn_ids);
  int num_parts_of(const StepRow& row) const { return limits_.is_strict ? row.num_strict_parts() : 1; }

  Ops& ops_;
  BatchLimits limits_;
  std::array<DeviceBuffer, 2> host_blocks_;
  int host_block_ = 0;  // the one in use
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

// What one step of a model is given, and nothing else: no layer reaches for anything global. Made by
// engine/model_runner, read by models and layers on the thread that runs the step.
#pragma once

#include <span>
#include <vector>

#include "ops/ops.h"
#include "tensor/paged_kv.h"
#include "tensor/tensor.h"

namespace quire {

class Communicator;

// One KV group's view of the step.
struct StepKvGroup {
  AttentionBatch batch;
  AttentionPlan* plan = nullptr;
};

// The shaped inputs of a step: device tensors, built by engine/batch_builder.
struct StepBatch {
  int num_tokens = 0;
  ConstTensorView token_ids;   // [num_tokens] i32
  ConstTensorView positions;   // [num_position_axes, num_tokens] i32; one axis unless the model says otherwise
  ConstTensorView logit_rows;  // [num_logit_rows] i32: rows of the step whose logits are wanted
  std::vector<StepKvGroup> kv_groups;
};

struct StepContext {
  Ops& ops;
  OpContext op_context;                  // scratch arena and stream
  std::span<const PagedKv> layer_kv;     // per layer of the model: its K and V in the page pool
  std::span<const int> layer_group;      // per layer: index into StepBatch::kv_groups
  Communicator* communicator = nullptr;  // between the ranks that share the model; null where one rank holds it all
};

}  // namespace quire

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
  ConstTensorView token_ids;  // [num_tokens] i32
  ConstTensorView positions;  // [num_position_axes, num_tokens] i32; one axis unless the model says otherwise
  // [num_output_rows] i32: rows of the step that are wanted. Of the first ones the logits, of the last num_hidden_rows
  // the hidden states.
  ConstTensorView output_rows;
  int num_hidden_rows = 0;
  std::vector<StepKvGroup> kv_groups;
};

// What a step gives, in the scratch arena.
struct StepOutput {
  TensorView logits;  // [num_output_rows - num_hidden_rows, vocab_size] f32
  TensorView hidden;  // [num_hidden_rows, hidden_size], after the final norm, in the activations' dtype
};

struct StepContext {
  Ops& ops;
  OpContext op_context;                  // scratch arena and stream
  std::span<const PagedKv> layer_kv;     // per layer of the model: its K and V in the page pool
  std::span<const int> layer_group;      // per layer: index into StepBatch::kv_groups
  Communicator* communicator = nullptr;  // between the ranks that share the model; null where one rank holds it all
};

}  // namespace quire

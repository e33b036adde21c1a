// A loaded model: weights in a backend's layout and the forward pass over them. Made by models/load_model,
// used by engine/model_runner. One forward at a time; the object itself is constant after loading.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "kv/kv_group.h"
#include "layers/step_context.h"
#include "models/model_config.h"

namespace quire {

class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;

  // Which layers keep which KV. `dtype` is the chosen cache dtype.
  virtual std::vector<KvGroup> kv_groups(DType dtype) const = 0;

  // What activations between layers are stored as.
  virtual DType activation_dtype() const { return DType::kF32; }

  // Bytes of weights as they lie in memory.
  virtual int64_t weight_bytes() const = 0;

  // One step: embeds, runs all layers (writing this step's K and V to their slots), and returns the logits or hidden
  // states of the wanted rows, taken from context.op_context.scratch. The caller rewinds the arena. An error means that
  // the model is lost (a rank that it is spread over has gone): no later step can work.
  virtual Result<StepOutput> forward(StepContext& context, const StepBatch& batch) const = 0;
};

}  // namespace quire

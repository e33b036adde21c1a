// The decoder: embedding, layers of attention and MLP around a residual stream, logits. One forward for every
// ArchitectureSpec. Made by models/load_model; constant after that, but for the device's own state.
#pragma once

#include <memory>
#include <vector>

#include "layers/attention.h"
#include "layers/head.h"
#include "layers/mlp.h"
#include "models/architecture.h"
#include "models/model.h"
#include "tensor/device.h"

namespace quire {

struct DecoderLayer {
  ConstTensorView attention_norm;  // [hidden] f32
  AttentionLayer attention;
  ConstTensorView attention_post_norm;  // given with sandwich norms
  ConstTensorView mlp_norm;
  MlpLayer mlp;
  ConstTensorView mlp_post_norm;
  int rope_index = 0;  // which of DecoderParts::ropes
};

// Everything that a decoder is made of. Views point into `small_tensors`.
struct DecoderParts {
  ModelConfig config;
  DType activation_dtype = DType::kF32;
  Weight embedding;
  std::vector<DecoderLayer> layers;
  HeadLayer head;
  std::vector<RopeParams> ropes;  // one, or two where layers with a window have their own
  DeviceBuffer small_tensors;     // norms, biases, RoPE tables
  int num_kv_heads = 0;           // of this rank
  int64_t weight_bytes = 0;
};

class Decoder final : public Model {
 public:
  explicit Decoder(DecoderParts parts);

  const ModelConfig& config() const override { return parts_.config; }
  std::vector<KvGroup> kv_groups(DType dtype) const override;
  DType activation_dtype() const override { return parts_.activation_dtype; }
  int64_t weight_bytes() const override { return parts_.weight_bytes; }
  Result<StepOutput> forward(StepContext& context, const StepBatch& batch) const override;

 private:
  // The rows that a layer works on.
  struct Stream {
    TensorView hidden;  // [num_rows, hidden]: the residual stream, of Ops::residual_dtype
    // The same behind attention: products whose y is not their residual need no copy of it (linear_many_tokens.cu). Not
    // with sandwich norms, which add to `hidden` and alone have the others:
    TensorView middle;
    TensorView normed;  // the input of the MLP
    TensorView delta;   // a part's output before it is added
  };
  Stream take_stream(Arena& arena, DType residual_dtype, int64_t num_rows) const;
  // One layer. Where inputs.rows are given, `stream` has these rows alone.
  void run_layer(StepContext& context, const StepBatch& batch, const DecoderLayer& layer, const Stream& stream,
                 const AttentionInputs& inputs) const;

  // The step through all layers at once, where the backend takes it: one token, and y are its hidden states.
  bool try_step(StepContext& context, const StepBatch& batch, const TensorView& y, const AttentionInputs& inputs) const;

  DecoderParts parts_;
  std::vector<StepLayer> step_layers_;  // empty where layers are not of the kind that Ops::decoder_step takes
};

}  // namespace quire

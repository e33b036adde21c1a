// The reference backend: every op as the plainest loop in float, one thread, no tricks. It is the definition of correct
// that other backends are tested against and can run whole models, slowly. Never optimised.
#pragma once

#include "ops/backends.h"
#include "ops/ops.h"

namespace quire {

class ReferenceOps : public Ops {
 public:
  explicit ReferenceOps(WeightQuantization weight_quantization = WeightQuantization::kNone)
      : weight_quantization_(weight_quantization) {}

  Device device() const override { return Device{}; }
  std::string description() const override { return "reference: plain float loops, 1 thread"; }
  bool takes_kv_dtype(DType dtype) const override { return Ops::takes_kv_dtype(dtype) || has_kv_scales(dtype); }

  Result<DeviceBuffer> allocate(int64_t num_bytes, const char* purpose) override;
  void copy_to_device(OpContext& context, void* device_data, const void* host_data, int64_t num_bytes) override;
  void copy_to_host(OpContext& context, void* host_data, const void* device_data, int64_t num_bytes) override;
  void synchronize(OpContext&) override {}

  Result<Weight> pack(const Weight& file_weight) override;

  void embedding(OpContext& context, TensorView y, const Weight& table, ConstTensorView ids, float scale) override;
  void gather_rows(OpContext& context, TensorView y, ConstTensorView x, ConstTensorView rows) override;
  void rms_norm(OpContext& context, TensorView y, ConstTensorView x, ConstTensorView weight, float epsilon) override;
  void add(OpContext& context, TensorView y, ConstTensorView a, ConstTensorView b) override;
  void gated_activation(OpContext& context, TensorView y, ConstTensorView gate, ConstTensorView up,
                        Activation activation) override;
  void soft_cap(OpContext& context, TensorView x, float cap) override;

  void linear(OpContext& context, TensorView y, ConstTensorView x, const Weight& weight,
              const Epilogue& epilogue) override;
  void grouped_linear(OpContext& context, TensorView y, ConstTensorView x, const Weight& weight,
                      ConstTensorView offsets) override;

  void rope_table(OpContext& context, TensorView table, ConstTensorView positions, const RopeParams& params) override;
  void rope(OpContext& context, TensorView x, ConstTensorView table, RopeStyle style) override;
  void write_kv(OpContext& context, const PagedKv& kv, ConstTensorView k, ConstTensorView v,
                ConstTensorView slots) override;
  void copy_pages(OpContext& context, void* base, int64_t page_bytes, std::span<const PageCopy> pages) override;

  Result<std::unique_ptr<AttentionPlan>> create_attention_plan(const AttentionGeometry& geometry) override;
  void plan_attention(OpContext& context, AttentionPlan& plan, const AttentionBatch& batch) override;
  void attention(OpContext& context, TensorView out, ConstTensorView q, const PagedKv& kv, const AttentionBatch& batch,
                 const AttentionPlan& plan, const AttentionParams& params) override;

 private:
  WeightQuantization weight_quantization_;
};

}  // namespace quire

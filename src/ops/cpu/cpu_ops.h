// The CPU backend: vector kernels chosen by what the processor can do, work shared by a pool of threads. Activations
// are float; KV memory is f32, f16 or bf16. Each method checks shapes, cuts the work into slices and runs a kernel row
// on each; the kernels are in elementwise.h, attention.h and linear.h.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/cpu_info.h"
#include "base/thread_pool.h"
#include "ops/backends.h"
#include "ops/cpu/linear.h"
#include "ops/ops.h"

namespace quire {

class CpuOps final : public Ops {
 public:
  // Fails if options force a kernel that does not exist.
  static Result<std::unique_ptr<CpuOps>> create(const BackendOptions& options);

  Device device() const override { return Device{}; }
  std::string description() const override;
  std::string numerics() const override;

  Result<DeviceBuffer> allocate(int64_t num_bytes, const char* purpose) override;
  void copy_to_device(OpContext& context, void* device_data, const void* host_data, int64_t num_bytes) override;
  void copy_to_host(OpContext& context, void* host_data, const void* device_data, int64_t num_bytes) override;
  void synchronize(OpContext&) override {}

  Result<Weight> pack(const Weight& file_weight) override;
  void do_late_work() override { weight_memory_.make_some_huge(pool_); }

  void embedding(OpContext& context, TensorView y, const Weight& table, ConstTensorView ids, float scale) override;
  void gather_rows(OpContext& context, TensorView y, ConstTensorView x, ConstTensorView rows) override;
  void rms_norm(OpContext& context, TensorView y, ConstTensorView x, ConstTensorView weight, float epsilon) override;
  void add_rms_norm(OpContext& context, TensorView y, TensorView x, ConstTensorView delta, ConstTensorView weight,
                    float epsilon) override;
  void add(OpContext& context, TensorView y, ConstTensorView a, ConstTensorView b) override;
  void gated_activation(OpContext& context, TensorView y, ConstTensorView gate, ConstTensorView up,
                        Activation activation) override;
  void soft_cap(OpContext& context, TensorView x, float cap) override;

  void linear(OpContext& context, TensorView y, ConstTensorView x, const Weight& weight,
              const Epilogue& epilogue) override;
  void norm_linear(OpContext& context, TensorView y, ConstTensorView x, const InputNorm& norm, const Weight& weight,
                   const Epilogue& epilogue) override;
  void norm_gated_linear(OpContext& context, TensorView y, ConstTensorView x, const InputNorm& norm,
                         const Weight& weight, ConstTensorView bias, Activation activation) override;
  void grouped_linear(OpContext& context, TensorView y, ConstTensorView x, const Weight& weight,
                      ConstTensorView offsets) override;

  void rope_table(OpContext& context, TensorView table, ConstTensorView positions, const RopeParams& params) override;
  void rope(OpContext& context, TensorView x, ConstTensorView table, RopeStyle style) override;
  void write_kv(OpContext& context, const PagedKv& kv, ConstTensorView k, ConstTensorView v,
                ConstTensorView slots) override;
  void rope_and_write_kv(OpContext& context, TensorView q, TensorView k, ConstTensorView v, ConstTensorView table,
                         RopeStyle style, const KvTarget& target) override;
  void copy_pages(OpContext& context, void* base, int64_t page_bytes, std::span<const PageCopy> pages) override;

  Result<std::unique_ptr<AttentionPlan>> create_attention_plan(const AttentionGeometry& geometry) override;
  void plan_attention(OpContext& context, AttentionPlan& plan, const AttentionBatch& batch) override;
  void attention(OpContext& context, TensorView out, ConstTensorView q, const PagedKv& kv, const AttentionBatch& batch,
                 const AttentionPlan& plan, const AttentionParams& params) override;

 private:
  CpuOps(const BackendOptions& options, const CpuInfo& info);

  std::string_view forced_kernel(std::string_view op) const;
  // The row of linear to try first: the forced one, else a tuned one, else none.
  std::string_view preferred_linear(const Weight& weight, int64_t num_tokens) const;
  // What all linear layers have in common.
  cpu::LinearCall linear_call(OpContext& context, const TensorView& y, const ConstTensorView& x, const Weight& weight);

  CpuFeatures features_;
  Compute compute_;
  WeightQuantization weight_quantization_;
  std::map<std::string, std::string, std::less<>> forced_kernels_;
  std::vector<TunedLinear> tuned_linear_;
  ThreadPool pool_;
  cpu::WeightMemory weight_memory_;
};

}  // namespace quire

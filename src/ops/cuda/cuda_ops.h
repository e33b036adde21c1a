// The CUDA backend: one GPU. Activations are bf16, f16 or f32; KV memory too, or e4m3 or int8. Methods check shapes and
// enqueue kernels on context.stream; the kernels are in elementwise.h, weights.h, linear.h and attention.h. Used by one
// thread at a time, like every backend; the device is made current by create() and by copies to it, for the thread that
// calls them.
#pragma once

#include <cuda_runtime.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/thread_pool.h"
#include "ops/backends.h"
#include "ops/ops.h"
#include "ops/work_marks.h"

namespace quire {

namespace cuda {
class DecoderStepMemory;
class LinearLibrary;
struct LinearCall;
}  // namespace cuda

class CudaOps final : public Ops {
 public:
  // Fails where there is no GPU, or where options force a kernel that does not exist.
  static Result<std::unique_ptr<CudaOps>> create(const BackendOptions& options);
  ~CudaOps() override;

  Device device() const override { return {DeviceKind::kCuda, device_index_}; }
  std::string description() const override { return description_; }
  std::string numerics() const override;
  // See ops/backends.h.
  std::vector<TunedProduct> tuned_products() const;
  static Result<std::string> tuning_identity(int device_index);
  // f32, but under --quantization fp8 and int8, whose products round activations to 8 bits (but for one token): that
  // takes away more than their own dtype does, and the kernels which round keep the stream in it. So does the kernel of
  // a whole step where it is forced on.
  DType residual_dtype(DType activation_dtype) const override;
  bool takes_kv_dtype(DType dtype) const override { return Ops::takes_kv_dtype(dtype) || has_kv_scales(dtype); }

  MemorySize memory() const override;
  Result<DeviceBuffer> allocate(int64_t num_bytes, const char* purpose) override;
  Result<DeviceBuffer> allocate_for_host(int64_t num_bytes, const char* purpose) override;
  void copy_to_device(OpContext& context, void* device_data, const void* host_data, int64_t num_bytes) override;
  void copy_to_host(OpContext& context, void* host_data, const void* device_data, int64_t num_bytes) override;
  void synchronize(OpContext& context) override;

  Result<Weight> pack(const Weight& file_weight) override;
  Result<Weight> make_random_weight(const Weight& shape, uint64_t seed) override;

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
  void grouped_linear(OpContext& context, TensorView y, ConstTensorView x, const Weight& weight,
                      ConstTensorView offsets) override;

  void norm_linear(OpContext& context, TensorView y, ConstTensorView x, const InputNorm& norm, const Weight& weight,
                   const Epilogue& epilogue) override;
  void norm_gated_linear(OpContext& context, TensorView y, ConstTensorView x, const InputNorm& norm,
                         const Weight& weight, ConstTensorView bias, Activation activation) override;
  void rope_and_write_kv(OpContext& context, TensorView q, TensorView k, ConstTensorView v, ConstTensorView table,
                         RopeStyle style, const KvTarget& target) override;

  void rope_table(OpContext& context, TensorView table, ConstTensorView positions, const RopeParams& params) override;
  void rope(OpContext& context, TensorView x, ConstTensorView table, RopeStyle style) override;
  void write_kv(OpContext& context, const PagedKv& kv, ConstTensorView k, ConstTensorView v,
                ConstTensorView slots) override;
  void copy_pages(OpContext& context, void* base, int64_t page_bytes, std::span<const PageCopy> pages) override;

  Result<std::unique_ptr<AttentionPlan>> create_attention_plan(const AttentionGeometry& geometry) override;
  void plan_attention(OpContext& context, AttentionPlan& plan, const AttentionBatch& batch) override;
  void attention(OpContext& context, TensorView out, ConstTensorView q, const PagedKv& kv, const AttentionBatch& batch,
                 const AttentionPlan& plan, const AttentionParams& params) override;
  void rope_and_attention(OpContext& context, TensorView out, const QueryKeyValue& inputs, const PagedKv& kv,
                          const AttentionBatch& batch, const AttentionPlan& plan,
                          const AttentionParams& params) override;

  bool decoder_step(OpContext& context, const DecoderStep& step) override;

  void sample(OpContext& context, TensorView ids, ConstTensorView logits, const SamplingRow* rows) override;
  void adjust_logits(OpContext& context, TensorView logits, const LogitsAdjustments& adjustments) override;
  void logprobs(OpContext& context, ConstTensorView logits, const LogprobsCall& call) override;

  bool can_record() const override { return true; }
  void begin_recording(OpContext& context) override;
  std::unique_ptr<Recording> end_recording(OpContext& context) override;
  void replay(OpContext& context, const Recording& recording) override;

  // For tests and benchmarks of single kernel rows.
  cuda::LinearLibrary* linear_library() const { return library_.get(); }

  std::unique_ptr<WorkMarks> create_work_marks(int num_marks) const;

 private:
  // Float weights become what weight_quantization_ says.
  Result<Weight> quantize(Weight packed) const;
  CudaOps(const BackendOptions& options, std::string description);
  void strict_gated_linear(OpContext& context, const cuda::LinearCall& call, Activation activation);

  std::string_view forced_kernel(std::string_view op) const;
  // The gated activation behind an e4m3 product of many tokens, which leaves its rows rounded for the next one.
  void norm_gated_linear_f8(OpContext& context, const cuda::LinearCall& call);
  // The context's, or the backend's own: the default stream cannot be recorded. Called once by each op that enqueues,
  // before anything else of it: what the op before has left in the library's buffer is forgotten with the op after.
  cudaStream_t stream_of(const OpContext& context) const;

  int device_index_;
  cudaStream_t stream_ = nullptr;
  std::string description_;
  Compute compute_;
  WeightQuantization weight_quantization_;
  bool is_strict_;
  std::map<std::string, std::string, std::less<>> forced_kernels_;
  ThreadPool pool_;  // packs weights
  std::unique_ptr<cuda::LinearLibrary> library_;
  std::unique_ptr<cuda::DecoderStepMemory> decoder_step_memory_;  // null where other kernels are asked for
};

}  // namespace quire

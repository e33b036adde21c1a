// The device, its memory, and the checks in front of every kernel; linear layers have a file of their own.
#include "ops/cuda/cuda_ops.h"

#include <cstdlib>

#include "base/cpu_info.h"
#include "base/last_words.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/cuda_support.h"
#include "ops/cuda/decoder_step.h"
#include "ops/cuda/elementwise.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/linear_cublaslt.h"
#include "ops/cuda/logits.h"
#include "ops/cuda/sampling.h"
#include "ops/cuda/weights.h"
#include "ops/cuda/work_marks.h"
#include "ops/host_memory.h"

namespace quire {

namespace cuda {

void fail_device(cudaError_t error, const char* what, const char* file, int line) {
  tell_last_words(std::string(file) + ":" + std::to_string(line) + ": the GPU failed: " + cudaGetErrorString(error) +
                  " (" + cudaGetErrorName(error) + ") in " + what +
                  ": nothing can run on it in this process any more; start it anew, and if it happens again, look at "
                  "the kernel's log for Xid errors");
  // Not abort: a core file would have all pinned memory in it.
  std::_Exit(1);
}

}  // namespace cuda

namespace {

class CudaRecording final : public Ops::Recording {
 public:
  explicit CudaRecording(cudaGraphExec_t graph) : graph_(graph) {}
  ~CudaRecording() override { (void)cudaGraphExecDestroy(graph_); }
  cudaGraphExec_t graph() const { return graph_; }

 private:
  cudaGraphExec_t graph_;
};

void check_same_sizes(const ConstTensorView& a, const ConstTensorView& b) {
  CHECK(a.rank() == b.rank());
  for (int d = 0; d < a.rank(); ++d) CHECK(a.size(d) == b.size(d));
  CHECK(a.is_last_dimension_contiguous());
  CHECK(b.is_last_dimension_contiguous());
}

void check_same_shape(const ConstTensorView& a, const ConstTensorView& b) {
  CHECK(a.dtype() == b.dtype());
  check_same_sizes(a, b);
}

// Whether `activations` may stand beside the residual stream.
void check_beside(const ConstTensorView& stream, const ConstTensorView& activations) {
  CHECK(activations.dtype() == stream.dtype() || stream.dtype() == DType::kF32);
  check_same_sizes(stream, activations);
}

template <typename Call>
Status check_forced(std::span<const KernelRow<Call>> rows, const std::string& op, const std::string& name) {
  std::string names;
  for (const KernelRow<Call>& row : rows) {
    if (row.name == name) return ok_status();
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  return invalid_argument("--kernel " + op + "=" + name + ": there is no such kernel; there are " + names);
}

Result<int> count_devices() {
  int num_devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&num_devices); error != cudaSuccess || num_devices == 0) {
    (void)cudaGetLastError();
    int driver_version = 0;
    if (error == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver_version) == cudaSuccess &&
        driver_version == 0) {
      return unavailable(
          "no NVIDIA driver is installed here, or this container does not see it: install one (in a container, start "
          "it with its GPUs), or use the CPU");
    }
    return unavailable(std::string("no NVIDIA GPU was found (") +
                       (error == cudaSuccess ? "none is visible" : cudaGetErrorString(error)) +
                       "): check nvidia-smi, or use the CPU");
  }
  return num_devices;
}

Result<cudaDeviceProp> read_properties(int device_index, int num_devices) {
  if (device_index < 0 || device_index >= num_devices) {
    return invalid_argument("there is no GPU " + std::to_string(device_index) + ": this machine has " +
                            std::to_string(num_devices) + ", counted from 0");
  }
  cudaDeviceProp properties;
  CUDA_CHECK(cudaGetDeviceProperties(&properties, device_index));
  if (properties.major * 10 + properties.minor != 90) {
    return unimplemented(std::string("the GPU is a ") + properties.name + " of compute capability " +
                         std::to_string(properties.major) + "." + std::to_string(properties.minor) +
                         "; this build has kernels for 9.0: use the CPU");
  }
  return properties;
}

}  // namespace

Result<std::unique_ptr<CudaOps>> CudaOps::create(const BackendOptions& options) {
  ASSIGN_OR_RETURN(const int num_devices, count_devices());
  for (const auto& [op, name] : options.forced_kernels) {
    if (options.is_strict && name != "any_shape" && name != "off") {
      return invalid_argument(
          "--kernel " + op + "=" + name +
          " does not go with --sameness strict, which chooses kernels by what does not change bits: "
          "leave one of the two out");
    }
    if (op == "linear") {
      RETURN_IF_ERROR(check_forced(cuda::linear_rows(), op, name));
    } else if (op == "attention") {
      RETURN_IF_ERROR(check_forced(cuda::attention_rows(), op, name));
    } else if (op == "decoder_step" && (name == "on" || name == "off")) {
      continue;
    } else {
      return invalid_argument("--kernel: the cuda backend has no choice \"" + op + "=" + name +
                              "\"; it has for linear and attention, and decoder_step=on or off");
    }
  }
  ASSIGN_OR_RETURN(const cudaDeviceProp properties, read_properties(options.device_index, num_devices));
  // The first calls that take something of the device.
  cudaStream_t stream = nullptr;
  cudaError_t error = cudaSetDevice(options.device_index);
  if (error == cudaSuccess) error = cudaStreamCreate(&stream);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    return resource_exhausted(std::string("GPU ") + std::to_string(options.device_index) + ", " + properties.name +
                              ", cannot be used (" + cudaGetErrorString(error) +
                              "): another program may hold it alone or have taken all of its memory, which nvidia-smi "
                              "tells; end that, or choose another GPU or the CPU with --device");
  }
  std::string description = std::string("cuda: ") + properties.name + ", " +
                            std::to_string(properties.multiProcessorCount) + " multiprocessors, " +
                            format_bytes(static_cast<int64_t>(properties.totalGlobalMem));
  std::unique_ptr<CudaOps> ops(new CudaOps(options, std::move(description)));
  ops->stream_ = stream;
  ASSIGN_OR_RETURN(ops->library_, cuda::LinearLibrary::create(options.tuned_products, options.is_tuning));
  if (const bool is_free = options.forced_kernels.empty() && !options.is_strict && !options.is_tuning;
      is_free || ops->forced_kernel("decoder_step") == "on") {
    ASSIGN_OR_RETURN(cuda::DecoderStepMemory memory, cuda::DecoderStepMemory::create());
    ops->decoder_step_memory_ = std::make_unique<cuda::DecoderStepMemory>(std::move(memory));
  }
  return ops;
}

CudaOps::CudaOps(const BackendOptions& options, std::string description)
    : device_index_(options.device_index),
      description_(std::move(description)),
      compute_(options.compute),
      weight_quantization_(options.weight_quantization),
      is_strict_(options.is_strict),
      forced_kernels_(options.forced_kernels.begin(), options.forced_kernels.end()),
      pool_(options.num_threads > 0 ? options.num_threads : default_num_threads(read_cpu_info())) {}

CudaOps::~CudaOps() {
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
}

std::string CudaOps::numerics() const {
  // Raised whenever a row, or the choice of rows, gives other numbers than before.
  constexpr int kVersion = 10;
  std::string text = description_ + ", numerics " + std::to_string(kVersion);
  if (weight_quantization_ == WeightQuantization::kF8) text += ", weights in e4m3";
  if (weight_quantization_ == WeightQuantization::kI8) text += ", weights in int8";
  if (is_strict_) text += ", strict";
  for (const auto& [op, row] : forced_kernels_) {
    if (row != "off") text += ", " + op + "=" + row;  // what is off anyway
  }
  return text;
}

DType CudaOps::residual_dtype(DType activation_dtype) const {
  const bool rounds_inputs = weight_quantization_ != WeightQuantization::kNone;
  return rounds_inputs || forced_kernel("decoder_step") == "on" ? activation_dtype : DType::kF32;
}

std::vector<TunedProduct> CudaOps::tuned_products() const {
  return library_->tuned_products();
}

Result<std::string> CudaOps::tuning_identity(int device_index) {
  ASSIGN_OR_RETURN(const int num_devices, count_devices());
  ASSIGN_OR_RETURN(const cudaDeviceProp properties, read_properties(device_index, num_devices));
  return std::string(properties.name) + ", " + std::to_string(properties.major) + "." +
         std::to_string(properties.minor) + ", cuBLASLt " + std::to_string(cublasLtGetVersion());
}

cudaStream_t CudaOps::stream_of(const OpContext& context) const {
  if (library_ != nullptr) library_->begin_op();
  return context.stream != nullptr ? static_cast<cudaStream_t>(context.stream) : stream_;
}

std::string_view CudaOps::forced_kernel(std::string_view op) const {
  const auto found = forced_kernels_.find(op);
  return found == forced_kernels_.end() ? std::string_view() : found->second;
}

Ops::MemorySize CudaOps::memory() const {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  return {static_cast<int64_t>(free_bytes), static_cast<int64_t>(total_bytes)};
}

Result<DeviceBuffer> CudaOps::allocate(int64_t num_bytes, const char* purpose) {
  CHECK(num_bytes >= 0);
  void* data = nullptr;
  const size_t size = static_cast<size_t>(std::max<int64_t>(num_bytes, 256));
  if (const cudaError_t error = cudaMalloc(&data, size); error != cudaSuccess) {
    (void)cudaGetLastError();
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    (void)cudaMemGetInfo(&free_bytes, &total_bytes);
    return resource_exhausted("the GPU has no " + format_bytes(num_bytes) + " for " + purpose + ": " +
                              format_bytes(static_cast<int64_t>(free_bytes)) + " of " +
                              format_bytes(static_cast<int64_t>(total_bytes)) + " are free");
  }
  return DeviceBuffer(data, num_bytes, device(), [](void* block) { (void)cudaFree(block); });
}

Result<DeviceBuffer> CudaOps::allocate_for_host(int64_t num_bytes, const char* purpose) {
  CHECK(num_bytes >= 0);
  void* data = nullptr;
  const size_t size = static_cast<size_t>(std::max<int64_t>(num_bytes, 256));
  if (const cudaError_t error = cudaMallocHost(&data, size); error != cudaSuccess) {
    (void)cudaGetLastError();
    return resource_exhausted("the system pins no " + format_bytes(num_bytes) + " of memory for " + purpose + " (" +
                              cudaGetErrorString(error) + ")");
  }
  return DeviceBuffer(data, num_bytes, Device{}, [](void* block) { (void)cudaFreeHost(block); });
}

void CudaOps::copy_to_device(OpContext& context, void* device_data, const void* host_data, int64_t num_bytes) {
  if (num_bytes <= 0) return;
  // The current device is a thread's own, and the thread that steps is not the one that loads. Steps begin with a copy.
  CUDA_CHECK(cudaSetDevice(device_index_));
  CUDA_CHECK(cudaMemcpyAsync(device_data, host_data, static_cast<size_t>(num_bytes), cudaMemcpyHostToDevice,
                             stream_of(context)));
}

std::unique_ptr<WorkMarks> CudaOps::create_work_marks(int num_marks) const {
  CUDA_CHECK(cudaSetDevice(device_index_));
  return cuda::create_work_marks(stream_, num_marks);
}

void CudaOps::copy_to_host(OpContext& context, void* host_data, const void* device_data, int64_t num_bytes) {
  if (num_bytes <= 0) return;
  CUDA_CHECK(cudaMemcpyAsync(host_data, device_data, static_cast<size_t>(num_bytes), cudaMemcpyDeviceToHost,
                             stream_of(context)));
}

void CudaOps::synchronize(OpContext& context) {
  CUDA_CHECK(cudaStreamSynchronize(stream_of(context)));
}

Result<Weight> CudaOps::pack(const Weight& file_weight) {
  ASSIGN_OR_RETURN(Weight packed, cuda::pack_weight(pool_, file_weight));
  return quantize(std::move(packed));
}

Result<Weight> CudaOps::quantize(Weight packed) const {
  if (!packed.quant().is_float) return packed;
  if (weight_quantization_ == WeightQuantization::kF8) return cuda::quantize_to_f8(packed);
  if (weight_quantization_ == WeightQuantization::kI8) return cuda::quantize_to_i8(packed);
  return packed;
}

Result<Weight> CudaOps::make_random_weight(const Weight& shape, uint64_t seed) {
  ASSIGN_OR_RETURN(Weight packed, cuda::make_random_weight(pool_, shape, seed));
  return quantize(std::move(packed));
}

void CudaOps::embedding(OpContext& context, TensorView y, const Weight& table, ConstTensorView ids, float scale) {
  CHECK(y.rank() == 2);
  CHECK(y.size(0) == ids.num_elements());
  CHECK(y.size(1) == table.k);
  CHECK(y.is_last_dimension_contiguous());
  cuda::embedding(stream_of(context), y, table, ids, scale);
}

void CudaOps::gather_rows(OpContext& context, TensorView y, ConstTensorView x, ConstTensorView rows) {
  CHECK(x.rank() == 2);
  CHECK(y.rank() == 2);
  CHECK(y.dtype() == x.dtype());
  CHECK(y.size(0) == rows.num_elements());
  CHECK(y.size(1) == x.size(1));
  CHECK(y.is_last_dimension_contiguous());
  CHECK(x.is_last_dimension_contiguous());
  cuda::gather_rows(stream_of(context), y, x, rows);
}

void CudaOps::rms_norm(OpContext& context, TensorView y, ConstTensorView x, ConstTensorView weight, float epsilon) {
  CHECK(x.rank() == 2 || x.rank() == 3);
  check_beside(x, y);
  CHECK(weight.num_elements() == x.size(x.rank() - 1));
  cuda::rms_norm(stream_of(context), {.y = y, .x = x, .delta = {}, .x_sum = {}, .weight = weight, .epsilon = epsilon});
}

void CudaOps::add_rms_norm(OpContext& context, TensorView y, TensorView x, ConstTensorView delta,
                           ConstTensorView weight, float epsilon) {
  CHECK(x.rank() == 2 || x.rank() == 3);
  check_beside(x, y);
  check_same_shape(delta, y);
  CHECK(weight.num_elements() == x.size(x.rank() - 1));
  cuda::rms_norm(stream_of(context),
                 {.y = y, .x = x, .delta = delta, .x_sum = x, .weight = weight, .epsilon = epsilon});
}

void CudaOps::add(OpContext& context, TensorView y, ConstTensorView a, ConstTensorView b) {
  CHECK(y.rank() == 2);
  check_same_shape(y, a);
  check_beside(y, b);
  cuda::add(stream_of(context), y, a, b);
}

void CudaOps::gated_activation(OpContext& context, TensorView y, ConstTensorView gate, ConstTensorView up,
                               Activation activation) {
  CHECK(y.rank() == 2);
  check_same_shape(y, gate);
  check_same_shape(y, up);
  cuda::binary(stream_of(context),
               activation == Activation::kSilu ? cuda::BinaryOp::kSiluMultiply : cuda::BinaryOp::kGeluTanhMultiply, y,
               gate, up);
}

void CudaOps::soft_cap(OpContext& context, TensorView x, float cap) {
  CHECK(x.rank() == 2);
  CHECK(cap > 0);
  cuda::soft_cap(stream_of(context), x, cap);
}

void CudaOps::rope_and_write_kv(OpContext& context, TensorView q, TensorView k, ConstTensorView v,
                                ConstTensorView table, RopeStyle style, const KvTarget& target) {
  CHECK(q.rank() == 3);
  CHECK(k.rank() == 3);
  CHECK(v.rank() == 3);
  const cuda::RopeWriteArgs args{.q = q,
                                 .k = k,
                                 .v = v,
                                 .table = table,
                                 .is_interleaved = style == RopeStyle::kInterleaved,
                                 .kv = target.kv,
                                 .slots = target.slots};
  if (!cuda::accepts_rope_and_write(args)) return Ops::rope_and_write_kv(context, q, k, v, table, style, target);
  CHECK(table.size(0) == q.size(0));
  CHECK(k.size(0) == q.size(0));
  CHECK(k.size(1) == target.kv.num_kv_heads);
  CHECK(target.slots.num_elements() == k.size(0));
  check_same_shape(k, v);
  cuda::rope_and_write(stream_of(context), args);
}

void CudaOps::rope_table(OpContext& context, TensorView table, ConstTensorView positions, const RopeParams& params) {
  CHECK(table.rank() == 2);
  CHECK(table.size(0) == positions.num_elements());
  CHECK(table.size(1) == 2 * params.inverse_frequencies.num_elements());
  CHECK(table.is_last_dimension_contiguous());
  cuda::rope_table(stream_of(context), table, positions, params.inverse_frequencies, params.attention_factor);
}

void CudaOps::rope(OpContext& context, TensorView x, ConstTensorView table, RopeStyle style) {
  CHECK(x.rank() == 3);
  CHECK(x.is_last_dimension_contiguous());
  CHECK(table.rank() == 2);
  CHECK(table.size(0) == x.size(0));
  CHECK(table.size(1) % 2 == 0);
  CHECK(table.size(1) <= x.size(2));
  CHECK(table.is_last_dimension_contiguous());
  cuda::rope(stream_of(context), x, table, style == RopeStyle::kInterleaved);
}

void CudaOps::write_kv(OpContext& context, const PagedKv& kv, ConstTensorView k, ConstTensorView v,
                       ConstTensorView slots) {
  CHECK(k.rank() == 3);
  check_same_shape(k, v);
  CHECK(k.size(1) == kv.num_kv_heads);
  CHECK(k.size(2) == kv.head_dim);
  CHECK(slots.num_elements() == k.size(0));
  CHECK(cuda::is_activation_dtype(kv.dtype) || has_kv_scales(kv.dtype));
  cuda::write_kv(stream_of(context), kv, k, v, slots);
}

void CudaOps::copy_pages(OpContext& context, void* base, int64_t page_bytes, std::span<const PageCopy> pages) {
  char* bytes = static_cast<char*>(base);
  // In stream order: a page may be read by one copy and written by a later one.
  for (const PageCopy& page : pages) {
    if (page.from == page.to) continue;
    CUDA_CHECK(cudaMemcpyAsync(bytes + page.to * page_bytes, bytes + page.from * page_bytes,
                               static_cast<size_t>(page_bytes), cudaMemcpyDeviceToDevice, stream_of(context)));
  }
}

Result<std::unique_ptr<AttentionPlan>> CudaOps::create_attention_plan(const AttentionGeometry& geometry) {
  return cuda::create_attention_plan(geometry, is_strict_);
}

void CudaOps::plan_attention(OpContext& context, AttentionPlan& plan, const AttentionBatch& batch) {
  cuda::plan_attention(stream_of(context), static_cast<cuda::CudaAttentionPlan&>(plan), batch);
}

void CudaOps::attention(OpContext& context, TensorView out, ConstTensorView q, const PagedKv& kv,
                        const AttentionBatch& batch, const AttentionPlan& plan, const AttentionParams& params) {
  if (batch.num_tokens == 0) return;
  cuda::attention({.stream = stream_of(context),
                   .part = cuda::StepPart::kDecode,
                   .out = out,
                   .q = q,
                   .kv = kv,
                   .batch = batch,
                   .plan = static_cast<const cuda::CudaAttentionPlan&>(plan),
                   .params = params},
                  forced_kernel("attention"));
}

void CudaOps::rope_and_attention(OpContext& context, TensorView out, const QueryKeyValue& inputs, const PagedKv& kv,
                                 const AttentionBatch& batch, const AttentionPlan& plan,
                                 const AttentionParams& params) {
  if (batch.num_tokens == 0) return;
  const cuda::AttentionCall call{.stream = stream_of(context),
                                 .part = cuda::StepPart::kDecode,
                                 .out = out,
                                 .q = inputs.q,
                                 .kv = kv,
                                 .batch = batch,
                                 .plan = static_cast<const cuda::CudaAttentionPlan&>(plan),
                                 .params = params};
  const cuda::RopeInputs rope{.k = inputs.k,
                              .v = inputs.v,
                              .table = inputs.rope_table,
                              .is_interleaved = inputs.rope_style == RopeStyle::kInterleaved};
  if (!forced_kernel("attention").empty() || !cuda::accepts_decode_fused(call, rope)) {
    return Ops::rope_and_attention(context, out, inputs, kv, batch, plan, params);
  }
  cuda::attention_decode_fused(call, rope);
}

bool CudaOps::decoder_step(OpContext& context, const DecoderStep& step) {
  CHECK(step.y.size(0) == step.x.size(0));
  CHECK(step.y.size(1) == step.x.size(1));
  // Its sums have an order of their own.
  if (decoder_step_memory_ == nullptr || is_strict_) return false;
  return cuda::decoder_step(stream_of(context), *decoder_step_memory_, step, forced_kernel("decoder_step") == "on");
}

void CudaOps::sample(OpContext& context, TensorView ids, ConstTensorView logits, const SamplingRow* rows) {
  CHECK(logits.rank() == 2);
  CHECK(ids.num_elements() == logits.size(0));
  CHECK(logits.is_last_dimension_contiguous());
  cuda::sample(stream_of(context), ids, logits, rows);
}

void CudaOps::adjust_logits(OpContext& context, TensorView logits, const LogitsAdjustments& adjustments) {
  CHECK(logits.rank() == 2);
  CHECK(logits.is_last_dimension_contiguous());
  cuda::adjust_logits(stream_of(context), logits, adjustments);
}

void CudaOps::logprobs(OpContext& context, ConstTensorView logits, const LogprobsCall& call) {
  CHECK(logits.rank() == 2);
  CHECK(logits.is_last_dimension_contiguous());
  CHECK(call.most_top <= kMostTopTokens);
  cuda::logprobs(stream_of(context), logits, call);
}

void CudaOps::begin_recording(OpContext& context) {
  CUDA_CHECK(cudaStreamBeginCapture(stream_of(context), cudaStreamCaptureModeThreadLocal));
}

std::unique_ptr<Ops::Recording> CudaOps::end_recording(OpContext& context) {
  cudaGraph_t graph = nullptr;
  CUDA_CHECK(cudaStreamEndCapture(stream_of(context), &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  CUDA_CHECK(cudaGraphDestroy(graph));
  if (error != cudaSuccess) {
    (void)cudaGetLastError();  // no memory for it: the calls can still be run one by one
    return nullptr;
  }
  return std::make_unique<CudaRecording>(executable);
}

void CudaOps::replay(OpContext& context, const Recording& recording) {
  CUDA_CHECK(cudaGraphLaunch(static_cast<const CudaRecording&>(recording).graph(), stream_of(context)));
}

}  // namespace quire

#include "ops/backends.h"

#include "ops/cpu/cpu_ops.h"
#include "ops/reference/reference_ops.h"
#include "ops/work_marks.h"
#ifdef QUIRE_HAS_CUDA
#include "ops/cuda/cuda_ops.h"
#endif

namespace quire {

namespace {

template <typename Backend>
Result<std::unique_ptr<Ops>> as_ops(Result<std::unique_ptr<Backend>> backend) {
  if (!backend.is_ok()) return backend.status();
  return std::unique_ptr<Ops>(std::move(backend).value());
}

#ifndef QUIRE_HAS_CUDA
Status no_cuda() {
  return unimplemented("this build has no CUDA backend: rebuild where the CUDA toolkit is installed, or use the CPU");
}
#endif

}  // namespace

bool has_cuda_backend() {
#ifdef QUIRE_HAS_CUDA
  return true;
#else
  return false;
#endif
}

Result<std::unique_ptr<Ops>> create_ops(const BackendOptions& options) {
  if (options.weight_quantization == WeightQuantization::kF8 && options.kind != BackendKind::kCuda) {
    return unimplemented(
        "--quantization fp8 is for NVIDIA GPUs only: on the CPU, take int8, or give a GGUF file that is quantized");
  }
  switch (options.kind) {
    case BackendKind::kReference:
      if (!options.forced_kernels.empty()) {
        return invalid_argument("--kernel: the reference backend has one way for each op; leave --kernel out");
      }
      return std::unique_ptr<Ops>(std::make_unique<ReferenceOps>(options.weight_quantization));
    case BackendKind::kCpu:
      return as_ops(CpuOps::create(options));
    case BackendKind::kCuda:
#ifdef QUIRE_HAS_CUDA
      return as_ops(CudaOps::create(options));
#else
      return no_cuda();
#endif
  }
  return internal_error("unknown backend");
}

std::vector<TunedProduct> tuned_products([[maybe_unused]] const Ops& ops) {
#ifdef QUIRE_HAS_CUDA
  if (const auto* cuda_ops = dynamic_cast<const CudaOps*>(&ops); cuda_ops != nullptr) return cuda_ops->tuned_products();
#endif
  return {};
}

std::unique_ptr<WorkMarks> create_work_marks([[maybe_unused]] const Ops& ops, [[maybe_unused]] int num_marks) {
#ifdef QUIRE_HAS_CUDA
  if (const auto* cuda_ops = dynamic_cast<const CudaOps*>(&ops); cuda_ops != nullptr) {
    return cuda_ops->create_work_marks(num_marks);
  }
#endif
  return nullptr;
}

Result<std::string> gpu_of_tuning([[maybe_unused]] int device_index) {
#ifdef QUIRE_HAS_CUDA
  return CudaOps::tuning_identity(device_index);
#else
  return no_cuda();
#endif
}

}  // namespace quire

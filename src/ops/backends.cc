#include "ops/backends.h"

#include "ops/reference/reference_ops.h"

namespace quire {

Result<std::unique_ptr<Ops>> create_ops(const BackendOptions& options) {
  switch (options.kind) {
    case BackendKind::kReference:
      return std::unique_ptr<Ops>(std::make_unique<ReferenceOps>());
    case BackendKind::kCpu:
      return unimplemented("this build has no cpu backend");
    case BackendKind::kCuda:
      return unimplemented(
          "this build has no CUDA backend: rebuild where the CUDA toolkit is installed, or use the CPU");
  }
  return internal_error("unknown backend");
}

}  // namespace quire

// Makes the backend that a user asked for. The only place that knows which backends this build has.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "ops/ops.h"

namespace quire {

enum class BackendKind : uint8_t { kReference, kCpu, kCuda };

// What float weights become when they are packed.
enum class WeightQuantization : uint8_t {
  kNone,
  kF8,  // e4m3 with a scale an output; a GPU rounds activations likewise, with a scale a token, but for one token alone
  kI8,  // int8 with a scale an output (quant/int8_rows.h), on every backend; a GPU rounds activations as above, the CPU
        // as it does for other integer weights
};

// A row of linear that a tuner found to be the fastest for weights of a format, for products of so many tokens. Rows
// that may stand here share a reduction order with the one that would run otherwise.
struct TunedLinear {
  FormatId format = FormatId::kF32;
  int64_t k = 0;  // inputs; 0: any
  int64_t min_tokens = 1;
  int64_t max_tokens = 1;
  std::string row;
};

// How a GPU's library multiplies matrices of a shape the fastest way, as `tuned_products` tells it.
struct TunedProduct {
  int64_t num_tokens = 0;  // a power of two: products of more than half as many tokens, and up to as many
  int64_t n = 0;
  int64_t k = 0;
  DType dtype = DType::kBF16;  // of both factors
  DType y_dtype = DType::kBF16;
  bool has_residual = false;
  std::string algorithm;  // in the library's own words
  bool operator==(const TunedProduct&) const = default;
};

struct BackendOptions {
  BackendKind kind = BackendKind::kCpu;
  int device_index = 0;
  int num_threads = 0;  // CPU; 0: from the affinity mask, the cgroup quota and the physical cores
  Compute compute = Compute::kAuto;
  std::map<std::string, std::string> forced_kernels = {};              // op → row name
  std::vector<TunedLinear> tuned_linear = {};                          // CPU; the first that fits is tried
  bool is_first_token_urgent = false;                                  // CPU: more so than the tokens right after it
  WeightQuantization weight_quantization = WeightQuantization::kNone;  // kF8: GPU
  std::vector<TunedProduct> tuned_products = {};                       // GPU
  bool is_tuning = false;  // GPU: the first product of a shape is measured thoroughly, on data of the tuner's own
  bool is_strict = false;  // GPU: one order of sums for any number of tokens (the CPU has no other)
};

// Whether this build has kernels for NVIDIA GPUs; whether there is such a GPU, create_ops tells.
bool has_cuda_backend();

Result<std::unique_ptr<Ops>> create_ops(const BackendOptions& options);

// What a backend was given of these, or has measured while tuning; nothing but on a GPU.
std::vector<TunedProduct> tuned_products(const Ops& ops);

// What such choices hold for: GPU and library, "NVIDIA H200, 9.0, cuBLASLt 130101". The error says why there is none.
Result<std::string> gpu_of_tuning(int device_index);

}  // namespace quire

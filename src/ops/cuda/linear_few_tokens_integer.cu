// The row `few_tokens_integer`: what it accepts. The kernel is in linear_few_tokens_integer.cuh.
#include "ops/cuda/linear_few_tokens.h"
#include "ops/cuda/linear_few_tokens_integer.cuh"

namespace quire::cuda {

namespace {

constexpr int64_t kNarrow = 4096;  // outputs

// Where `skinny_mma` is not faster (H200; 8B shapes): it has more blocks where outputs are few, and numbers of groups
// of 128 are cheap here.
int least_tokens(const LinearCall& call) {
  const bool is_int4 = call.weight.format == FormatId::kInt4G128;
  if (call.gate != Gate::kNone) return 2;  // the activation is fused
  if (call.weight.n <= kNarrow) return is_int4 ? 5 : 9;
  return is_int4 ? 2 : 5;
}

}  // namespace

bool fits_few_tokens_integer(const LinearCall& call) {
  const Weight& weight = call.weight;
  if (call.offsets.is_given() || weight.num_experts != 1 || weight.layout != Layout::kCudaPlanes ||
      call.norm.weight.is_given()) {
    return false;
  }
  const FormatId format = weight.format;
  const bool is_int4 = format == FormatId::kInt4G128;
  if (call.x.dtype() != DType::kBF16 && !(is_int4 && call.x.dtype() == DType::kF16)) return false;
  return (is_int4 || format == FormatId::kQ4_0 || format == FormatId::kQ4_K || format == FormatId::kQ8_0 ||
          format == FormatId::kQ6_K) &&
         weight.k % few::kLargestChunk == 0 && weight.n % 8 == 0 && weight.n < (1 << 24) && weight.k < (1 << 24) &&
         few::is_call_aligned(call);
}

bool accepts_few_tokens_integer(const LinearCall& call) {
  const int64_t num_tokens = call.x.size(0);
  return num_tokens >= least_tokens(call) && num_tokens <= kMaxFewTokensInteger && fits_few_tokens_integer(call);
}

bool accepts_gated_few_tokens_integer(const LinearCall& call) {
  // Panels of `gate` end where those of `up` begin.
  return accepts_few_tokens_integer(call) && call.weight.n % (2 * kPanelLanes) == 0 && call.y.dtype() == call.x.dtype();
}

void linear_few_tokens_integer(const LinearCall& call) {
  switch (call.weight.format) {
    case FormatId::kInt4G128:
      return call.is_strict ? few::few_tokens_int4_scaled(call) : few::few_tokens_int4(call);
    case FormatId::kQ4_0:
    case FormatId::kQ4_K:
      return few::few_tokens_4bit(call);
    default:
      return few::few_tokens_8bit(call);
  }
}

}  // namespace quire::cuda

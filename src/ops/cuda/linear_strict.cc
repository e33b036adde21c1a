// The choice of kernels where bits must not depend on the number of tokens: it is made for one token's call.
#include "ops/cuda/linear_strict.h"

#include <algorithm>

#include "ops/cuda/linear_cublaslt.h"
#include "ops/cuda/linear_even_rows.h"
#include "ops/cuda/linear_few_tokens.h"
#include "ops/cuda/linear_int8.h"
#include "ops/cuda/linear_many_tokens.h"

namespace quire::cuda {

namespace {

enum class Way { kAnyShape, kFloats, kF8, kIntegers, kInt8, kSkinny };

LinearCall tokens_of(const LinearCall& call, int64_t first, int64_t count) {
  LinearCall some = call;
  some.x = call.x.slice(0, first, first + count);
  some.y = call.y.slice(0, first, first + count);
  const ConstTensorView& residual = call.epilogue.residual;
  if (residual.is_given()) some.epilogue.residual = residual.slice(0, first, first + count);
  return some;
}

Way way_of(const LinearCall& call) {
  if (call.offsets.is_given()) return Way::kAnyShape;
  const LinearCall one = tokens_of(call, 0, 1);
  if (accepts_int8(one)) return Way::kInt8;
  if (fits_even_rows(one)) return Way::kFloats;
  if (fits_few_tokens(one)) return Way::kF8;
  if (fits_few_tokens_integer(one)) return Way::kIntegers;
  // Float weights go without: the row does not take all shapes of them.
  if (!call.weight.quant().is_float && !call.norm.weight.is_given() && accepts_skinny_mma(one)) return Way::kSkinny;
  return Way::kAnyShape;
}

void launch_int8(const LinearCall& call) {
  const int64_t most = (call.library->slice_bytes() - 256) / (call.weight.k + 4);
  const int64_t num_tokens = call.x.size(0);
  for (int64_t first = 0; first < num_tokens; first += most) {
    linear_int8(tokens_of(call, first, std::min(most, num_tokens - first)));
  }
}

}  // namespace

void linear_strict(const LinearCall& call) {
  const int64_t num_tokens = call.x.size(0);
  switch (way_of(call)) {
    case Way::kInt8:
      return launch_int8(call);
    case Way::kFloats:
      return num_tokens <= kMaxEvenTokens ? linear_even_rows(call) : linear_many_tokens(call);
    case Way::kF8:
      return num_tokens <= kMaxFewTokens ? linear_few_tokens(call) : linear_many_tokens(call);
    case Way::kIntegers:
      return num_tokens <= kMaxFewTokensInteger ? linear_few_tokens_integer(call) : linear_many_tokens_integer(call);
    case Way::kSkinny:
      return linear_skinny_mma(call);
    case Way::kAnyShape:
      return linear_any_shape(call);
  }
}

bool accepts_strict_norm(const LinearCall& call) {
  if (call.x.size(0) == 0) return false;
  if (call.weight.layout == Layout::kCudaF8) return way_of(call) == Way::kF8;
  return call.weight.layout == Layout::kCudaI8 && way_of(call) == Way::kInt8;
}

bool accepts_strict_gate(const LinearCall& call) {
  if (call.x.size(0) == 0) return false;
  if (call.norm.weight.is_given() && !accepts_strict_norm(call)) return false;
  const LinearCall one = tokens_of(call, 0, 1);
  switch (way_of(call)) {
    case Way::kInt8:
      return accepts_gated_int8(one);
    case Way::kFloats:
    case Way::kF8:
      return call.weight.n % 16 == 0 && call.y.dtype() == call.dtype();
    case Way::kIntegers:
      return call.weight.n % 32 == 0 && call.y.dtype() == call.dtype();
    default:
      return false;
  }
}

}  // namespace quire::cuda

// Linear layers of the CUDA backend: which row takes norm, product and gated activation at once, and what is done one
// after the other where none does.
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/elementwise.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/linear_cublaslt.h"
#include "ops/cuda/linear_even_rows.h"
#include "ops/cuda/linear_f8.h"
#include "ops/cuda/linear_few_tokens.h"
#include "ops/cuda/linear_int8.h"
#include "ops/cuda/linear_strict.h"

namespace quire {

namespace {

// Whether the row that would run takes the norm of the call.
bool accepts_norm(const cuda::LinearCall& call) {
  return cuda::accepts_gemv(call) || cuda::accepts_gemv_tokens(call) || cuda::accepts_gemv_integer(call) ||
         cuda::accepts_few_tokens(call) || cuda::accepts_cublaslt_f8(call) || cuda::accepts_int8(call);
}

}  // namespace

void CudaOps::linear(OpContext& context, TensorView y, ConstTensorView x, const Weight& weight,
                     const Epilogue& epilogue) {
  CHECK(weight.num_experts == 1);
  cuda::linear({.stream = stream_of(context),
                .library = library_.get(),
                .compute = compute_,
                .y = y,
                .x = x,
                .weight = weight,
                .epilogue = epilogue,
                .is_strict = is_strict_},
               forced_kernel("linear"));
}

void CudaOps::grouped_linear(OpContext& context, TensorView y, ConstTensorView x, const Weight& weight,
                             ConstTensorView offsets) {
  CHECK(offsets.num_elements() == weight.num_experts + 1);
  cuda::linear({.stream = stream_of(context),
                .library = library_.get(),
                .compute = compute_,
                .y = y,
                .x = x,
                .weight = weight,
                .offsets = offsets,
                .is_strict = is_strict_},
               forced_kernel("linear"));
}

void CudaOps::norm_linear(OpContext& context, TensorView y, ConstTensorView x, const InputNorm& norm,
                          const Weight& weight, const Epilogue& epilogue) {
  const cuda::LinearCall call{.stream = stream_of(context),
                              .library = library_.get(),
                              .compute = compute_,
                              .y = y,
                              .x = x,
                              .weight = weight,
                              .epilogue = epilogue,
                              .norm = norm,
                              .is_strict = is_strict_};
  const bool takes_norm =
      weight.layout == Layout::kCudaF8 ? cuda::accepts_quantize_normed(x, norm.weight)
      : weight.layout == Layout::kCudaI8
          ? cuda::accepts_int8_tokens(x, norm.weight)
          : cuda::accepts_gemv(call) || cuda::accepts_gemv_tokens(call) || cuda::accepts_gemv_integer(call);
  const bool is_taken = is_strict_ ? cuda::accepts_strict_norm(call) : takes_norm && accepts_norm(call);
  if (!norm.weight.is_given() || !forced_kernel("linear").empty() || !is_taken) {
    return Ops::norm_linear(context, y, x, norm, weight, epilogue);
  }
  cuda::linear(call);
}

void CudaOps::norm_gated_linear(OpContext& context, TensorView y, ConstTensorView x, const InputNorm& norm,
                                const Weight& weight, ConstTensorView bias, Activation activation) {
  const cuda::LinearCall call{.stream = stream_of(context),
                              .library = library_.get(),
                              .compute = compute_,
                              .y = y,
                              .x = x,
                              .weight = weight,
                              .epilogue = {.bias = bias, .residual = {}},
                              .norm = norm,
                              .gate = activation == Activation::kSilu ? cuda::Gate::kSilu : cuda::Gate::kGeluTanh,
                              .is_strict = is_strict_};
  CHECK(y.size(0) == x.size(0));
  CHECK(2 * y.size(1) == weight.n);
  CHECK(x.size(1) == weight.k);
  if (!forced_kernel("linear").empty()) return Ops::norm_gated_linear(context, y, x, norm, weight, bias, activation);
  if (is_strict_) return strict_gated_linear(context, call, activation);
  if (cuda::accepts_gated_gemv_tokens(call)) return cuda::linear_gemv_tokens(call);
  if (cuda::accepts_gated_gemv(call)) return cuda::linear_gemv(call);
  if (cuda::accepts_gated_gemv_integer(call)) return cuda::linear_gemv_integer(call);
  if (cuda::accepts_gated_int8(call)) return cuda::linear_int8(call);
  const bool takes_norm =
      !norm.weight.is_given() || (weight.layout == Layout::kCudaF8 && cuda::accepts_quantize_normed(x, norm.weight));
  if (takes_norm) {
    if (cuda::accepts_gated_even_rows(call)) return cuda::linear_even_rows(call);
    if (cuda::accepts_gated_few_tokens(call)) return cuda::linear_few_tokens(call);
    if (cuda::accepts_gated_few_tokens_integer(call)) return cuda::linear_few_tokens_integer(call);
    if (weight.layout == Layout::kCudaF8) return norm_gated_linear_f8(context, call);
    return Ops::norm_gated_linear(context, y, x, norm, weight, bias, activation);
  }
  const ArenaScope scope(context.scratch);
  const TensorView normed = context.scratch.take(call.dtype(), {x.size(0), x.size(1)});
  rms_norm(context, normed, x, norm.weight, norm.epsilon);
  norm_gated_linear(context, y, normed, {}, weight, bias, activation);
}

void CudaOps::norm_gated_linear_f8(OpContext& context, const cuda::LinearCall& call) {
  const TensorView& y = call.y;
  const ArenaScope scope(context.scratch);
  const TensorView both = context.scratch.take(y.dtype(), {y.size(0), 2 * y.size(1)});
  norm_linear(context, both, call.x, call.norm, call.weight, call.epilogue);
  if (cuda::accepts_gate_tokens(y) && cuda::fits_f8_tokens(*library_, y.size(0), y.size(1))) {
    const cuda::F8Tokens tokens = cuda::f8_tokens(*library_, y.size(0), y.size(1));
    cuda::gate_tokens_to_f8(stream_of(context),
                            {.y = y, .both = both, .gate = call.gate, .codes = tokens.codes, .scales = tokens.scales});
    library_->leave_rounded(y);
    return;
  }
  gated_activation(context, y, both.slice(1, 0, y.size(1)), both.slice(1, y.size(1), 2 * y.size(1)),
                   call.gate == cuda::Gate::kSilu ? Activation::kSilu : Activation::kGeluTanh);
}

void CudaOps::strict_gated_linear(OpContext& context, const cuda::LinearCall& call, Activation activation) {
  if (cuda::accepts_strict_gate(call)) return cuda::linear_strict(call);
  if (call.norm.weight.is_given()) {
    const ArenaScope scope(context.scratch);
    const TensorView normed = context.scratch.take(call.dtype(), {call.x.size(0), call.x.size(1)});
    cuda::LinearCall normed_call = call;
    normed_call.norm = {};
    normed_call.x = normed;
    if (cuda::accepts_strict_gate(normed_call)) {
      rms_norm(context, normed, call.x, call.norm.weight, call.norm.epsilon);
      return cuda::linear_strict(normed_call);
    }
  }
  Ops::norm_gated_linear(context, call.y, call.x, call.norm, call.weight, call.epilogue.bias, activation);
}

}  // namespace quire

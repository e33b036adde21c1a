// Linear layers on the GPU: the call, and the table of kernel rows. `decode` rows give a token the same bits whatever
// the number of tokens.
#pragma once

#include <cuda_runtime.h>

#include <span>

#include "ops/kernel_table.h"
#include "ops/ops.h"

namespace quire::cuda {

class LinearLibrary;  // linear_cublaslt.h

enum class Gate : uint8_t { kNone, kSilu, kGeluTanh };

struct LinearCall {
  cudaStream_t stream;
  LinearLibrary* library;
  Compute compute;
  TensorView y;
  ConstTensorView x;
  const Weight& weight;
  Epilogue epilogue = {};
  ConstTensorView offsets = {};  // of a grouped call: [num_experts + 1] i32 on the device
  InputNorm norm = {};      // of x; taken by `gemv`, `gemv_tokens` (up to 8 tokens), `gemv_integer`, and the rows that
                            // round activations to 8 bits; these, `even_rows` and `few_tokens_integer` take a gate:
  Gate gate = Gate::kNone;  // y = activation(first half of the outputs) * second half
  bool is_strict = false;   // a token's bits shall not depend on the number of tokens: see linear_strict.h

  // Of what is multiplied: the template argument of kernels. x itself is f32 where the residual stream is and a norm
  // is given.
  DType dtype() const { return norm.output_dtype(x); }
};

std::span<const KernelRow<LinearCall>> linear_rows();

// Checks the shapes; nothing to do where a size is zero.
void linear(const LinearCall& call, std::string_view forced_row = {});

// The launchers of the rows, each in its own file.
void linear_any_shape(const LinearCall& call);
bool accepts_gemv(const LinearCall& call);
bool accepts_gated_gemv(const LinearCall& call);
void linear_gemv(const LinearCall& call);
bool accepts_gemv_tokens(const LinearCall& call);
bool accepts_gated_gemv_tokens(const LinearCall& call);
void linear_gemv_tokens(const LinearCall& call);
bool accepts_gemv_integer(const LinearCall& call);
bool accepts_gated_gemv_integer(const LinearCall& call);
void linear_gemv_integer(const LinearCall& call);
bool accepts_skinny_mma(const LinearCall& call);
void linear_skinny_mma(const LinearCall& call);

}  // namespace quire::cuda

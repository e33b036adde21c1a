// Launchers of the kernels that work row by row: norms, sums, activations, rotations, gathers and writes to KV pages.
// One row a kernel: complete for every shape, with 16-byte accesses where pointers and strides allow them. Called by
// CudaOps, which has checked the shapes.
#pragma once

#include <cuda_runtime.h>

#include "tensor/paged_kv.h"
#include "tensor/tensor.h"

namespace quire::cuda {

enum class BinaryOp : uint8_t { kSiluMultiply, kGeluTanhMultiply };

void binary(cudaStream_t stream, BinaryOp op, const TensorView& y, const ConstTensorView& a, const ConstTensorView& b);
// y = a + b; y and a are of one dtype, b of the same, or of 16 bits beside f32.
void add(cudaStream_t stream, const TensorView& y, const ConstTensorView& a, const ConstTensorView& b);
// y = residual + bias, or bias alone where no residual is given; y may be the residual.   bias: [size] f32
void add_bias(cudaStream_t stream, const TensorView& y, const ConstTensorView& residual, const ConstTensorView& bias);
// Rows of x as e4m3, [num_tokens, k], each with a scale that makes its largest 448; normed first, and rounded to x's
// dtype, where a norm is given.
struct QuantizeTokensArgs {
  uint8_t* codes;
  float* scales;
  ConstTensorView x;
  ConstTensorView norm_weight;  // or not given; then x has at most kMaxNormedF8 columns
  float epsilon;
};
constexpr int64_t kMaxNormedF8 = 16384;
bool accepts_quantize_normed(const ConstTensorView& x, const ConstTensorView& norm_weight);
void quantize_tokens_to_f8(cudaStream_t stream, const QuantizeTokensArgs& args);
// The same with a scale for each 128 columns, and whatever number of them where no norm is given: [k / 128 rounded up
// to a multiple of 2, scale_stride]. x is f16 or bf16, its rows vectors of 16 bytes.
struct QuantizeGroupsArgs {
  uint8_t* codes;
  float* scales;
  int scale_stride;
  ConstTensorView x;
  ConstTensorView norm_weight;
  float epsilon;
};
void quantize_groups_to_f8(cudaStream_t stream, const QuantizeGroupsArgs& args);
void soft_cap(cudaStream_t stream, const TensorView& x, float cap);
void gather_rows(cudaStream_t stream, const TensorView& y, const ConstTensorView& x, const ConstTensorView& rows);

// y = rms_norm(x) * weight; where delta is given, x becomes x + delta first, rounded to its dtype. x is of y's dtype,
// or f32.
struct RmsNormArgs {
  TensorView y;
  ConstTensorView x;
  ConstTensorView delta;  // of y's dtype; or not given
  TensorView x_sum;       // x again, where delta is given
  ConstTensorView weight;
  float epsilon;
};
void rms_norm(cudaStream_t stream, const RmsNormArgs& args);

void rope_table(cudaStream_t stream, const TensorView& table, const ConstTensorView& positions,
                const ConstTensorView& inverse_frequencies, float attention_factor);
void rope(cudaStream_t stream, const TensorView& x, const ConstTensorView& table, bool is_interleaved);
// rope on q and k and write_kv at once, 16 bytes an access: whole heads are rotated, and the cache has their dtype.
struct RopeWriteArgs {
  TensorView q;
  ConstTensorView k;
  ConstTensorView v;
  ConstTensorView table;
  bool is_interleaved;
  PagedKv kv;
  ConstTensorView slots;
};
bool accepts_rope_and_write(const RopeWriteArgs& args);
void rope_and_write(cudaStream_t stream, const RopeWriteArgs& args);
void write_kv(cudaStream_t stream, const PagedKv& kv, const ConstTensorView& k, const ConstTensorView& v,
              const ConstTensorView& slots);

}  // namespace quire::cuda

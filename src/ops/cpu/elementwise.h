// Kernel rows of the CPU's ops that work row by row: norms, sums, activations, rotations, writes to the KV memory. A
// call is a slice of the work, plain pointers and numbers; cpu_ops makes the calls and shares the slices among threads.
// All rows of a table compute the same operations in the same order: sixteen lanes and one tree of sums
// (lanes_scalar.h).
#pragma once

#include <cstdint>
#include <span>

#include "base/cpu_info.h"
#include "ops/kernel_table.h"
#include "tensor/dtype.h"

namespace quire::cpu {

// Where the rows of a [num_tokens, num_heads, size] tensor stand; row r is head r % num_heads of token r / num_heads.
struct HeadRows {
  float* data;
  int64_t token_stride;
  int64_t head_stride;
};
struct ConstHeadRows {
  const float* data;
  int64_t token_stride;
  int64_t head_stride;
};

// y = rms_norm(x) * weight for rows [begin, end). With a delta, x + delta is stored to x_sum first and normed.
struct RmsNormCall {
  const CpuFeatures& features;
  HeadRows y;
  ConstHeadRows x;
  ConstHeadRows delta;  // data may be null
  HeadRows x_sum;       // used with a delta
  const float* weight;
  float epsilon;
  int64_t size;
  int64_t num_heads;
  int64_t begin;
  int64_t end;
};

enum class BinaryOp : uint8_t { kAdd, kSiluMultiply, kGeluTanhMultiply };

// y = a + b, or activation(a) * b, for rows [begin, end).
struct BinaryCall {
  const CpuFeatures& features;
  BinaryOp op;
  float* y;
  const float* a;
  const float* b;
  int64_t y_stride;
  int64_t a_stride;
  int64_t b_stride;
  int64_t size;
  int64_t begin;
  int64_t end;
};

// x = cap * tanh(x / cap) for rows [begin, end).
struct SoftCapCall {
  const CpuFeatures& features;
  float* x;
  int64_t stride;
  float cap;
  int64_t size;
  int64_t begin;
  int64_t end;
};

// Rotates rows [begin, end): head r % num_heads of token r / num_heads.
struct RopeCall {
  const CpuFeatures& features;
  HeadRows x;
  const float* table;  // per token: half_size cosines, then half_size sines
  int64_t table_stride;
  int64_t half_size;
  bool is_interleaved;
  int64_t num_heads;
  int64_t begin;
  int64_t end;
};

// Stores rows [begin, end) of K and V in their slots.
struct WriteKvCall {
  const CpuFeatures& features;
  ConstHeadRows k;
  ConstHeadRows v;
  void* k_cache;
  void* v_cache;
  DType dtype;
  int64_t page_stride;
  int64_t head_stride;
  int64_t token_stride;
  int64_t page_size;
  const int64_t* slots;  // one a token; < 0: not written
  int64_t head_dim;
  int64_t num_heads;
  int64_t begin;
  int64_t end;
};

std::span<const KernelRow<RmsNormCall>> rms_norm_rows();
std::span<const KernelRow<BinaryCall>> binary_rows();
std::span<const KernelRow<SoftCapCall>> soft_cap_rows();
std::span<const KernelRow<RopeCall>> rope_rows();
std::span<const KernelRow<WriteKvCall>> write_kv_rows();

}  // namespace quire::cpu

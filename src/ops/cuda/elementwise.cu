// Kernels that work row by row. All are bound by memory: each reads its inputs and writes its outputs once (rms_norm
// reads x twice, the second time from cache). Sums are float, in an order that depends on the row's size alone.
#include "ops/cuda/elementwise.h"

#include <cuda_fp8.h>

#include <algorithm>

#include "ops/cuda/cuda_support.h"
#include "ops/cuda/device_dtype.cuh"
#include "ops/cuda/launch.cuh"

namespace quire::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxGridRows = 65535;

// A [tokens, heads, size] tensor; a matrix has one head.
template <typename Pointer>
struct Rows {
  Pointer data;
  int64_t token_stride;
  int64_t head_stride;
};

template <typename T>
Rows<T*> rows_of(const TensorView& x) {
  return {static_cast<T*>(x.raw_data()), x.stride(0), x.rank() == 3 ? x.stride(1) : 0};
}
template <typename T>
Rows<const T*> rows_of(const ConstTensorView& x) {
  return {static_cast<const T*>(x.raw_data()), x.stride(0), x.rank() == 3 ? x.stride(1) : 0};
}

// Whether every row can be read in vectors of 16 bytes.
bool is_vectorizable(const ConstTensorView& x) {
  const int64_t per_vector = 16 / dtype_bytes(x.dtype());
  for (int d = 0; d + 1 < x.rank(); ++d) {
    if (x.stride(d) % per_vector != 0) return false;
  }
  return is_aligned(x.raw_data(), 16) && x.size(x.rank() - 1) % per_vector == 0;
}

__device__ __forceinline__ float apply(BinaryOp op, float a, float b) {
  if (op == BinaryOp::kAdd) return a + b;
  if (op == BinaryOp::kSiluMultiply) return a / (1.0f + expf(-a)) * b;
  constexpr float kSqrtTwoOverPi = 0.7978845608028654f;
  return 0.5f * a * (1.0f + tanhf(kSqrtTwoOverPi * (a + 0.044715f * a * a * a))) * b;
}

// Grid: x over the row's vectors, y over rows.
template <typename T, int V>
__global__ void binary_kernel(BinaryOp op, Rows<T*> y, Rows<const T*> a, Rows<const T*> b, int64_t num_rows,
                              int64_t size) {
  using Vec = Vector<T, V>;
  let_next_start();
  wait_for_previous();
  const int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * V;
  if (i >= size) return;
  for (int64_t row = blockIdx.y; row < num_rows; row += gridDim.y) {
    const Vec left = *reinterpret_cast<const Vec*>(a.data + row * a.token_stride + i);
    const Vec right = *reinterpret_cast<const Vec*>(b.data + row * b.token_stride + i);
    Vec out;
#pragma unroll
    for (int j = 0; j < V; ++j) out.v[j] = from_float<T>(apply(op, to_float(left.v[j]), to_float(right.v[j])));
    *reinterpret_cast<Vec*>(y.data + row * y.token_stride + i) = out;
  }
}

template <typename T>
__global__ void add_bias_kernel(Rows<T*> y, Rows<const T*> residual, const float* bias, int64_t num_rows,
                                int64_t size) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= size) return;
  for (int64_t row = blockIdx.y; row < num_rows; row += gridDim.y) {
    const float other = residual.data != nullptr ? to_float(residual.data[row * residual.token_stride + i]) : 0.0f;
    y.data[row * y.token_stride + i] = from_float<T>(bias[i] + other);
  }
}

__global__ void soft_cap_kernel(float* x, int64_t stride, int64_t num_rows, int64_t size, float cap) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= size) return;
  for (int64_t row = blockIdx.y; row < num_rows; row += gridDim.y) {
    float& value = x[row * stride + i];
    value = cap * tanhf(value / cap);
  }
}

// Moves elements of 2 or 4 bytes.
template <typename T>
__global__ void gather_rows_kernel(Rows<T*> y, Rows<const T*> x, const int32_t* rows, int64_t num_rows, int64_t size) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= size) return;
  for (int64_t row = blockIdx.y; row < num_rows; row += gridDim.y) {
    y.data[row * y.token_stride + i] = x.data[rows[row] * x.token_stride + i];
  }
}

// blockDim.x threads a row, blockDim.y rows a block; blockDim.x is 32 where blockDim.y is more than 1.
template <typename T, int V>
__global__ void rms_norm_kernel(Rows<T*> y, Rows<const T*> x, Rows<const T*> delta, Rows<T*> x_sum, const float* weight,
                                float epsilon, int64_t num_rows, int num_heads, int64_t size) {
  using Vec = Vector<T, V>;
  __shared__ float partial[32];
  let_next_start();
  wait_for_previous();
  const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (row >= num_rows) return;
  const int64_t token = row / num_heads;
  const int64_t head = row % num_heads;
  const T* input = x.data + token * x.token_stride + head * x.head_stride;
  T* output = y.data + token * y.token_stride + head * y.head_stride;
  float sum = 0;
  for (int64_t i = int64_t{threadIdx.x} * V; i < size; i += blockDim.x * V) {
    Vec value = *reinterpret_cast<const Vec*>(input + i);
    if (delta.data != nullptr) {
      const Vec other =
          *reinterpret_cast<const Vec*>(delta.data + token * delta.token_stride + head * delta.head_stride + i);
#pragma unroll
      for (int j = 0; j < V; ++j) value.v[j] = from_float<T>(to_float(value.v[j]) + to_float(other.v[j]));
      *reinterpret_cast<Vec*>(x_sum.data + token * x_sum.token_stride + head * x_sum.head_stride + i) = value;
    }
#pragma unroll
    for (int j = 0; j < V; ++j) sum += to_float(value.v[j]) * to_float(value.v[j]);
  }
  sum = warp_sum(sum);
  if (blockDim.x > 32) {
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int warp = 0; warp < static_cast<int>(blockDim.x) / 32; ++warp) sum += partial[warp];
  }
  const float factor = 1.0f / sqrtf(sum / static_cast<float>(size) + epsilon);
  // Each thread reads back what it alone has written or read.
  for (int64_t i = int64_t{threadIdx.x} * V; i < size; i += blockDim.x * V) {
    const Vec value = *reinterpret_cast<const Vec*>(input + i);
    Vec out;
#pragma unroll
    for (int j = 0; j < V; ++j) out.v[j] = from_float<T>(to_float(value.v[j]) * factor * weight[i + j]);
    *reinterpret_cast<Vec*>(output + i) = out;
  }
}

// The same for wide rows of at most 16,384 elements: a block a row, whose elements stay in registers.
constexpr int kRowThreads = 512;
constexpr int kRowVectors = 4;
template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    rms_norm_row_kernel(Rows<T*> y, Rows<const T*> x, Rows<const T*> delta, Rows<T*> x_sum, const float* weight,
                        float epsilon, int size) {
  using Vec = Vector<T, 8>;
  __shared__ float partial[kRowThreads / 32];
  const int num_threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  let_next_start();
  wait_for_previous();
  const T* input = x.data + blockIdx.x * x.token_stride;
  Vec values[kRowVectors];
#pragma unroll
  for (int v = 0; v < kRowVectors; ++v) {
    const int i = (v * num_threads + thread) * 8;
    if (i < size) values[v] = *reinterpret_cast<const Vec*>(input + i);
  }
  float sum = 0;
#pragma unroll
  for (int v = 0; v < kRowVectors; ++v) {
    const int i = (v * num_threads + thread) * 8;
    if (i >= size) break;
    if (delta.data != nullptr) {
      const Vec other = *reinterpret_cast<const Vec*>(delta.data + blockIdx.x * delta.token_stride + i);
#pragma unroll
      for (int j = 0; j < 8; ++j) values[v].v[j] = from_float<T>(to_float(values[v].v[j]) + to_float(other.v[j]));
      *reinterpret_cast<Vec*>(x_sum.data + blockIdx.x * x_sum.token_stride + i) = values[v];
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += to_float(values[v].v[j]) * to_float(values[v].v[j]);
  }
  sum = warp_sum(sum);
  if (thread % 32 == 0) partial[thread / 32] = sum;
  __syncthreads();
  sum = 0;
  for (int warp = 0; warp < num_threads / 32; ++warp) sum += partial[warp];
  const float factor = 1.0f / sqrtf(sum / static_cast<float>(size) + epsilon);
  T* output = y.data + blockIdx.x * y.token_stride;
#pragma unroll
  for (int v = 0; v < kRowVectors; ++v) {
    const int i = (v * num_threads + thread) * 8;
    if (i >= size) break;
    Vec out;
#pragma unroll
    for (int j = 0; j < 8; j += 4) {
      const float4 weights = *reinterpret_cast<const float4*>(weight + i + j);
      out.v[j] = from_float<T>(to_float(values[v].v[j]) * factor * weights.x);
      out.v[j + 1] = from_float<T>(to_float(values[v].v[j + 1]) * factor * weights.y);
      out.v[j + 2] = from_float<T>(to_float(values[v].v[j + 2]) * factor * weights.z);
      out.v[j + 3] = from_float<T>(to_float(values[v].v[j + 3]) * factor * weights.w);
    }
    *reinterpret_cast<Vec*>(output + i) = out;
  }
}

// A thread an angle.
__global__ void rope_table_kernel(float* table, int64_t stride, const int32_t* positions,
                                  const float* inverse_frequencies, float attention_factor, int64_t num_tokens,
                                  int half) {
  const int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index >= num_tokens * half) return;
  const int64_t token = index / half;
  const int64_t i = index % half;
  const float angle = __fmul_rn(static_cast<float>(positions[token]), inverse_frequencies[i]);
  table[token * stride + i] = cosf(angle) * attention_factor;
  table[token * stride + half + i] = sinf(angle) * attention_factor;
}

// A thread a pair. Every product is rounded, as ops.h says.
template <typename T>
__global__ void rope_kernel(Rows<T*> x, const float* table, int64_t table_stride, bool is_interleaved,
                            int64_t num_pairs, int num_heads, int half) {
  const int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index >= num_pairs) return;
  const int i = static_cast<int>(index % half);
  const int64_t row = index / half;
  const int64_t token = row / num_heads;
  T* elements = x.data + token * x.token_stride + row % num_heads * x.head_stride;
  T& first = elements[is_interleaved ? 2 * i : i];
  T& second = elements[is_interleaved ? 2 * i + 1 : i + half];
  const float cosine = table[token * table_stride + i];
  const float sine = table[token * table_stride + half + i];
  const float a = to_float(first);
  const float b = to_float(second);
  first = from_float<T>(__fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine)));
  second = from_float<T>(__fadd_rn(__fmul_rn(b, cosine), __fmul_rn(a, sine)));
}

// A thread an element of K and the same of V.
template <typename T>
__global__ void write_kv_kernel(PagedKv kv, Rows<const T*> k, Rows<const T*> v, const int64_t* slots,
                                int64_t num_elements) {
  const int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index >= num_elements) return;
  const int64_t d = index % kv.head_dim;
  const int64_t head = index / kv.head_dim % kv.num_kv_heads;
  const int64_t token = index / kv.head_dim / kv.num_kv_heads;
  const int64_t slot = slots[token];
  if (slot < 0) return;
  const int64_t offset =
      slot / kv.page_size * kv.page_stride + head * kv.head_stride + slot % kv.page_size * kv.token_stride + d;
  store_float_as(kv.k, kv.dtype, offset, to_float(k.data[token * k.token_stride + head * k.head_stride + d]));
  store_float_as(kv.v, kv.dtype, offset, to_float(v.data[token * v.token_stride + head * v.head_stride + d]));
}

// Codes of a row are of x times 1 / scale: the largest becomes 448, but for the rounding of the scale to bf16.
__device__ __forceinline__ float f8_scale_of(float largest) {
  const float scale = to_float(from_float<bf16>(largest / 448.0f));
  return scale > 0 ? scale : 1.0f;
}

// The same for an e4m3 cache: a warp a row of K or of V. Grid: x rows of K and then of V.
template <typename T>
__global__ void write_kv_f8_kernel(PagedKv kv, Rows<const T*> k, Rows<const T*> v, const int64_t* slots,
                                   int64_t num_rows) {
  const int64_t row = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= 2 * num_rows) return;
  const bool is_v = row >= num_rows;
  const int64_t token = row % num_rows / kv.num_kv_heads;
  const int64_t head = row % kv.num_kv_heads;
  const int64_t slot = slots[token];
  if (slot < 0) return;
  const Rows<const T*>& rows = is_v ? v : k;
  const T* source = rows.data + token * rows.token_stride + head * rows.head_stride;
  float largest = 0;
  for (int d = lane; d < kv.head_dim; d += 32) largest = fmaxf(largest, fabsf(to_float(source[d])));
  const float scale = f8_scale_of(warp_max(largest));
  const float inverse = 1.0f / scale;
  const int64_t page = slot / kv.page_size;
  const int64_t offset = slot % kv.page_size;
  uint8_t* target = static_cast<uint8_t*>(is_v ? kv.v : kv.k) + page * kv.page_stride + head * kv.head_stride +
                    offset * kv.token_stride;
  for (int d = lane; d < kv.head_dim; d += 32) {
    target[d] = __nv_cvt_float_to_fp8(to_float(source[d]) * inverse, __NV_SATFINITE, __NV_E4M3);
  }
  if (lane == 0) {
    static_cast<bf16*>(is_v ? kv.v_scales : kv.k_scales)[page * kv.scale_page_stride + head * kv.page_size + offset] =
        from_float<bf16>(scale);
  }
}

// A block a token; x is read twice, the second time from cache. 8 elements an access where is_wide.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    quantize_tokens_kernel(uint8_t* codes, float* scales, Rows<const T*> x, int64_t k, bool is_wide) {
  __shared__ float partial[kThreads / 32];
  let_next_start();
  wait_for_previous();
  const T* row = x.data + blockIdx.x * x.token_stride;
  uint8_t* out = codes + blockIdx.x * k;
  float largest = 0;
  if (is_wide) {
    for (int64_t i = threadIdx.x * 8; i < k; i += kThreads * 8) {
      const Vector<T, 8> values = *reinterpret_cast<const Vector<T, 8>*>(row + i);
#pragma unroll
      for (int j = 0; j < 8; ++j) largest = fmaxf(largest, fabsf(to_float(values.v[j])));
    }
  } else {
    for (int64_t i = threadIdx.x; i < k; i += kThreads) largest = fmaxf(largest, fabsf(to_float(row[i])));
  }
  largest = warp_max(largest);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = largest;
  __syncthreads();
  for (int warp = 0; warp < kThreads / 32; ++warp) largest = fmaxf(largest, partial[warp]);
  const float scale = largest > 0 ? largest / 448.0f : 1.0f;
  const float inverse = 1.0f / scale;
  if (is_wide) {
    for (int64_t i = threadIdx.x * 8; i < k; i += kThreads * 8) {
      const Vector<T, 8> values = *reinterpret_cast<const Vector<T, 8>*>(row + i);
      Vector<uint16_t, 4> packed;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        packed.v[j] = __nv_cvt_float2_to_fp8x2(
            {to_float(values.v[2 * j]) * inverse, to_float(values.v[2 * j + 1]) * inverse}, __NV_SATFINITE, __NV_E4M3);
      }
      *reinterpret_cast<Vector<uint16_t, 4>*>(out + i) = packed;
    }
  } else {
    for (int64_t i = threadIdx.x; i < k; i += kThreads) {
      out[i] = __nv_cvt_float_to_fp8(to_float(row[i]) * inverse, __NV_SATFINITE, __NV_E4M3);
    }
  }
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
}

// The same for at most 16,384 columns, which stay in registers, with a norm where norm_weight is given. A block a
// token.
template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    norm_quantize_tokens_kernel(uint8_t* codes, float* scales, Rows<const T*> x, const float* norm_weight,
                                float epsilon, int k) {
  using Vec = Vector<T, 8>;
  __shared__ float partial[2][kRowThreads / 32];
  const int num_warps = static_cast<int>(blockDim.x) / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  let_next_start();
  wait_for_previous();
  const T* row = x.data + blockIdx.x * x.token_stride;
  Vec values[kRowVectors];
  float largest = 0;
  float sum = 0;
#pragma unroll
  for (int v = 0; v < kRowVectors; ++v) {
    const int i = (v * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * 8;
    if (i < k) values[v] = *reinterpret_cast<const Vec*>(row + i);
  }
#pragma unroll
  for (int v = 0; v < kRowVectors; ++v) {
    const int i = (v * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * 8;
    if (i >= k) break;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float value = to_float(values[v].v[j]);
      sum += value * value;
      largest = fmaxf(largest, fabsf(value));
    }
  }
  if (norm_weight != nullptr) {
    sum = warp_sum(sum);
    if (lane == 0) partial[0][warp] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < num_warps; ++w) sum += partial[0][w];
    const float factor = 1.0f / sqrtf(sum / static_cast<float>(k) + epsilon);
    largest = 0;
#pragma unroll
    for (int v = 0; v < kRowVectors; ++v) {
      const int i = (v * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * 8;
      if (i >= k) break;
#pragma unroll
      for (int j = 0; j < 8; j += 4) {
        const float4 weight = *reinterpret_cast<const float4*>(norm_weight + i + j);
        const float weights[4] = {weight.x, weight.y, weight.z, weight.w};
#pragma unroll
        for (int l = 0; l < 4; ++l) {
          values[v].v[j + l] = from_float<T>(to_float(values[v].v[j + l]) * factor * weights[l]);
          largest = fmaxf(largest, fabsf(to_float(values[v].v[j + l])));
        }
      }
    }
  }
  largest = warp_max(largest);
  if (lane == 0) partial[1][warp] = largest;
  __syncthreads();
  for (int w = 0; w < num_warps; ++w) largest = fmaxf(largest, partial[1][w]);
  const float scale = largest > 0 ? largest / 448.0f : 1.0f;
  const float inverse = 1.0f / scale;
  uint8_t* out = codes + int64_t{blockIdx.x} * k;
#pragma unroll
  for (int v = 0; v < kRowVectors; ++v) {
    const int i = (v * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * 8;
    if (i >= k) break;
    Vector<uint16_t, 4> packed;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      packed.v[j] =
          __nv_cvt_float2_to_fp8x2({to_float(values[v].v[2 * j]) * inverse, to_float(values[v].v[2 * j + 1]) * inverse},
                                   __NV_SATFINITE, __NV_E4M3);
    }
    *reinterpret_cast<Vector<uint16_t, 4>*>(out + i) = packed;
  }
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
}

template <typename T>
struct RopeWrite {
  Rows<T*> q;
  Rows<const T*> k;
  Rows<const T*> v;
  const float* table;
  int64_t table_stride;
  const int64_t* slots;
  PagedKv kv;
  int num_heads;
  bool is_interleaved;
  int64_t num_items;
};

__device__ __forceinline__ uint2 pack_f8(const float (&x)[8], float factor) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = __nv_cvt_float2_to_fp8x2({x[2 * i] * factor, x[2 * i + 1] * factor}, __NV_SATFINITE, __NV_E4M3);
  }
  return {words[0] | words[1] << 16, words[2] | words[3] << 16};
}

// A thread 16 elements of a head: 8 pairs of q or of k, or 16 elements of v. Heads of a token: q's, k's, v's. Where the
// cache is e4m3 a head's threads are neighbours in one warp.
template <typename T, bool IsF8>
__global__ void rope_and_write_kernel(RopeWrite<T> args) {
  using Vec = Vector<T, 8>;
  let_next_start();
  wait_for_previous();
  const int64_t own_index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (!IsF8 && own_index >= args.num_items) return;
  const int64_t index = min(own_index, args.num_items - 1);  // all lanes of a warp go on together
  const int num_kv_heads = args.kv.num_kv_heads;
  const int half = args.kv.head_dim / 2;
  const int chunks = half / 8;
  const int all_heads = args.num_heads + 2 * num_kv_heads;
  const int chunk = static_cast<int>(index % chunks);
  const int64_t row = index / chunks;
  const int head = static_cast<int>(row % all_heads);
  const int64_t token = row / all_heads;
  const bool is_q = head < args.num_heads;
  const bool is_v = head >= args.num_heads + num_kv_heads;
  const int kv_head = is_v ? head - args.num_heads - num_kv_heads : head - args.num_heads;
  const T* source = is_q   ? args.q.data + token * args.q.token_stride + head * args.q.head_stride
                    : is_v ? args.v.data + token * args.v.token_stride + kv_head * args.v.head_stride
                           : args.k.data + token * args.k.token_stride + kv_head * args.k.head_stride;
  // Where the two vectors of 8 lie: a half apart, or one after another.
  const int first_offset = args.is_interleaved || is_v ? 16 * chunk : 8 * chunk;
  const int second_offset = args.is_interleaved || is_v ? first_offset + 8 : first_offset + half;
  Vec first = *reinterpret_cast<const Vec*>(source + first_offset);
  Vec second = *reinterpret_cast<const Vec*>(source + second_offset);
  if (!is_v) {
    float cosines[8];
    float sines[8];
    const float* table = args.table + token * args.table_stride + 8 * chunk;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      cosines[i] = table[i];
      sines[i] = table[half + i];
    }
    const auto rotate = [&](T& x, T& y, int i) {
      const float a = to_float(x);
      const float b = to_float(y);
      x = from_float<T>(__fsub_rn(__fmul_rn(a, cosines[i]), __fmul_rn(b, sines[i])));
      y = from_float<T>(__fadd_rn(__fmul_rn(b, cosines[i]), __fmul_rn(a, sines[i])));
    };
    if (args.is_interleaved) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        rotate(first.v[2 * i], first.v[2 * i + 1], i);
        rotate(second.v[2 * i], second.v[2 * i + 1], i + 4);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) rotate(first.v[i], second.v[i], i);
    }
  }
  if constexpr (IsF8) {
    float values[2][8];
    float largest = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      values[0][i] = to_float(first.v[i]);
      values[1][i] = to_float(second.v[i]);
      largest = fmaxf(largest, fmaxf(fabsf(values[0][i]), fabsf(values[1][i])));
    }
    for (int lane = 1; lane < chunks; lane *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, lane));
    }
    if (own_index >= args.num_items) return;
    if (!is_q) {
      const int64_t slot = args.slots[token];
      if (slot < 0) return;
      const float scale = f8_scale_of(largest);
      const float inverse = 1.0f / scale;
      const int64_t page = slot / args.kv.page_size;
      const int64_t offset = slot % args.kv.page_size;
      uint8_t* codes = static_cast<uint8_t*>(is_v ? args.kv.v : args.kv.k) + page * args.kv.page_stride +
                       kv_head * args.kv.head_stride + offset * args.kv.token_stride;
      *reinterpret_cast<uint2*>(codes + first_offset) = pack_f8(values[0], inverse);
      *reinterpret_cast<uint2*>(codes + second_offset) = pack_f8(values[1], inverse);
      if (chunk == 0) {
        static_cast<bf16*>(
            is_v ? args.kv.v_scales
                 : args.kv.k_scales)[page * args.kv.scale_page_stride + kv_head * args.kv.page_size + offset] =
            from_float<bf16>(scale);
      }
      return;
    }
  }
  T* target = nullptr;
  if (is_q) {
    target = args.q.data + token * args.q.token_stride + head * args.q.head_stride;
  } else {
    const int64_t slot = args.slots[token];
    if (slot < 0) return;
    target = static_cast<T*>(is_v ? args.kv.v : args.kv.k) + slot / args.kv.page_size * args.kv.page_stride +
             kv_head * args.kv.head_stride + slot % args.kv.page_size * args.kv.token_stride;
  }
  *reinterpret_cast<Vec*>(target + first_offset) = first;
  *reinterpret_cast<Vec*>(target + second_offset) = second;
}

dim3 row_grid(int64_t num_rows, int64_t num_items) {
  return dim3(static_cast<unsigned>(ceil_div<int64_t>(num_items, kThreads)),
              static_cast<unsigned>(std::min(num_rows, kMaxGridRows)));
}
unsigned flat_grid(int64_t num_items) {
  return static_cast<unsigned>(ceil_div<int64_t>(num_items, kThreads));
}

}  // namespace

void binary(cudaStream_t stream, BinaryOp op, const TensorView& y, const ConstTensorView& a, const ConstTensorView& b) {
  const int64_t num_rows = y.size(0);
  const int64_t size = y.size(1);
  if (num_rows == 0 || size == 0) return;
  const bool is_wide = is_vectorizable(y) && is_vectorizable(a) && is_vectorizable(b);
  dispatch_activation(y.dtype(), [&](auto type) {
    using T = decltype(type);
    constexpr int V = kVectorSize<T>;
    if (is_wide) {
      launch_dependent(stream, binary_kernel<T, V>, row_grid(num_rows, size / V), dim3(kThreads), op, rows_of<T>(y),
                       rows_of<T>(a), rows_of<T>(b), num_rows, size);
    } else {
      launch_dependent(stream, binary_kernel<T, 1>, row_grid(num_rows, size), dim3(kThreads), op, rows_of<T>(y),
                       rows_of<T>(a), rows_of<T>(b), num_rows, size);
    }
  });
  CUDA_CHECK_LAUNCH();
}

void add_bias(cudaStream_t stream, const TensorView& y, const ConstTensorView& residual, const ConstTensorView& bias) {
  if (y.num_elements() == 0) return;
  dispatch_activation(y.dtype(), [&](auto type) {
    using T = decltype(type);
    const Rows<const T*> other = residual.is_given() ? rows_of<T>(residual) : Rows<const T*>{nullptr, 0, 0};
    add_bias_kernel<T><<<row_grid(y.size(0), y.size(1)), kThreads, 0, stream>>>(
        rows_of<T>(y), other, bias.data<float>(), y.size(0), y.size(1));
  });
  CUDA_CHECK_LAUNCH();
}

void soft_cap(cudaStream_t stream, const TensorView& x, float cap) {
  if (x.num_elements() == 0) return;
  soft_cap_kernel<<<row_grid(x.size(0), x.size(1)), kThreads, 0, stream>>>(x.data<float>(), x.stride(0), x.size(0),
                                                                           x.size(1), cap);
  CUDA_CHECK_LAUNCH();
}

void gather_rows(cudaStream_t stream, const TensorView& y, const ConstTensorView& x, const ConstTensorView& rows) {
  if (y.num_elements() == 0) return;
  const dim3 grid = row_grid(y.size(0), y.size(1));
  const int32_t* sources = rows.data<int32_t>();
  if (dtype_bytes(x.dtype()) == 4) {
    gather_rows_kernel<uint32_t>
        <<<grid, kThreads, 0, stream>>>(rows_of<uint32_t>(y), rows_of<uint32_t>(x), sources, y.size(0), y.size(1));
  } else {
    gather_rows_kernel<uint16_t>
        <<<grid, kThreads, 0, stream>>>(rows_of<uint16_t>(y), rows_of<uint16_t>(x), sources, y.size(0), y.size(1));
  }
  CUDA_CHECK_LAUNCH();
}

void rms_norm(cudaStream_t stream, const RmsNormArgs& args) {
  const ConstTensorView& x = args.x;
  const int64_t size = x.size(x.rank() - 1);
  const int num_heads = x.rank() == 3 ? static_cast<int>(x.size(1)) : 1;
  const int64_t num_rows = x.size(0) * num_heads;
  if (num_rows == 0 || size == 0) return;
  const bool has_delta = args.delta.is_given();
  const bool is_wide = is_vectorizable(x) && is_vectorizable(args.y) && (!has_delta || is_vectorizable(args.delta));
  constexpr int64_t kLeastRowSize = 1024;
  if (is_wide && x.rank() == 2 && x.dtype() != DType::kF32 && size >= kLeastRowSize &&
      size <= kRowThreads * kRowVectors * 8 && is_aligned(args.weight.raw_data(), 16)) {
    const auto launch = [&](auto type) {
      using T = decltype(type);
      const Rows<const T*> delta = has_delta ? rows_of<T>(args.delta) : Rows<const T*>{nullptr, 0, 0};
      const Rows<T*> x_sum = has_delta ? rows_of<T>(args.x_sum) : Rows<T*>{nullptr, 0, 0};
      const int num_threads = std::min<int>(kRowThreads, static_cast<int>(ceil_div<int64_t>(size, 8 * 32)) * 32);
      launch_dependent(stream, rms_norm_row_kernel<T>, dim3(static_cast<unsigned>(num_rows)),
                       dim3(static_cast<unsigned>(num_threads)), rows_of<T>(args.y), rows_of<T>(x), delta, x_sum,
                       args.weight.data<float>(), args.epsilon, static_cast<int>(size));
    };
    if (x.dtype() == DType::kBF16) return launch(bf16());
    return launch(f16());
  }
  dispatch_activation(x.dtype(), [&](auto type) {
    using T = decltype(type);
    const Rows<const T*> delta = has_delta ? rows_of<T>(args.delta) : Rows<const T*>{nullptr, 0, 0};
    const Rows<T*> x_sum = has_delta ? rows_of<T>(args.x_sum) : Rows<T*>{nullptr, 0, 0};
    const int64_t num_items = is_wide ? size / kVectorSize<T> : size;
    const dim3 block = num_items <= 64 ? dim3(32, 4) : dim3(num_items <= 512 ? 128 : kThreads, 1);
    const unsigned grid = static_cast<unsigned>(ceil_div<int64_t>(num_rows, block.y));
    const auto kernel = is_wide ? rms_norm_kernel<T, kVectorSize<T>> : rms_norm_kernel<T, 1>;
    launch_dependent(stream, kernel, dim3(grid), block, rows_of<T>(args.y), rows_of<T>(x), delta, x_sum,
                     args.weight.data<float>(), args.epsilon, num_rows, num_heads, size);
  });
  CUDA_CHECK_LAUNCH();
}

void rope_table(cudaStream_t stream, const TensorView& table, const ConstTensorView& positions,
                const ConstTensorView& inverse_frequencies, float attention_factor) {
  const int64_t half = inverse_frequencies.num_elements();
  const int64_t num_tokens = positions.num_elements();
  if (half == 0 || num_tokens == 0) return;
  rope_table_kernel<<<flat_grid(num_tokens * half), kThreads, 0, stream>>>(
      table.data<float>(), table.stride(0), positions.data<int32_t>(), inverse_frequencies.data<float>(),
      attention_factor, num_tokens, static_cast<int>(half));
  CUDA_CHECK_LAUNCH();
}

void rope(cudaStream_t stream, const TensorView& x, const ConstTensorView& table, bool is_interleaved) {
  const int half = static_cast<int>(table.size(1) / 2);
  const int64_t num_pairs = x.size(0) * x.size(1) * half;
  if (num_pairs == 0) return;
  dispatch_activation(x.dtype(), [&](auto type) {
    using T = decltype(type);
    rope_kernel<T><<<flat_grid(num_pairs), kThreads, 0, stream>>>(rows_of<T>(x), table.data<float>(), table.stride(0),
                                                                  is_interleaved, num_pairs,
                                                                  static_cast<int>(x.size(1)), half);
  });
  CUDA_CHECK_LAUNCH();
}

void write_kv(cudaStream_t stream, const PagedKv& kv, const ConstTensorView& k, const ConstTensorView& v,
              const ConstTensorView& slots) {
  const int64_t num_elements = k.num_elements();
  if (num_elements == 0) return;
  dispatch_activation(k.dtype(), [&](auto type) {
    using T = decltype(type);
    if (kv.dtype == DType::kF8E4M3) {
      const int64_t num_rows = k.size(0) * k.size(1);
      write_kv_f8_kernel<T><<<flat_grid(2 * num_rows * 32), kThreads, 0, stream>>>(kv, rows_of<T>(k), rows_of<T>(v),
                                                                                   slots.data<int64_t>(), num_rows);
      return;
    }
    write_kv_kernel<T><<<flat_grid(num_elements), kThreads, 0, stream>>>(kv, rows_of<T>(k), rows_of<T>(v),
                                                                         slots.data<int64_t>(), num_elements);
  });
  CUDA_CHECK_LAUNCH();
}

bool accepts_quantize_normed(const ConstTensorView& x, const ConstTensorView& norm_weight) {
  return x.dtype() != DType::kF32 && is_vectorizable(x) && x.size(1) <= kMaxNormedF8 &&
         (!norm_weight.is_given() || is_aligned(norm_weight.raw_data(), 16));
}

void quantize_tokens_to_f8(cudaStream_t stream, const QuantizeTokensArgs& args) {
  const ConstTensorView& x = args.x;
  if (x.num_elements() == 0) return;
  const dim3 grid(static_cast<unsigned>(x.size(0)));
  const bool is_normed = args.norm_weight.is_given();
  if (accepts_quantize_normed(x, args.norm_weight)) {
    const int k = static_cast<int>(x.size(1));
    const int num_threads = std::min(kRowThreads, ceil_div(k, 8 * 32) * 32);
    const float* weight = is_normed ? args.norm_weight.data<float>() : nullptr;
    const auto launch = [&](auto type) {
      using T = decltype(type);
      launch_dependent(stream, norm_quantize_tokens_kernel<T>, grid, dim3(static_cast<unsigned>(num_threads)),
                       args.codes, args.scales, rows_of<T>(x), weight, args.epsilon, k);
    };
    if (x.dtype() == DType::kBF16) return launch(bf16());
    return launch(f16());
  }
  CHECK(!is_normed);
  const bool is_wide = is_aligned(x.raw_data(), 16) && x.stride(0) % 8 == 0 && x.size(1) % 8 == 0;
  dispatch_activation(x.dtype(), [&](auto type) {
    using T = decltype(type);
    launch_dependent(stream, quantize_tokens_kernel<T>, grid, dim3(kThreads), args.codes, args.scales, rows_of<T>(x),
                     x.size(1), is_wide);
  });
}

bool accepts_rope_and_write(const RopeWriteArgs& args) {
  const PagedKv& kv = args.kv;
  const DType dtype = args.q.dtype();
  const bool is_f8 = kv.dtype == DType::kF8E4M3;
  const int chunks = kv.head_dim / 16;
  if (is_f8 && (chunks > 32 || (chunks & (chunks - 1)) != 0)) return false;
  return dtype != DType::kF32 && args.k.dtype() == dtype && args.v.dtype() == dtype && (is_f8 || kv.dtype == dtype) &&
         kv.head_dim % 16 == 0 && args.q.size(2) == kv.head_dim && args.table.size(1) == kv.head_dim &&
         is_vectorizable(args.q) && is_vectorizable(args.k) && is_vectorizable(args.v) && is_aligned(kv.k, 16) &&
         is_aligned(kv.v, 16) && kv.page_stride % 8 == 0 && kv.head_stride % 8 == 0 && kv.token_stride % 8 == 0;
}

void rope_and_write(cudaStream_t stream, const RopeWriteArgs& args) {
  const PagedKv& kv = args.kv;
  const int num_heads = static_cast<int>(args.q.size(1));
  const int64_t num_items = args.q.size(0) * (num_heads + 2 * kv.num_kv_heads) * (kv.head_dim / 16);
  if (num_items == 0) return;
  dispatch_activation(args.q.dtype(), [&](auto type) {
    using T = decltype(type);
    constexpr int kThreadsHere = 128;
    const RopeWrite<T> call{.q = rows_of<T>(args.q),
                            .k = rows_of<T>(args.k),
                            .v = rows_of<T>(args.v),
                            .table = args.table.data<float>(),
                            .table_stride = args.table.stride(0),
                            .slots = args.slots.data<int64_t>(),
                            .kv = kv,
                            .num_heads = num_heads,
                            .is_interleaved = args.is_interleaved,
                            .num_items = num_items};
    const auto kernel = kv.dtype == DType::kF8E4M3 ? rope_and_write_kernel<T, true> : rope_and_write_kernel<T, false>;
    launch_dependent(stream, kernel, dim3(static_cast<unsigned>(ceil_div<int64_t>(num_items, kThreadsHere))),
                     dim3(kThreadsHere), call);
  });
}

}  // namespace quire::cuda

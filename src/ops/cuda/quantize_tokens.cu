// Activations rounded to e4m3 with a scale a token or for 128 columns of one, after a norm where one is given: see
// QuantizeTokensArgs and QuantizeGroupsArgs.
#include <cuda_fp8.h>

#include "ops/cuda/elementwise.cuh"
#include "ops/cuda/gate.cuh"
#include "ops/cuda/linear_f8.h"
#include "ops/cuda/packed_pairs.cuh"

namespace quire::cuda {

namespace {

struct QuantizeGroupsOutput {
  uint8_t* codes;
  float* scales;
  int scale_stride;
  int num_groups;
  int k;
  int token;
};

template <typename T>
__device__ __forceinline__ void store_codes(uint8_t* codes, const Vector<T, 8>& values, float inverse) {
  Vector<uint16_t, 4> packed;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    packed.v[j] = __nv_cvt_float2_to_fp8x2(
        {to_float(values.v[2 * j]) * inverse, to_float(values.v[2 * j + 1]) * inverse}, __NV_SATFINITE, __NV_E4M3);
  }
  *reinterpret_cast<Vector<uint16_t, 4>*>(codes) = packed;
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
      store_codes(out + i, *reinterpret_cast<const Vector<T, 8>*>(row + i), inverse);
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
  const NormWeights weights(norm_weight, k);
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
        const float4& weight = weights.of[v][j / 4];
        const float four[4] = {weight.x, weight.y, weight.z, weight.w};
#pragma unroll
        for (int l = 0; l < 4; ++l) {
          values[v].v[j + l] = from_float<T>(to_float(values[v].v[j + l]) * factor * four[l]);
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
    store_codes(out + i, values[v], inverse);
  }
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
}

// The larger in size of both places.
__device__ __forceinline__ uint32_t larger(bf16, uint32_t a, uint32_t b) {
  const __nv_bfloat162 largest =
      __hmax2(*reinterpret_cast<const __nv_bfloat162*>(&a), __habs2(*reinterpret_cast<const __nv_bfloat162*>(&b)));
  return *reinterpret_cast<const uint32_t*>(&largest);
}
__device__ __forceinline__ uint32_t larger(f16, uint32_t a, uint32_t b) {
  const __half2 largest =
      __hmax2(*reinterpret_cast<const __half2*>(&a), __habs2(*reinterpret_cast<const __half2*>(&b)));
  return *reinterpret_cast<const uint32_t*>(&largest);
}

// The same for a gated activation, which is stored too. A block a token, at most 16,384 columns. Numbers stay packed in
// pairs, so that two blocks find room.
template <typename T, Gate gate>
__global__ void __launch_bounds__(kRowThreads, 2)
    gate_quantize_tokens_kernel(uint8_t* codes, float* scales, Rows<T*> y, Rows<const T*> both, int k) {
  using Words = Vector<uint32_t, 4>;
  __shared__ float partial[kRowThreads / 32];
  const int num_threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  let_next_start();
  wait_for_previous();
  const T* const gate_row = both.data + blockIdx.x * both.token_stride;
  const T* const up_row = gate_row + k;
  T* const y_row = y.data + blockIdx.x * y.token_stride;
  Words values[kRowVectors];
  Words factors[kRowVectors];
#pragma unroll
  for (int v = 0; v < kRowVectors; ++v) {
    const int i = (v * num_threads + thread) * 8;
    if (i >= k) break;
    values[v] = *reinterpret_cast<const Words*>(gate_row + i);
    factors[v] = *reinterpret_cast<const Words*>(up_row + i);
  }
  uint32_t largest_pair = 0;
#pragma unroll
  for (int v = 0; v < kRowVectors; ++v) {
    const int i = (v * num_threads + thread) * 8;
    if (i >= k) break;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 from = unpack_pair<T>(values[v].v[j]);
      const float2 factor = unpack_pair<T>(factors[v].v[j]);
      values[v].v[j] =
          pack_pair<T>(activate(gate, kDTypeOf<T>, from.x) * factor.x, activate(gate, kDTypeOf<T>, from.y) * factor.y);
      largest_pair = larger(T(), largest_pair, values[v].v[j]);
    }
    *reinterpret_cast<Words*>(y_row + i) = values[v];
  }
  const float2 both_largest = unpack_pair<T>(largest_pair);
  float largest = warp_max(fmaxf(both_largest.x, both_largest.y));
  if (thread % 32 == 0) partial[thread / 32] = largest;
  __syncthreads();
  for (int w = 0; w < num_threads / 32; ++w) largest = fmaxf(largest, partial[w]);
  const float scale = largest > 0 ? largest / 448.0f : 1.0f;
  const float inverse = 1.0f / scale;
  uint8_t* const out = codes + int64_t{blockIdx.x} * k;
#pragma unroll
  for (int v = 0; v < kRowVectors; ++v) {
    const int i = (v * num_threads + thread) * 8;
    if (i >= k) break;
    Vector<uint16_t, 4> packed;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 value = unpack_pair<T>(values[v].v[j]);
      packed.v[j] = __nv_cvt_float2_to_fp8x2({value.x * inverse, value.y * inverse}, __NV_SATFINITE, __NV_E4M3);
    }
    *reinterpret_cast<Vector<uint16_t, 4>*>(out + i) = packed;
  }
  if (thread == 0) scales[blockIdx.x] = scale;
}

// A scale for each 128 columns. ----

constexpr int kGroupThreads = 16;  // that have a group, 8 columns each

// Rounds 8 columns and stores them, and their group's scale; called by all threads of a group.
template <typename T>
__device__ __forceinline__ void store_group(const QuantizeGroupsOutput& out, const Vector<T, 8>& values, int column) {
  float largest = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) largest = fmaxf(largest, fabsf(to_float(values.v[j])));
#pragma unroll
  for (int offset = 1; offset < kGroupThreads; offset *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
  }
  const float scale = largest > 0 ? largest / 448.0f : 1.0f;
  const float inverse = 1.0f / scale;
  const int group = column / 128;
  if (column % 128 == 0 && group < out.num_groups) {
    out.scales[int64_t{group} * out.scale_stride + out.token] = scale;
  }
  if (column >= out.k) return;
  store_codes(out.codes + out.token * int64_t{out.k} + column, values, inverse);
}

// Grid: x columns by 2048, y tokens.
template <typename T>
__global__ void __launch_bounds__(kThreads) quantize_groups_kernel(QuantizeGroupsOutput out, Rows<const T*> x) {
  let_next_start();
  wait_for_previous();
  out.token = static_cast<int>(blockIdx.y);
  const int column = (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) * 8;
  Vector<T, 8> values = {};
  if (column < out.k) values = *reinterpret_cast<const Vector<T, 8>*>(x.data + out.token * x.token_stride + column);
  store_group(out, values, column);
}

// A block a token, at most 16,384 columns.
template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    norm_quantize_groups_kernel(QuantizeGroupsOutput out, Rows<const T*> x, const float* norm_weight, float epsilon) {
  using Vec = Vector<T, 8>;
  __shared__ float partial[kRowThreads / 32];
  const int num_threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  let_next_start();
  const NormWeights weights(norm_weight, out.k);
  wait_for_previous();
  out.token = static_cast<int>(blockIdx.x);
  const T* row = x.data + out.token * x.token_stride;
  Vec values[kRowVectors] = {};
#pragma unroll
  for (int v = 0; v < kRowVectors; ++v) {
    const int column = (v * num_threads + thread) * 8;
    if (column < out.k) values[v] = *reinterpret_cast<const Vec*>(row + column);
  }
  float sum = 0;
#pragma unroll
  for (int v = 0; v < kRowVectors; ++v) {
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += to_float(values[v].v[j]) * to_float(values[v].v[j]);
  }
  sum = warp_sum(sum);
  if (thread % 32 == 0) partial[thread / 32] = sum;
  __syncthreads();
  sum = 0;
  for (int w = 0; w < num_threads / 32; ++w) sum += partial[w];
  const float factor = 1.0f / sqrtf(sum / static_cast<float>(out.k) + epsilon);
#pragma unroll
  for (int v = 0; v < kRowVectors; ++v) {
    const int column = (v * num_threads + thread) * 8;
    if (v * num_threads * 8 >= out.k) break;  // the same for all
    if (column < out.k) {
#pragma unroll
      for (int j = 0; j < 8; j += 4) {
        const float4& weight = weights.of[v][j / 4];
        const float four[4] = {weight.x, weight.y, weight.z, weight.w};
#pragma unroll
        for (int l = 0; l < 4; ++l) {
          values[v].v[j + l] = from_float<T>(to_float(values[v].v[j + l]) * factor * four[l]);
        }
      }
    }
    store_group(out, values[v], column);
  }
}

}  // namespace

void quantize_groups_to_f8(cudaStream_t stream, const QuantizeGroupsArgs& args) {
  const ConstTensorView& x = args.x;
  if (x.num_elements() == 0) return;
  CHECK(is_vectorizable(x));
  const int k = static_cast<int>(x.size(1));
  const int num_padded = ceil_div(k, 256) * 256;
  const QuantizeGroupsOutput out = {.codes = args.codes,
                                    .scales = args.scales,
                                    .scale_stride = args.scale_stride,
                                    .num_groups = num_padded / 128,
                                    .k = k,
                                    .token = 0};
  const unsigned num_tokens = static_cast<unsigned>(x.size(0));
  const auto launch = [&](auto type) {
    using T = decltype(type);
    if (args.norm_weight.is_given()) {
      CHECK(k <= kMaxNormedF8);
      const int num_threads = std::min(kRowThreads, num_padded / 8);
      launch_dependent(stream, norm_quantize_groups_kernel<T>, dim3(num_tokens),
                       dim3(static_cast<unsigned>(num_threads)), out, rows_of<T>(x), args.norm_weight.data<float>(),
                       args.epsilon);
    } else {
      launch_dependent(stream, quantize_groups_kernel<T>,
                       dim3(static_cast<unsigned>(ceil_div(num_padded, 8 * kThreads)), num_tokens), dim3(kThreads), out,
                       rows_of<T>(x));
    }
  };
  if (x.dtype() == DType::kBF16) return launch(bf16());
  CHECK(x.dtype() == DType::kF16);
  launch(f16());
}

bool accepts_quantize_normed(const ConstTensorView& x, const ConstTensorView& norm_weight) {
  return x.dtype() != DType::kF32 && is_vectorizable(x) && x.size(1) <= kMaxNormedF8 &&
         (!norm_weight.is_given() || is_aligned(norm_weight.raw_data(), 16));
}

bool accepts_gate_tokens(const TensorView& y) {
  return y.dtype() != DType::kF32 && is_vectorizable(y) && y.size(1) <= kMaxNormedF8;
}

void gate_tokens_to_f8(cudaStream_t stream, const GateTokensArgs& args) {
  if (args.y.num_elements() == 0) return;
  CHECK(accepts_gate_tokens(args.y));
  CHECK(is_vectorizable(args.both) && args.both.dtype() == args.y.dtype());
  const int k = static_cast<int>(args.y.size(1));
  const int num_rounds = ceil_div(k / 8, kRowThreads);
  const int num_threads = ceil_div(k / 8, 32 * num_rounds) * 32;
  const auto launch = [&](auto type) {
    using T = decltype(type);
    const auto kernel = args.gate == Gate::kSilu ? gate_quantize_tokens_kernel<T, Gate::kSilu>
                                                 : gate_quantize_tokens_kernel<T, Gate::kGeluTanh>;
    launch_dependent(stream, kernel, dim3(static_cast<unsigned>(args.y.size(0))),
                     dim3(static_cast<unsigned>(num_threads)), args.codes, args.scales, rows_of<T>(args.y),
                     rows_of<T>(args.both), k);
  };
  if (args.y.dtype() == DType::kBF16) return launch(bf16());
  launch(f16());
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

}  // namespace quire::cuda

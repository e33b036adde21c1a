// Activations rounded to int8 with a scale a token, after a norm where one is given: see Int8TokensArgs.
#include "ops/cuda/elementwise.cuh"
#include "ops/cuda/linear_int8.h"

namespace quire::cuda {

namespace {

// The larger in size, as bits; NaN is larger than all.
__device__ __forceinline__ uint32_t larger(uint32_t largest, float x) {
  return max(largest, __float_as_uint(x) & 0x7fffffffu);
}

__device__ __forceinline__ uint32_t code_of(float x, float inverse) {
  return static_cast<uint32_t>(max(-127, min(127, __float2int_rn(x * inverse)))) & 255u;
}

// A block a token, whose at most 16,384 columns stay in registers.
template <typename T>
__global__ void __launch_bounds__(kRowThreads) quantize_tokens_kernel(int8_t* codes, float* scales, Rows<const T*> x,
                                                                      const float* norm_weight, float epsilon, int k) {
  using Vec = Vector<T, 8>;
  __shared__ float sums[kRowThreads / 32];
  __shared__ uint32_t largest_of[kRowThreads / 32];
  const int num_warps = static_cast<int>(blockDim.x) / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  let_next_start();
  wait_for_previous();
  const T* row = x.data + blockIdx.x * x.token_stride;
  const auto column = [&](int v) { return (v * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * 8; };
  Vec values[kRowVectors];
  float sum = 0;
  uint32_t largest = 0;
#pragma unroll
  for (int v = 0; v < kRowVectors; ++v) {
    if (column(v) < k) values[v] = *reinterpret_cast<const Vec*>(row + column(v));
  }
#pragma unroll
  for (int v = 0; v < kRowVectors; ++v) {
    if (column(v) >= k) break;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float value = to_float(values[v].v[j]);
      sum += value * value;
      largest = larger(largest, value);
    }
  }
  if (norm_weight != nullptr) {
    sum = warp_sum(sum);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < num_warps; ++w) sum += sums[w];
    const float factor = 1.0f / sqrtf(sum / static_cast<float>(k) + epsilon);
    largest = 0;
#pragma unroll
    for (int v = 0; v < kRowVectors; ++v) {
      if (column(v) >= k) break;
#pragma unroll
      for (int j = 0; j < 8; j += 4) {
        const float4 weight = *reinterpret_cast<const float4*>(norm_weight + column(v) + j);
        const float weights[4] = {weight.x, weight.y, weight.z, weight.w};
#pragma unroll
        for (int l = 0; l < 4; ++l) {
          values[v].v[j + l] = from_float<T>(to_float(values[v].v[j + l]) * factor * weights[l]);
          largest = larger(largest, to_float(values[v].v[j + l]));
        }
      }
    }
  }
  largest = __reduce_max_sync(0xffffffffu, largest);
  if (lane == 0) largest_of[warp] = largest;
  __syncthreads();
  for (int w = 0; w < num_warps; ++w) largest = max(largest, largest_of[w]);
  constexpr float kLeast = 1e-30f;  // smaller rows become zeros
  const float scale = largest < __float_as_uint(kLeast) ? 1.0f : __uint_as_float(largest) / 127.0f;
  const float inverse = 1.0f / scale;
  int8_t* out = codes + int64_t{blockIdx.x} * k;
#pragma unroll
  for (int v = 0; v < kRowVectors; ++v) {
    if (column(v) >= k) break;
    uint32_t words[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < 8; ++j) words[j / 4] |= code_of(to_float(values[v].v[j]), inverse) << (8 * (j % 4));
    *reinterpret_cast<uint2*>(out + column(v)) = {words[0], words[1]};
  }
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
}

}  // namespace

bool accepts_int8_tokens(const ConstTensorView& x, const ConstTensorView& norm_weight) {
  return x.dtype() != DType::kF32 && is_vectorizable(x) && x.size(1) <= kMostInt8Columns &&
         (!norm_weight.is_given() || is_aligned(norm_weight.raw_data(), 16));
}

void quantize_tokens_to_int8(cudaStream_t stream, const Int8TokensArgs& args) {
  const ConstTensorView& x = args.x;
  if (x.num_elements() == 0) return;
  CHECK(accepts_int8_tokens(x, args.norm_weight));
  const int k = static_cast<int>(x.size(1));
  const int num_threads = std::min(kRowThreads, ceil_div(k, 8 * 32) * 32);
  const float* weight = args.norm_weight.is_given() ? args.norm_weight.data<float>() : nullptr;
  const auto launch = [&](auto type) {
    using T = decltype(type);
    launch_dependent(stream, quantize_tokens_kernel<T>, dim3(static_cast<unsigned>(x.size(0))),
                     dim3(static_cast<unsigned>(num_threads)), args.codes, args.scales, rows_of<T>(x), weight,
                     args.epsilon, k);
  };
  if (x.dtype() == DType::kBF16) return launch(bf16());
  launch(f16());
}

}  // namespace quire::cuda

// The linear layer for every format, dtype, shape and stride, grouped or not: slow and complete. A warp computes one
// output for a few tokens, its lanes striding over k; weights are dequantized one by one.
#include <algorithm>

#include "ops/cuda/cuda_support.h"
#include "ops/cuda/device_weight.cuh"
#include "ops/cuda/linear.h"

namespace quire::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int kMaxGridTokens = 65535;

struct Args {
  void* y;
  int64_t y_stride;
  DType y_dtype;
  int64_t x_stride;
  const float* bias;
  const void* residual;
  int64_t residual_stride;
  const int32_t* offsets;
  int num_experts;
  int64_t num_tokens;
};

// Rows before offsets[0] or after the last belong to nobody and are left alone.
__device__ int expert_of(const Args& args, int64_t token) {
  if (args.offsets == nullptr) return 0;
  for (int expert = 0; expert < args.num_experts; ++expert) {
    if (args.offsets[expert] <= token && token < args.offsets[expert + 1]) return expert;
  }
  return -1;
}

// Grid: x over outputs, a warp each; y over groups of Tokens tokens.
template <typename T, int Tokens>
__global__ void linear_kernel(const T* x, DeviceWeight w, Args args) {
  const int64_t output = int64_t{blockIdx.x} * kWarps + threadIdx.y;
  if (output >= w.n) return;
  for (int64_t first = int64_t{blockIdx.y} * Tokens; first < args.num_tokens; first += int64_t{gridDim.y} * Tokens) {
    const int expert = expert_of(args, first);
    if (expert < 0) continue;
    float sums[Tokens] = {};
    for (int64_t k = threadIdx.x; k < w.k; k += 32) {
      const float weight = load_weight(w, expert, output, k);
#pragma unroll
      for (int t = 0; t < Tokens; ++t) {
        if (first + t < args.num_tokens) sums[t] += to_float(x[(first + t) * args.x_stride + k]) * weight;
      }
    }
#pragma unroll
    for (int t = 0; t < Tokens; ++t) {
      float sum = warp_sum(sums[t]);
      if (threadIdx.x != 0 || first + t >= args.num_tokens) continue;
      if (args.bias != nullptr) sum += args.bias[output];
      if (args.residual != nullptr) {
        sum += load_as_float(args.residual, args.y_dtype, (first + t) * args.residual_stride + output);
      }
      store_float_as(args.y, args.y_dtype, (first + t) * args.y_stride + output, sum);
    }
  }
}

}  // namespace

void linear_any_shape(const LinearCall& call) {
  const DeviceWeight w = device_weight(call.weight);
  const bool is_grouped = call.offsets.is_given();
  const Args args{.y = call.y.raw_data(),
                  .y_stride = call.y.stride(0),
                  .y_dtype = call.y.dtype(),
                  .x_stride = call.x.stride(0),
                  .bias = call.epilogue.bias.is_given() ? call.epilogue.bias.data<float>() : nullptr,
                  .residual = call.epilogue.residual.raw_data(),
                  .residual_stride = call.epilogue.residual.is_given() ? call.epilogue.residual.stride(0) : 0,
                  .offsets = is_grouped ? call.offsets.data<int32_t>() : nullptr,
                  .num_experts = static_cast<int>(call.weight.num_experts),
                  .num_tokens = call.x.size(0)};
  dispatch_activation(call.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const int tokens = is_grouped || args.num_tokens == 1 ? 1 : 4;
    const dim3 grid(
        static_cast<unsigned>(ceil_div<int64_t>(w.n, kWarps)),
        static_cast<unsigned>(std::min<int64_t>(ceil_div<int64_t>(args.num_tokens, tokens), kMaxGridTokens)));
    const auto kernel = tokens == 1 ? linear_kernel<T, 1> : linear_kernel<T, 4>;
    kernel<<<grid, dim3(32, kWarps), 0, call.stream>>>(static_cast<const T*>(call.x.raw_data()), w, args);
  });
  CUDA_CHECK_LAUNCH();
}

}  // namespace quire::cuda

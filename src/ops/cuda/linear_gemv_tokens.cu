// The row `gemv_tokens`: 2 to 8 tokens, 16-bit weights of their dtype, with the norm of the input before and the gated
// activation behind, as `gemv` does for one.
//
// Blocks stay, one a multiprocessor, and take eight weight rows at a time, every blocks-th batch of eight, so that work
// is spread evenly. A warp has a slice of k, S steps of 32: the tokens of its slice are in registers, as the operand of
// 16 rows of tensor core products; the weights are the other operand, eight columns. In which order k's elements stand
// in a product is free as long as both operands agree: a lane takes eight neighbours of a row with one load of 16
// bytes, four pairs, and gives two to each of two products. Each lane fetches what it will multiply itself into a ring
// of six stages in shared memory (192 KB a multiprocessor), before the kernel waits for the one in front; no barrier is
// needed for it. Sums of a batch (16 tokens, eight rows) are added over the warps by four warps in turn. The limit is
// the reading of the weights. Sums are float; the order depends on k alone, so a token has the same bits among 2 to 16.
#include <algorithm>
#include <type_traits>

#include "ops/cuda/device_dtype.cuh"
#include "ops/cuda/gate.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/linear.h"
#include "ops/cuda/mma.cuh"

namespace quire::cuda {

namespace {

constexpr int kMaxWarps = 16;
constexpr int kRows = 8;    // weight rows of a batch
constexpr int kLoads = 4;   // steps of a stage
constexpr int kStages = 6;  // 32 KB each
constexpr int kStepInputs = 32;
constexpr int kAddingWarps = 4;
constexpr int kLeastK = 512;

struct Args {
  const void* w;
  const void* x;
  void* y;
  const float* bias;         // or null
  const void* residual;      // or null
  const float* norm_weight;  // or null: no norm
  int64_t x_stride;          // elements
  int64_t y_stride;
  int64_t residual_stride;
  float epsilon;
  int num_tokens;
  int n;  // rows of w
  int k;
  bool is_y_float;
  Gate gate;
};

template <typename T>
__device__ __forceinline__ float2 pair_of(uint32_t pair) {
  if constexpr (std::is_same_v<T, bf16>) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  } else {
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
  }
}

// The norm of eight inputs: x * factor * weight, rounded.
template <typename T>
__device__ __forceinline__ uint4 normed(const uint4& x, float factor, const float* weight) {
  const float4 low = *reinterpret_cast<const float4*>(weight);
  const float4 high = *reinterpret_cast<const float4*>(weight + 4);
  const float2 p0 = pair_of<T>(x.x);
  const float2 p1 = pair_of<T>(x.y);
  const float2 p2 = pair_of<T>(x.z);
  const float2 p3 = pair_of<T>(x.w);
  return {pack_pair<T>(p0.x * factor * low.x, p0.y * factor * low.y),
          pack_pair<T>(p1.x * factor * low.z, p1.y * factor * low.w),
          pack_pair<T>(p2.x * factor * high.x, p2.y * factor * high.y),
          pack_pair<T>(p3.x * factor * high.z, p3.y * factor * high.w)};
}

template <typename T>
__device__ __forceinline__ float sum_of_squares(const uint4& x) {
  const uint32_t words[4] = {x.x, x.y, x.z, x.w};
  float sum = 0;
#pragma unroll
  for (const uint32_t word : words) {
    const float2 pair = pair_of<T>(word);
    sum += pair.x * pair.x;
    sum += pair.y * pair.y;
  }
  return sum;
}

// 16 bytes that are read once, past the first cache.
__device__ __forceinline__ void copy_to_shared(void* target, const void* source) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(target))),
               "l"(source)
               : "memory");
}

// Row r of a batch; of the gated form the second half are the rows of `up`.
template <bool IsGated>
__device__ __forceinline__ int row_of(int batch, int r, int n) {
  if constexpr (IsGated) {
    return batch * (kRows / 2) + r % (kRows / 2) + (r < kRows / 2 ? 0 : n / 2);
  } else {
    return batch * kRows + r;
  }
}

// S: steps of a warp's slice. HasUpper: more than eight tokens.
template <typename T, int S, bool IsGated, bool HasUpper>
__global__ void __launch_bounds__(kMaxWarps * 32, 1) gemv_tokens_kernel(const Args args) {
  static_assert(S % kLoads == 0);
  constexpr int kOutputs = IsGated ? kRows / 2 : kRows;
  constexpr int kTokens = HasUpper ? 16 : 8;
  __shared__ float partials[2][kMaxWarps][kTokens][kRows];
  __shared__ float norm_partials[kMaxWarps][kTokens];
  extern __shared__ uint4 ring[];  // [stage][step of it][thread]
  const int num_threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int num_warps = num_threads / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int num_outputs = IsGated ? args.n / 2 : args.n;
  const int num_batches = (num_outputs + kOutputs - 1) / kOutputs;
  const int stride = static_cast<int>(gridDim.x);
  const int first_element = warp * S * kStepInputs + t * 8;
  const auto element = [&](int step) { return first_element + step * kStepInputs; };

  const T* const w = static_cast<const T*>(args.w);
  const auto fetch = [&](int stage, int batch, int part) {
    if (batch < num_batches) {
      // Rows past the end are others, fetched again: nothing is stored for them.
      const bool is_row = batch * kOutputs + g % kOutputs < num_outputs;
      const T* const row = w + int64_t{row_of<IsGated>(batch, is_row ? g : g / kOutputs * kOutputs, args.n)} * args.k;
#pragma unroll
      for (int l = 0; l < kLoads; ++l) {
        const int at = element(part * kLoads + l);
        if (at < args.k) copy_to_shared(&ring[(stage * kLoads + l) * num_threads + thread], row + at);
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  constexpr int kParts = S / kLoads;
  let_next_start();
  // The stage that is asked for next: its batch, and which part of it.
  int next_batch = static_cast<int>(blockIdx.x);
  int next_part = 0;
  const auto fetch_next = [&](int stage) {
    fetch(stage, next_batch, next_part);
    if (++next_part == kParts) {
      next_part = 0;
      next_batch += stride;
    }
  };
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) fetch_next(stage);
  wait_for_previous();

  // ---- The inputs of tokens g and g + 8, normed and rounded where that is asked for
  uint4 x[S];
  uint4 upper[HasUpper ? S : 1];
  const T* const inputs = static_cast<const T*>(args.x);
#pragma unroll
  for (int s = 0; s < S; ++s) {
    const bool is_input = element(s) < args.k;
    x[s] = {0, 0, 0, 0};
    if (is_input && g < args.num_tokens) {
      x[s] = *reinterpret_cast<const uint4*>(inputs + g * args.x_stride + element(s));
    }
    if constexpr (HasUpper) {
      upper[s] = {0, 0, 0, 0};
      if (is_input && g + 8 < args.num_tokens) {
        upper[s] = *reinterpret_cast<const uint4*>(inputs + (g + 8) * args.x_stride + element(s));
      }
    }
  }
  if (args.norm_weight != nullptr) {
    float sum = 0;
    float upper_sum = 0;
#pragma unroll
    for (int s = 0; s < S; ++s) {
      sum += sum_of_squares<T>(x[s]);
      if constexpr (HasUpper) upper_sum += sum_of_squares<T>(upper[s]);
    }
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, offset);
      if constexpr (HasUpper) upper_sum += __shfl_xor_sync(0xffffffffu, upper_sum, offset);
    }
    if (t == 0) {
      norm_partials[warp][g] = sum;
      if constexpr (HasUpper) norm_partials[warp][g + 8] = upper_sum;
    }
    __syncthreads();
    const auto factor_of = [&](int token) {
      float total = 0;
      for (int i = 0; i < num_warps; ++i) total += norm_partials[i][token];
      return 1.0f / sqrtf(total / static_cast<float>(args.k) + args.epsilon);
    };
    const float factor = factor_of(g);
    const float upper_factor = HasUpper ? factor_of(g + kTokens - 8) : 0.0f;
#pragma unroll
    for (int s = 0; s < S; ++s) {
      if (element(s) >= args.k) continue;
      x[s] = normed<T>(x[s], factor, args.norm_weight + element(s));
      if constexpr (HasUpper) upper[s] = normed<T>(upper[s], upper_factor, args.norm_weight + element(s));
    }
  }

  // ---- Batches of rows
  const int num_turns = num_warps / kAddingWarps;
  int turn = 0;  // which four warps add this batch
  int buffer = 0;
  int stage = 0;
  for (int batch = static_cast<int>(blockIdx.x); batch < num_batches; batch += stride) {
    float sums[4] = {0, 0, 0, 0};
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 1) : "memory");
#pragma unroll
      for (int l = 0; l < kLoads; ++l) {
        const int s = part * kLoads + l;
        uint4 rows = {0, 0, 0, 0};  // of elements that there are not, the ring holds anything
        if (element(s) < args.k) rows = ring[(stage * kLoads + l) * num_threads + thread];
        const uint4 high = HasUpper ? upper[HasUpper ? s : 0] : uint4{0, 0, 0, 0};
        mma<T>(sums, {x[s].x, high.x, x[s].y, high.y}, rows.x, rows.y);
        mma<T>(sums, {x[s].z, high.z, x[s].w, high.w}, rows.z, rows.w);
      }
      fetch_next(stage);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    *reinterpret_cast<float2*>(&partials[buffer][warp][g][2 * t]) = {sums[0], sums[1]};
    if constexpr (HasUpper) *reinterpret_cast<float2*>(&partials[buffer][warp][g + 8][2 * t]) = {sums[2], sums[3]};
    __syncthreads();
    // A lane an output. Those of the batch after next wait at the next barrier for these four warps.
    const int place = thread - turn * kAddingWarps * 32;
    const int token = place / kOutputs;
    const int output = batch * kOutputs + place % kOutputs;
    if (place >= 0 && place < kTokens * kOutputs && token < args.num_tokens && output < num_outputs) {
      const auto sum_of = [&](int r) {
        float sum = 0;
        for (int i = 0; i < num_warps; ++i) sum += partials[buffer][i][token][r];
        return sum;
      };
      float sum = sum_of(place % kOutputs);
      if (args.bias != nullptr) sum += args.bias[output];
      const int64_t at = token * args.y_stride + output;
      const int64_t residual_at = token * args.residual_stride + output;
      if constexpr (IsGated) {
        float up = sum_of(place % kOutputs + kRows / 2);
        if (args.bias != nullptr) up += args.bias[output + num_outputs];
        constexpr DType kDType = std::is_same_v<T, bf16> ? DType::kBF16 : DType::kF16;
        static_cast<T*>(args.y)[at] = from_float<T>(gated(args.gate, kDType, sum, up));
      } else if (args.is_y_float) {
        if (args.residual != nullptr) sum += static_cast<const float*>(args.residual)[residual_at];
        static_cast<float*>(args.y)[at] = sum;
      } else {
        if (args.residual != nullptr) sum += to_float(static_cast<const T*>(args.residual)[residual_at]);
        static_cast<T*>(args.y)[at] = from_float<T>(sum);
      }
    }
    turn = turn + 1 == num_turns ? 0 : turn + 1;
    buffer ^= 1;
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
}

template <typename T, int S>
void launch(cudaStream_t stream, const Args& args) {
  const bool has_upper = args.num_tokens > 8;
  const auto kernel =
      args.gate != Gate::kNone
          ? (has_upper ? gemv_tokens_kernel<T, S, true, true> : gemv_tokens_kernel<T, S, true, false>)
          : (has_upper ? gemv_tokens_kernel<T, S, false, true> : gemv_tokens_kernel<T, S, false, false>);
  const int num_warps = ceil_div(args.k, S * kStepInputs);
  constexpr int kMostBytes = kStages * kLoads * kMaxWarps * 32 * 16;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostBytes));
  launch_dependent_with_memory(stream, kernel, dim3(static_cast<unsigned>(num_multiprocessors())),
                               dim3(static_cast<unsigned>(num_warps * 32)),
                               static_cast<size_t>(kStages * kLoads * num_warps * 32 * 16), args);
}

}  // namespace

bool accepts_gemv_tokens(const LinearCall& call) {
  const Weight& weight = call.weight;
  const DType dtype = call.x.dtype();
  const int64_t num_tokens = call.x.size(0);
  // The kernel takes 16; in whole models of more than 8 sequences `few_tokens` is faster (H200).
  constexpr int kMostTokens = 8;
  if (dtype == DType::kF32 || num_tokens < 2 || num_tokens > kMostTokens || call.offsets.is_given() ||
      weight.num_experts != 1 || weight.layout != Layout::kCudaPlanes) {
    return false;
  }
  return weight.format == (dtype == DType::kBF16 ? FormatId::kBF16 : FormatId::kF16) && weight.k % 8 == 0 &&
         weight.k >= kLeastK && weight.k <= kMaxWarps * 8 * kStepInputs && weight.n <= (1 << 24) &&
         is_aligned(weight.parts[0].data(), 16) && is_aligned(call.x.raw_data(), 16) && call.x.stride(0) % 8 == 0 &&
         (!call.norm.weight.is_given() || is_aligned(call.norm.weight.raw_data(), 16));
}

bool accepts_gated_gemv_tokens(const LinearCall& call) {
  return accepts_gemv_tokens(call) && call.weight.n % 2 == 0 && call.y.dtype() == call.x.dtype();
}

void linear_gemv_tokens(const LinearCall& call) {
  const ConstTensorView& residual = call.epilogue.residual;
  const Args args{.w = call.weight.parts[0].data(),
                  .x = call.x.raw_data(),
                  .y = call.y.raw_data(),
                  .bias = call.epilogue.bias.is_given() ? call.epilogue.bias.data<float>() : nullptr,
                  .residual = residual.raw_data(),
                  .norm_weight = call.norm.weight.is_given() ? call.norm.weight.data<float>() : nullptr,
                  .x_stride = call.x.stride(0),
                  .y_stride = call.y.stride(0),
                  .residual_stride = residual.is_given() ? residual.stride(0) : 0,
                  .epsilon = call.norm.epsilon,
                  .num_tokens = static_cast<int>(call.x.size(0)),
                  .n = static_cast<int>(call.weight.n),
                  .k = static_cast<int>(call.weight.k),
                  .is_y_float = call.y.dtype() == DType::kF32,
                  .gate = call.gate};
  const bool is_short = args.k <= kMaxWarps * 4 * kStepInputs;
  if (call.x.dtype() == DType::kBF16) {
    (is_short ? launch<bf16, 4> : launch<bf16, 8>)(call.stream, args);
  } else {
    (is_short ? launch<f16, 4> : launch<f16, 8>)(call.stream, args);
  }
}

}  // namespace quire::cuda

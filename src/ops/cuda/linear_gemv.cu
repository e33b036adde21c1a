// The row `gemv`: one token, weights of 8 bits, or of its dtype where `gemv_tokens` does not fit; and the fused forms
// that a decoder's layer wants of it: the norm of the input before, the gated activation behind.
//
// A block is k / (E S) threads, E the weights in 16 bytes; thread i holds the inputs E i .. of each of S slices of k in
// registers, for all outputs. The block takes R weight rows at a time, every blocks-th batch of R. A ring of six
// batches is on its way from memory to shared memory, each thread fetching what it will multiply itself, so that no
// barrier is needed for it. The ring is filled before the kernel waits for the one in front. It
// takes most of a multiprocessor's shared memory, so that each gets an equal part of the work: with room for two
// kernels of this kind the second spread unevenly, and a decoder's step took a third longer (H200). Sums of a batch are
// added within warps, then over the warps by one of them in turn. The limit is the reading of the weights. Sums are
// float; the order depends on k alone.
#include <algorithm>
#include <type_traits>

#include "ops/cuda/async_copy.cuh"
#include "ops/cuda/device_dtype.cuh"
#include "ops/cuda/gate.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/linear.h"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/packed_pairs.cuh"

namespace quire::cuda {

namespace {

constexpr int kMaxThreads = 512;
constexpr int kMaxWarps = kMaxThreads / 32;
constexpr int kMaxSlices = 4;
constexpr int kLoads = 4;   // R * S: 16-byte loads of a batch, a thread
constexpr int kGroup = 8;   // batches whose sums are added over the warps at once
constexpr int kStages = 6;  // batches in the ring: 192 KB a multiprocessor

struct Args {
  const void* w;
  const float* scales;  // of e4m3 and int8 weights: an output each
  const void* x;
  void* y;
  const float* bias;         // or null
  const void* residual;      // or null
  const float* norm_weight;  // or null: no norm
  float epsilon;
  int n;  // rows of w
  int k;
  bool is_x_float;  // normed, it becomes T
  bool is_y_float;
  Gate gate;
};

// Two e4m3 numbers, or int8, as f16: exact.
template <typename W>
__device__ __forceinline__ __half2 unpack_codes(uint32_t pair) {
  const uint32_t halves = std::is_same_v<W, int8_t> ? unpack_i8_pair(pair) : unpack_f8_pair(pair);
  return *reinterpret_cast<const __half2*>(&halves);
}

template <typename T>
__device__ __forceinline__ void unpack(float (&values)[8], const uint4& x) {
  const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = low_float<T>(words[i]);
    values[2 * i + 1] = high_float<T>(words[i]);
  }
}

// Row r of a batch; of the gated form the second half are the rows of `up`.
template <int R, bool IsGated>
__device__ __forceinline__ int row_of(int batch, int r, int n) {
  if constexpr (IsGated) {
    return batch * (R / 2) + r % (R / 2) + (r < R / 2 ? 0 : n / 2);
  } else {
    return batch * R + r;
  }
}

// W is T, or uint8_t for e4m3, int8_t for int8.
template <typename T, typename W, int S, bool IsGated>
__global__ void __launch_bounds__(kMaxThreads, 1) gemv_kernel(Args args) {
  constexpr int R = kLoads / S;
  constexpr bool kHasCodes = sizeof(W) == 1;
  constexpr int E = 16 / static_cast<int>(sizeof(W));  // weights of a load
  __shared__ float partials[2][kGroup][kMaxWarps][R];
  __shared__ float norm_partials[kMaxWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int num_warps = static_cast<int>(blockDim.x) / 32;
  const int num_outputs = IsGated ? args.n / 2 : args.n;
  constexpr int kOutputs = IsGated ? R / 2 : R;
  static_assert(kGroup * kOutputs <= 32);
  const int num_batches = (num_outputs + kOutputs - 1) / kOutputs;
  const W* w = static_cast<const W*>(args.w);
  int element[S];
#pragma unroll
  for (int s = 0; s < S; ++s) element[s] = (s * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * E;

  extern __shared__ uint4 ring[];  // [stage][row][slice][thread]
  const auto slot = [&](int stage, int r, int s) {
    return ((stage * R + r) * S + s) * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
  };
  const auto fetch = [&](int stage, int batch) {
    if (batch < num_batches) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
        // Rows past the end are fetched again from the last batch's first: nothing is stored for them.
        const bool is_row = batch * kOutputs + r % kOutputs < num_outputs;
        const int row = row_of<R, IsGated>(batch, is_row ? r : r / kOutputs * kOutputs, args.n);
#pragma unroll
        for (int s = 0; s < S; ++s) {
          if (element[s] < args.k) {
            copy_16(&ring[slot(stage, r, s)], w + int64_t{row} * args.k + element[s]);
          }
        }
      }
    }
    end_copy_group();
  };
  let_next_start();
  const int stride = static_cast<int>(gridDim.x);
  int batch = static_cast<int>(blockIdx.x);
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) fetch(stage, batch + stage * stride);
  wait_for_previous();

  // ---- The inputs, normed and rounded where that is asked for
  float x[S][E];
#pragma unroll
  for (int s = 0; s < S; ++s) {
#pragma unroll
    for (int part = 0; part < E; part += 8) {
      float values[8] = {};
      if (element[s] < args.k) {
        if (args.is_x_float) {
          load_eight(values, static_cast<const float*>(args.x) + element[s] + part);
        } else {
          unpack<T>(values, *reinterpret_cast<const uint4*>(static_cast<const T*>(args.x) + element[s] + part));
        }
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) x[s][part + j] = values[j];
    }
  }
  if (args.norm_weight != nullptr) {
    float sum = 0;
#pragma unroll
    for (int s = 0; s < S; ++s) {
#pragma unroll
      for (int j = 0; j < E; ++j) sum += x[s][j] * x[s][j];
    }
    sum = warp_sum(sum);
    if (lane == 0) norm_partials[warp] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < num_warps; ++i) sum += norm_partials[i];
    const float factor = 1.0f / sqrtf(sum / static_cast<float>(args.k) + args.epsilon);
#pragma unroll
    for (int s = 0; s < S; ++s) {
      if (element[s] < args.k) {
#pragma unroll
        for (int j = 0; j < E; j += 4) {
          const float4 weights = *reinterpret_cast<const float4*>(args.norm_weight + element[s] + j);
          x[s][j] = to_float(from_float<T>(x[s][j] * factor * weights.x));
          x[s][j + 1] = to_float(from_float<T>(x[s][j + 1] * factor * weights.y));
          x[s][j + 2] = to_float(from_float<T>(x[s][j + 2] * factor * weights.z));
          x[s][j + 3] = to_float(from_float<T>(x[s][j + 3] * factor * weights.w));
        }
      }
    }
  }

  // Beside codes the inputs are f16, brought to at most 1: sums of 8 products stay small.
  __half2 halves[kHasCodes ? S : 1][kHasCodes ? E / 2 : 1];
  float input_scale = 1.0f;
  if constexpr (kHasCodes) {
    float largest = 0;
#pragma unroll
    for (int s = 0; s < S; ++s) {
#pragma unroll
      for (int j = 0; j < E; ++j) largest = fmaxf(largest, fabsf(x[s][j]));
    }
    largest = warp_max(largest);
    __syncthreads();
    if (lane == 0) norm_partials[warp] = largest;
    __syncthreads();
    for (int i = 0; i < num_warps; ++i) largest = fmaxf(largest, norm_partials[i]);
    input_scale = largest > 0 ? largest : 1.0f;
    const float inverse = 1.0f / input_scale;
#pragma unroll
    for (int s = 0; s < S; ++s) {
#pragma unroll
      for (int j = 0; j < E; j += 2) {
        halves[s][j / 2] = __floats2half2_rn(x[s][j] * inverse, x[s][j + 1] * inverse);
      }
    }
  }

  int buffer = 0;
  int turn = 0;          // the warp that adds up this group
  int num_in_group = 0;  // batches
  int first_of_group = batch;
  int stage = 0;
  for (; batch < num_batches; batch += stride) {
    wait_for_copy_groups<kStages - 1>();
    float sums[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
      sums[r] = 0;
#pragma unroll
      for (int s = 0; s < S; ++s) {
        const uint4 loaded = element[s] < args.k ? ring[slot(stage, r, s)] : uint4{0, 0, 0, 0};
        if constexpr (kHasCodes) {
          const uint32_t words[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
          __half2 products = __float2half2_rn(0.0f);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            products = __hfma2(unpack_codes<W>(words[i]), halves[s][2 * i], products);
            products = __hfma2(unpack_codes<W>(words[i] >> 16), halves[s][2 * i + 1], products);
          }
          sums[r] += __low2float(products) + __high2float(products);
        } else {
          float values[8];
          unpack<T>(values, loaded);
#pragma unroll
          for (int j = 0; j < 8; ++j) sums[r] += values[j] * x[s][j];
        }
      }
    }
    fetch(stage, batch + kStages * stride);
    stage = stage + 1 == kStages ? 0 : stage + 1;
    // Lanes that share their first log2(R) bits end with one row's sum.
    int count = R;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      if (count > 1) {
        count /= 2;
        const bool is_upper = (lane & offset) != 0;
#pragma unroll
        for (int i = 0; i < R / 2; ++i) {
          if (i < count) {
            const float kept = is_upper ? sums[i + count] : sums[i];
            const float given = is_upper ? sums[i] : sums[i + count];
            sums[i] = kept + __shfl_xor_sync(0xffffffffu, given, offset);
          }
        }
      } else {
        sums[0] += __shfl_xor_sync(0xffffffffu, sums[0], offset);
      }
    }
    constexpr int kLanesPerRow = 32 / R;
    if (lane % kLanesPerRow == 0) partials[buffer][num_in_group][warp][lane / kLanesPerRow] = sums[0];
    ++num_in_group;
    if (num_in_group < kGroup && batch + stride < num_batches) continue;
    __syncthreads();
    // A lane an output.
    const int member = lane / kOutputs;
    const int output = (first_of_group + member * stride) * kOutputs + lane % kOutputs;
    if (warp == turn && member < num_in_group && output < num_outputs) {
      const auto sum_of = [&](int r) {
        float sum = 0;
        for (int i = 0; i < num_warps; ++i) sum += partials[buffer][member][i][r];
        return sum;
      };
      float sum = sum_of(lane % kOutputs);
      if constexpr (kHasCodes) sum *= args.scales[output] * input_scale;
      if (args.bias != nullptr) sum += args.bias[output];
      if constexpr (IsGated) {
        float up = sum_of(lane % kOutputs + R / 2);
        if constexpr (kHasCodes) up *= args.scales[output + num_outputs] * input_scale;
        if (args.bias != nullptr) up += args.bias[output + num_outputs];
        static_cast<T*>(args.y)[output] = from_float<T>(gated(args.gate, kDTypeOf<T>, sum, up));
      } else if (args.is_y_float) {
        if (args.residual != nullptr) sum += static_cast<const float*>(args.residual)[output];
        static_cast<float*>(args.y)[output] = sum;
      } else {
        if (args.residual != nullptr) sum += to_float(static_cast<const T*>(args.residual)[output]);
        static_cast<T*>(args.y)[output] = from_float<T>(sum);
      }
    }
    turn = turn + 1 == num_warps ? 0 : turn + 1;
    buffer ^= 1;
    num_in_group = 0;
    first_of_group = batch + stride;
  }
  wait_for_all_copies();
}

template <typename T, typename W, bool IsGated>
void launch(cudaStream_t stream, const Args& args) {
  constexpr int kPerLoad = 16 / static_cast<int>(sizeof(W));
  int slices = 1;
  while (args.k > slices * kPerLoad * kMaxThreads) slices *= 2;
  const int num_threads = ceil_div(args.k, slices * kPerLoad * 32) * 32;
  auto kernel = gemv_kernel<T, W, 1, IsGated>;
  if (slices == 2) kernel = gemv_kernel<T, W, 2, IsGated>;
  if constexpr (!IsGated) {
    if (slices == 4) kernel = gemv_kernel<T, W, 4, IsGated>;
  }
  constexpr int kMostBytes = kStages * kLoads * kMaxThreads * 16;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostBytes));
  const int num_blocks = num_multiprocessors() * std::max(1, kMaxThreads / num_threads);
  launch_dependent_with_memory(stream, kernel, dim3(static_cast<unsigned>(num_blocks)),
                               dim3(static_cast<unsigned>(num_threads)),
                               static_cast<size_t>(kStages * kLoads * num_threads * 16), args);
}

template <typename T>
void launch_any(cudaStream_t stream, const Args& args, Layout layout, bool is_gated) {
  const auto function = layout == Layout::kCudaF8   ? (is_gated ? launch<T, uint8_t, true> : launch<T, uint8_t, false>)
                        : layout == Layout::kCudaI8 ? (is_gated ? launch<T, int8_t, true> : launch<T, int8_t, false>)
                                                    : (is_gated ? launch<T, T, true> : launch<T, T, false>);
  function(stream, args);
}

}  // namespace

namespace {

bool has_codes(const Weight& weight) {
  return weight.layout == Layout::kCudaF8 || weight.layout == Layout::kCudaI8;
}

}  // namespace

bool accepts_gemv(const LinearCall& call) {
  const Weight& weight = call.weight;
  const DType dtype = call.dtype();
  if (dtype == DType::kF32 || call.x.size(0) != 1 || call.offsets.is_given() || weight.num_experts != 1) return false;
  const int64_t per_load = has_codes(weight) ? 16 : 8;
  return (has_codes(weight) || weight.format == (dtype == DType::kBF16 ? FormatId::kBF16 : FormatId::kF16)) &&
         weight.k % per_load == 0 && weight.k >= 256 && weight.k <= kMaxSlices * per_load * kMaxThreads &&
         weight.n <= (1 << 24) && is_aligned(weight.parts[0].data(), 16) && is_aligned(call.x.raw_data(), 16) &&
         (!call.norm.weight.is_given() || is_aligned(call.norm.weight.raw_data(), 16));
}

bool accepts_gated_gemv(const LinearCall& call) {
  // A batch needs a row of each half.
  return accepts_gemv(call) && call.weight.n % 2 == 0 &&
         call.weight.k <= 2 * (has_codes(call.weight) ? 16 : 8) * kMaxThreads && call.y.dtype() == call.dtype();
}

void linear_gemv(const LinearCall& call) {
  const Args args{
      .w = call.weight.parts[0].data(),
      .scales = has_codes(call.weight) ? reinterpret_cast<const float*>(call.weight.parts[1].data()) : nullptr,
      .x = call.x.raw_data(),
      .y = call.y.raw_data(),
      .bias = call.epilogue.bias.is_given() ? call.epilogue.bias.data<float>() : nullptr,
      .residual = call.epilogue.residual.raw_data(),
      .norm_weight = call.norm.weight.is_given() ? call.norm.weight.data<float>() : nullptr,
      .epsilon = call.norm.epsilon,
      .n = static_cast<int>(call.weight.n),
      .k = static_cast<int>(call.weight.k),
      .is_x_float = call.x.dtype() == DType::kF32,
      .is_y_float = call.y.dtype() == DType::kF32,
      .gate = call.gate};
  const bool is_gated = call.gate != Gate::kNone;
  (call.dtype() == DType::kBF16 ? launch_any<bf16> : launch_any<f16>)(call.stream, args, call.weight.layout, is_gated);
}

}  // namespace quire::cuda

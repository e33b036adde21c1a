// The row `gemv`: one token, float weights of its dtype; and the fused forms that a decoder's layer wants of it: the
// norm of the input before, the gated activation behind.
//
// A block is k / (8 S) threads; thread i holds the inputs 8 i .. of each of S slices of k in registers, for all
// outputs. The block takes R weight rows at a time, every blocks-th batch of R: a thread loads 16 bytes of each row and
// slice, the next batch's while it multiplies this one's, and the first batch's before it waits for the kernel in
// front. Sums of a batch are added within warps, then over the warps by one of them in turn. The limit is the reading
// of the weights: 2 n k bytes. Sums are float; the order depends on k alone.
#include "ops/cuda/device_dtype.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/linear.h"
#include "ops/cuda/mma.cuh"

namespace quire::cuda {

namespace {

constexpr int kMaxThreads = 512;
constexpr int kMaxWarps = kMaxThreads / 32;
constexpr int kMaxSlices = 4;
constexpr int kLoads = 8;  // R * S: 16-byte loads of a batch, a thread

struct Args {
  const void* w;
  const void* x;
  void* y;
  const float* bias;         // or null
  const void* residual;      // or null
  const float* norm_weight;  // or null: no norm
  float epsilon;
  int n;  // rows of w
  int k;
  bool is_y_float;
  bool is_gelu;  // of the gated form
};

__device__ __forceinline__ float low_float(uint32_t pair, bf16) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high_float(uint32_t pair, bf16) {
  return __uint_as_float(pair & 0xffff0000u);
}
__device__ __forceinline__ float low_float(uint32_t pair, f16) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(pair)));
}
__device__ __forceinline__ float high_float(uint32_t pair, f16) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> 16)));
}

template <typename T>
__device__ __forceinline__ void unpack(float (&values)[8], const uint4& x) {
  const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = low_float(words[i], T());
    values[2 * i + 1] = high_float(words[i], T());
  }
}

// Row r of a batch; of the gated form the second half are the rows of `up`.
template <int R, bool IsGated>
__device__ __forceinline__ int row_of(int batch, int r, int n) {
  if (!IsGated) return batch * R + r;
  return batch * (R / 2) + r % (R / 2) + (r < R / 2 ? 0 : n / 2);
}

template <typename T, int S, bool IsGated>
__global__ void __launch_bounds__(kMaxThreads, 1) gemv_kernel(Args args) {
  constexpr int R = kLoads / S;
  __shared__ float partials[2][kMaxWarps][R];
  __shared__ float norm_partials[kMaxWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int num_warps = static_cast<int>(blockDim.x) / 32;
  const int num_outputs = IsGated ? args.n / 2 : args.n;
  constexpr int kOutputs = IsGated ? R / 2 : R;
  const int num_batches = (num_outputs + kOutputs - 1) / kOutputs;
  const T* w = static_cast<const T*>(args.w);
  int element[S];
#pragma unroll
  for (int s = 0; s < S; ++s) element[s] = (s * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * 8;

  const auto load = [&](uint4(&rows)[R][S], int batch) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int row = row_of<R, IsGated>(batch, r, args.n);
      const bool is_row = batch * kOutputs + r % kOutputs < num_outputs;
#pragma unroll
      for (int s = 0; s < S; ++s) {
        rows[r][s] =
            is_row && element[s] < args.k ? load_once(w + int64_t{row} * args.k + element[s]) : uint4{0, 0, 0, 0};
      }
    }
  };
  let_next_start();
  uint4 rows[R][S];
  int batch = static_cast<int>(blockIdx.x);
  load(rows, batch);
  wait_for_previous();

  // ---- The inputs, normed and rounded where that is asked for
  float x[S][8];
#pragma unroll
  for (int s = 0; s < S; ++s) {
    uint4 loaded = {0, 0, 0, 0};
    if (element[s] < args.k) loaded = *reinterpret_cast<const uint4*>(static_cast<const T*>(args.x) + element[s]);
    unpack<T>(x[s], loaded);
  }
  if (args.norm_weight != nullptr) {
    float sum = 0;
#pragma unroll
    for (int s = 0; s < S; ++s) {
#pragma unroll
      for (int j = 0; j < 8; ++j) sum += x[s][j] * x[s][j];
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
        const float4 first = *reinterpret_cast<const float4*>(args.norm_weight + element[s]);
        const float4 second = *reinterpret_cast<const float4*>(args.norm_weight + element[s] + 4);
        const float weights[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
#pragma unroll
        for (int j = 0; j < 8; ++j) x[s][j] = to_float(from_float<T>(x[s][j] * factor * weights[j]));
      }
    }
  }

  int buffer = 0;
  int turn = 0;  // the warp that adds up this batch
  for (; batch < num_batches; batch += static_cast<int>(gridDim.x)) {
    uint4 next[R][S];
    const int next_batch = batch + static_cast<int>(gridDim.x);
    if (next_batch < num_batches) load(next, next_batch);
    float sums[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
      sums[r] = 0;
#pragma unroll
      for (int s = 0; s < S; ++s) {
        float values[8];
        unpack<T>(values, rows[r][s]);
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[r] += values[j] * x[s][j];
      }
    }
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
    if (lane % kLanesPerRow == 0) partials[buffer][warp][lane / kLanesPerRow] = sums[0];
    __syncthreads();
    if (warp == turn) {
      const int r = lane % R;
      float sum = 0;
      for (int i = 0; i < num_warps; ++i) sum += partials[buffer][i][r];
      const float other = __shfl_xor_sync(0xffffffffu, sum, R / 2);
      const int output = batch * kOutputs + r % kOutputs;
      if (lane < kOutputs && output < num_outputs) {
        if (IsGated) {
          float gate = sum;
          float up = other;
          if (args.bias != nullptr) {
            gate += args.bias[output];
            up += args.bias[output + num_outputs];
          }
          gate = to_float(from_float<T>(gate));
          up = to_float(from_float<T>(up));
          constexpr float kSqrtTwoOverPi = 0.7978845608028654f;
          const float activated =
              args.is_gelu ? 0.5f * gate * (1.0f + tanhf(kSqrtTwoOverPi * (gate + 0.044715f * gate * gate * gate)))
                           : gate / (1.0f + expf(-gate));
          static_cast<T*>(args.y)[output] = from_float<T>(activated * up);
        } else {
          if (args.bias != nullptr) sum += args.bias[output];
          if (args.is_y_float) {
            if (args.residual != nullptr) sum += static_cast<const float*>(args.residual)[output];
            static_cast<float*>(args.y)[output] = sum;
          } else {
            if (args.residual != nullptr) sum += to_float(static_cast<const T*>(args.residual)[output]);
            static_cast<T*>(args.y)[output] = from_float<T>(sum);
          }
        }
      }
    }
    turn = turn + 1 == num_warps ? 0 : turn + 1;
    buffer ^= 1;
    if (next_batch < num_batches) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int s = 0; s < S; ++s) rows[r][s] = next[r][s];
      }
    }
  }
}

template <typename T, bool IsGated>
void launch(cudaStream_t stream, const Args& args, int num_blocks) {
  int slices = 1;
  while (args.k > slices * 8 * kMaxThreads) slices *= 2;
  const int num_threads = ceil_div(args.k, slices * 8 * 32) * 32;
  const auto kernel = slices == 1   ? gemv_kernel<T, 1, IsGated>
                      : slices == 2 ? gemv_kernel<T, 2, IsGated>
                                    : gemv_kernel<T, 4, IsGated>;
  launch_dependent(stream, kernel, dim3(static_cast<unsigned>(num_blocks)), dim3(static_cast<unsigned>(num_threads)),
                   args);
}

int num_multiprocessors() {
  int device = 0;
  int count = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

}  // namespace

bool accepts_gemv(const LinearCall& call) {
  const Weight& weight = call.weight;
  const DType dtype = call.x.dtype();
  return call.x.size(0) == 1 && !call.offsets.is_given() && weight.num_experts == 1 &&
         ((dtype == DType::kBF16 && weight.format == FormatId::kBF16) ||
          (dtype == DType::kF16 && weight.format == FormatId::kF16)) &&
         weight.k % 8 == 0 && weight.k >= 256 && weight.k <= kMaxSlices * 8 * kMaxThreads && weight.n <= (1 << 24) &&
         is_aligned(weight.parts[0].data(), 16) && is_aligned(call.x.raw_data(), 16) &&
         (!call.norm.weight.is_given() || is_aligned(call.norm.weight.raw_data(), 16));
}

bool accepts_gated_gemv(const LinearCall& call) {
  return accepts_gemv(call) && call.weight.n % 2 == 0 && call.y.dtype() == call.x.dtype();
}

void linear_gemv(const LinearCall& call) {
  const Args args{.w = call.weight.parts[0].data(),
                  .x = call.x.raw_data(),
                  .y = call.y.raw_data(),
                  .bias = call.epilogue.bias.is_given() ? call.epilogue.bias.data<float>() : nullptr,
                  .residual = call.epilogue.residual.raw_data(),
                  .norm_weight = call.norm.weight.is_given() ? call.norm.weight.data<float>() : nullptr,
                  .epsilon = call.norm.epsilon,
                  .n = static_cast<int>(call.weight.n),
                  .k = static_cast<int>(call.weight.k),
                  .is_y_float = call.y.dtype() == DType::kF32,
                  .is_gelu = call.gate == Gate::kGeluTanh};
  const int num_blocks = num_multiprocessors();
  const bool is_bf16 = call.x.dtype() == DType::kBF16;
  if (call.gate == Gate::kNone) {
    (is_bf16 ? launch<bf16, false> : launch<f16, false>)(call.stream, args, num_blocks);
  } else {
    (is_bf16 ? launch<bf16, true> : launch<f16, true>)(call.stream, args, num_blocks);
  }
}

}  // namespace quire::cuda

// The row `gemv_tokens`: up to 16 tokens, 16-bit weights of their dtype, with the norm of the input before (up to
// eight tokens) and the gated activation behind.
//
// Blocks stay, one a multiprocessor, and take 16 weight rows at a time, every blocks-th batch of 16, so that work is
// spread evenly. A warp has a slice of k, S steps of 32. The tokens of its slice are in registers, as the operand of
// eight columns of tensor core products (twice where there are more than eight tokens); the weights are the operand of
// 16 rows. In which order k's elements stand in a product is free as long as both operands agree: a lane takes eight
// neighbours of a row with one load of 16 bytes, four pairs, and gives two to each of two products. Each lane fetches
// what it will multiply itself into a ring of stages in shared memory, before the kernel waits for the one in front; no
// barrier is needed for it. Sums of a batch are added over the warps by some of the warps in turn. The norm's factor,
// which needs all of k, multiplies sums where the dtype is sure to hold inputs without it, so that no barrier lies
// before the first product.
//
// Where k is too long for the registers two blocks share the rows, each has half of k, and they send each other sums
// through memory, as blocks of `few_tokens` do (messages.cuh): all of them run at once.
//
// The limit is the reading of the weights. Sums are float; the order depends on k alone, so a token has the same bits
// among as many as the row takes.
#include <algorithm>
#include <type_traits>

#include "ops/cuda/async_copy.cuh"
#include "ops/cuda/device_dtype.cuh"
#include "ops/cuda/gate.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/linear.h"
#include "ops/cuda/linear_cublaslt.h"
#include "ops/cuda/messages.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/packed_pairs.cuh"

namespace quire::cuda {

namespace {

constexpr int kMaxWarps = 16;
constexpr int kMaxTokens = 16;
constexpr int kRows = 16;  // weight rows of a batch
constexpr int kStepInputs = 32;
constexpr int kLoads = 2;  // steps of a stage, which is 32 KB
constexpr int kMostSteps = 8;
constexpr int kPairSteps = 14;  // of blocks that share rows
constexpr int kLeastK = 512;
constexpr int kMostK = kMaxWarps * kMostSteps * kStepInputs;
// Of a pair's slices few are in use where k is short: several tokens go to `even_rows` then.
constexpr int kLeastKOfSeveral = kMostK * 3 / 2;
constexpr int kMostPairK = 2 * kMaxWarps * kPairSteps * kStepInputs;

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
  bool is_x_float;  // normed, it becomes T
  bool is_y_float;
  Gate gate;
  float* mail;  // of pairs: [block, kMessages, 8 tokens, kRows], kNothing before and behind every launch
};

// As unpack_pair(), in an instruction less where T is bf16.
template <typename T>
__device__ __forceinline__ float2 pair_of(uint32_t pair) {
  if constexpr (std::is_same_v<T, bf16>) {
    return {low_float<T>(pair), high_float<T>(pair)};
  } else {
    return unpack_pair<T>(pair);
  }
}

// The norm of eight inputs: x * factor * weight, rounded.
template <typename T>
__device__ __forceinline__ uint4 normed(const float (&x)[8], float factor, const float* weight) {
  float weights[8];
  load_eight(weights, weight);
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = pack_pair<T>(x[2 * i] * factor * weights[2 * i], x[2 * i + 1] * factor * weights[2 * i + 1]);
  }
  return {words[0], words[1], words[2], words[3]};
}

template <typename T>
__device__ __forceinline__ void unpack_eight(float (&values)[8], const uint4& x) {
  const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = pair_of<T>(words[i]);
    values[2 * i] = pair.x;
    values[2 * i + 1] = pair.y;
  }
}

__device__ __forceinline__ float sum_of_squares(const float (&x)[8]) {
  float sum = 0;
#pragma unroll
  for (const float value : x) sum += value * value;
  return sum;
}

// Where a token's sum of row r lies in the row, so that neither stores of pairs nor loads of a column meet on a bank.
template <int Tokens>
__device__ __forceinline__ int swizzled(int r, int token) {
  return token ^ (2 * (r / (32 / Tokens) % (Tokens / 2)));
}

// Batches whose sums can be on their way. A block is at most some six ahead of the other, whose sums it needs itself.
constexpr int kMessages = 16;

// Sums for the other block of a pair.
__device__ __forceinline__ void send_sum(float* place, float sum) {
  send_word(place, message_of(sum));
}
__device__ __forceinline__ float receive_sum(float* place) {
  uint32_t bits;
  do {
    bits = look_at_word(place);
  } while (bits == kNothing);
  forget_word(place);
  return __uint_as_float(bits);
}

constexpr int stages_of(bool has_upper) {
  return has_upper ? 5 : 6;
}
constexpr int adding_warps_of(bool has_upper) {
  return has_upper ? 8 : 4;
}

// S: steps of a warp's slice. HasUpper: more than eight tokens.
template <typename T, int S, bool IsGated, bool HasUpper>
__global__ void __launch_bounds__(kMaxWarps * 32, 1) gemv_tokens_kernel(const Args args) {
  static_assert(S % kLoads == 0);
  constexpr int kStages = stages_of(HasUpper);
  constexpr int kParts = S / kLoads;
  constexpr int kAddingWarps = adding_warps_of(HasUpper);
  constexpr int kOutputs = IsGated ? kRows / 2 : kRows;
  constexpr int kTokens = HasUpper ? 16 : 8;
  constexpr int kPlaces = kTokens * kOutputs;
  static_assert(kPlaces <= kAddingWarps * 32);
  constexpr bool kIsPair = S == kPairSteps;
  static_assert(!kIsPair || (!IsGated && !HasUpper));
  constexpr bool kTakesNorm = !kIsPair && !HasUpper;
  constexpr bool kScalesSums = std::is_same_v<T, bf16>;
  __shared__ float partials[2][kMaxWarps][kRows][kTokens];
  __shared__ float norm_partials[kMaxWarps][kTokens];
  extern __shared__ uint4 ring[];  // [stage][step of it][rows below 8, others][thread]; the norm's weights
  const int num_threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int num_warps = num_threads / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const bool is_normed = kTakesNorm && args.norm_weight != nullptr;
  const int num_outputs = IsGated ? args.n / 2 : args.n;
  const int num_batches = (num_outputs + kOutputs - 1) / kOutputs;
  const int block = static_cast<int>(blockIdx.x);
  const int rank = kIsPair ? block % 2 : 0;
  const int first_batch = kIsPair ? block / 2 : block;
  const int stride = static_cast<int>(kIsPair ? gridDim.x / 2 : gridDim.x);
  const int slice = (rank * num_warps + warp) * S * kStepInputs;
  const int first_element = slice + t * 8;
  const auto element = [&](int step) { return first_element + step * kStepInputs; };
  float* const norm_weights =
      reinterpret_cast<float*>(ring + kStages * kLoads * 2 * num_threads) + warp * S * kStepInputs;

  const T* const w = static_cast<const T*>(args.w);
  const auto fetch = [&](int stage, int batch, int part) {
    if (batch < num_batches) {
      // Rows g and g + 8 of the batch; of the gated form a gate and what it gates.
      const int row = batch * kOutputs + g;
      const T* const source = w + int64_t{row} * args.k;
      const int64_t second = int64_t{IsGated ? args.n / 2 : kRows / 2} * args.k;
      const bool is_row = row < num_outputs;
      const bool is_second = IsGated ? is_row : row + kRows / 2 < num_outputs;
#pragma unroll
      for (int l = 0; l < kLoads; ++l) {
        const int at = element(part * kLoads + l);
        uint4* const target = &ring[(stage * kLoads + l) * 2 * num_threads + thread];
        copy_16_or_zeros(target, source + at, at < args.k && is_row);
        copy_16_or_zeros(target + num_threads, source + second + at, at < args.k && is_second);
      }
    }
    end_copy_group();
  };
  // The stage that is asked for next: its batch, and which part of it.
  int next_batch = first_batch;
  int next_part = 0;
  const auto fetch_next = [&](int stage) {
    fetch(stage, next_batch, next_part);
    if (++next_part == kParts) {
      next_part = 0;
      next_batch += stride;
    }
  };
  let_next_start();
  if (is_normed) {
    for (int i = lane * 4; i < S * kStepInputs; i += 32 * 4) {
      if (slice + i < args.k) copy_16(norm_weights + i, args.norm_weight + slice + i);
    }
  }
#pragma unroll 1
  for (int stage = 0; stage < kStages; ++stage) fetch_next(stage);
  wait_for_previous();

  // ---- The inputs of tokens g and g + 8, normed and rounded where that is asked for
  uint4 x[S];
  uint4 upper[HasUpper ? S : 1];
  [[maybe_unused]] float values[kTakesNorm ? S : 1][8];  // of what is to be normed
  const auto load = [&](int token, int s) {
    if (element(s) >= args.k || token >= args.num_tokens) return uint4{0, 0, 0, 0};
    return __ldcg(reinterpret_cast<const uint4*>(static_cast<const T*>(args.x) + token * args.x_stride + element(s)));
  };
#pragma unroll
  for (int s = 0; s < S; ++s) {
    if (kTakesNorm && args.is_x_float) {
      const float* const source = static_cast<const float*>(args.x) + g * args.x_stride + element(s);
      const bool is_input = element(s) < args.k && g < args.num_tokens;
#pragma unroll
      for (int i = 0; i < 8; i += 4) {
        const float4 four = is_input ? __ldcg(reinterpret_cast<const float4*>(source + i)) : float4{0, 0, 0, 0};
        values[s][i] = four.x, values[s][i + 1] = four.y, values[s][i + 2] = four.z, values[s][i + 3] = four.w;
      }
      continue;
    }
    x[s] = load(g, s);
    if constexpr (HasUpper) upper[s] = load(g + 8, s);
    if (kTakesNorm && is_normed) unpack_eight<T>(values[s], x[s]);
  }
  const auto factor_of = [&](int token) {
    float total = 0;
    for (int i = 0; i < num_warps; ++i) total += norm_partials[i][token];
    return 1.0f / sqrtf(total / static_cast<float>(args.k) + args.epsilon);
  };
  if constexpr (kTakesNorm) {
    if (is_normed) {
      wait_for_copy_groups<kStages - 1>();  // its weights are in the first
      __syncwarp();
      const auto norm = [&](int s, float factor) {
        x[s] = {0, 0, 0, 0};
        if (element(s) < args.k) x[s] = normed<T>(values[s], factor, norm_weights + s * kStepInputs + t * 8);
      };
      float sum = 0;
#pragma unroll
      for (int s = 0; s < S; ++s) {
        sum += sum_of_squares(values[s]);
        if constexpr (kScalesSums) norm(s, 1);
      }
#pragma unroll
      for (int offset = 1; offset < 4; offset *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
      if (t == 0) norm_partials[warp][g] = sum;
      if constexpr (!kScalesSums) {
        __syncthreads();
        const float factor = factor_of(g);
#pragma unroll
        for (int s = 0; s < S; ++s) norm(s, factor);
      }
    }
  }

  // ---- What becomes of sums: a lane an output
  const int place = thread % (kAddingWarps * 32);
  const int token = place / kOutputs;
  const bool is_place = place < kPlaces && token < args.num_tokens;
  float factor = 0;  // of the token's norm; 0: not known yet
  const auto finish = [&](int output, float sum, float up, float residual) {
    if (kScalesSums && is_normed) {
      if (factor == 0) factor = factor_of(token);
      sum *= factor;
      up *= factor;
    }
    if (args.bias != nullptr) sum += args.bias[output];
    const int64_t at = token * args.y_stride + output;
    if constexpr (IsGated) {
      if (args.bias != nullptr) up += args.bias[output + num_outputs];
      static_cast<T*>(args.y)[at] = from_float<T>(gated(args.gate, kDTypeOf<T>, sum, up));
    } else if (args.is_y_float) {
      static_cast<float*>(args.y)[at] = sum + residual;
    } else {
      static_cast<T*>(args.y)[at] = from_float<T>(sum + residual);
    }
  };
  // Of a pair, every second batch is this block's to finish: its sums wait for those of the other until the next one.
  constexpr int kMessageFloats = kTokens * kRows;
  float* const inbox = args.mail + block * kMessages * kMessageFloats;
  float* const outbox = args.mail + (block ^ 1) * kMessages * kMessageFloats;
  float kept = 0;
  float kept_residual = 0;
  int kept_ordinal = -1;
  const auto finish_kept = [&] {
    if (kept_ordinal < 0) return;
    const float sum = kept + receive_sum(inbox + kept_ordinal % kMessages * kMessageFloats + place);
    finish((first_batch + kept_ordinal * stride) * kOutputs + place % kOutputs, sum, 0, kept_residual);
  };

  // ---- Batches of rows
  const int num_turns = num_warps / kAddingWarps;
  int turn = 0;  // which warps add this batch
  int buffer = 0;
  int stage = 0;
  int ordinal = 0;
  for (int batch = first_batch; batch < num_batches; batch += stride) {
    const int output = batch * kOutputs + place % kOutputs;
    const bool is_adding = warp / kAddingWarps == turn && is_place && output < num_outputs;
    float residual = 0;
    if (!IsGated && is_adding && args.residual != nullptr && (!kIsPair || ordinal % 2 == rank)) {
      const int64_t at = token * args.residual_stride + output;
      residual = args.is_y_float ? static_cast<const float*>(args.residual)[at]
                                 : to_float(static_cast<const T*>(args.residual)[at]);
    }
    float sums[4] = {0, 0, 0, 0};  // of rows g (twice) and g + 8 for tokens 2t and 2t + 1
    float upper_sums[4] = {0, 0, 0, 0};
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      wait_for_copy_groups<kStages - 1>();
#pragma unroll
      for (int l = 0; l < kLoads; ++l) {
        const int s = part * kLoads + l;
        const uint4 r0 = ring[(stage * kLoads + l) * 2 * num_threads + thread];
        const uint4 r1 = ring[((stage * kLoads + l) * 2 + 1) * num_threads + thread];
        mma<T>(sums, {r0.x, r1.x, r0.y, r1.y}, x[s].x, x[s].y);
        if constexpr (HasUpper) mma<T>(upper_sums, {r0.x, r1.x, r0.y, r1.y}, upper[s].x, upper[s].y);
        mma<T>(sums, {r0.z, r1.z, r0.w, r1.w}, x[s].z, x[s].w);
        if constexpr (HasUpper) mma<T>(upper_sums, {r0.z, r1.z, r0.w, r1.w}, upper[s].z, upper[s].w);
      }
      fetch_next(stage);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = g + kRows / 2 * half;
      float* const target = partials[buffer][warp][r];
      *reinterpret_cast<float2*>(target + swizzled<kTokens>(r, 2 * t)) = {sums[2 * half], sums[2 * half + 1]};
      if constexpr (HasUpper) {
        *reinterpret_cast<float2*>(target + swizzled<kTokens>(r, 2 * t + 8)) = {upper_sums[2 * half],
                                                                                upper_sums[2 * half + 1]};
      }
    }
    // Those who add the batch after next wait at the next barrier for the warps that add this one.
    __syncthreads();
    if (is_adding) {
      const auto sum_of = [&](int r) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < kMaxWarps; ++i) {
          if (i < num_warps) sum += partials[buffer][i][r][swizzled<kTokens>(r, token)];
        }
        return sum;
      };
      const float sum = sum_of(place % kOutputs);
      if constexpr (!kIsPair) {
        finish(output, sum, IsGated ? sum_of(place % kOutputs + kRows / 2) : 0.0f, residual);
      } else if (ordinal % 2 == rank) {
        finish_kept();
        kept = sum;
        kept_residual = residual;
        kept_ordinal = ordinal;
      } else {
        send_sum(outbox + ordinal % kMessages * kMessageFloats + place, sum);
      }
    }
    ++ordinal;
    turn = turn + 1 == num_turns ? 0 : turn + 1;
    buffer ^= 1;
  }
  if constexpr (kIsPair) finish_kept();
  wait_for_all_copies();
}

template <typename T, int S>
void launch(cudaStream_t stream, const Args& args) {
  constexpr bool kIsPair = S == kPairSteps;
  const bool has_upper = args.num_tokens > 8;
  auto kernel = gemv_tokens_kernel<T, S, false, false>;
  if constexpr (!kIsPair) {
    const bool is_gated = args.gate != Gate::kNone;
    kernel = is_gated ? (has_upper ? gemv_tokens_kernel<T, S, true, true> : gemv_tokens_kernel<T, S, true, false>)
                      : (has_upper ? gemv_tokens_kernel<T, S, false, true> : gemv_tokens_kernel<T, S, false, false>);
  }
  // As many as whole turns of those that add.
  const int adding_warps = adding_warps_of(has_upper);
  const int num_warps = ceil_div(ceil_div(args.k, (kIsPair ? 2 : 1) * S * kStepInputs), adding_warps) * adding_warps;
  const int num_blocks = kIsPair ? num_multiprocessors() / 2 * 2 : num_multiprocessors();
  const int norm_bytes = args.norm_weight != nullptr ? num_warps * S * kStepInputs * 4 : 0;
  const int shared_bytes = stages_of(has_upper) * kLoads * 2 * num_warps * 32 * 16 + norm_bytes;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  launch_dependent_with_memory(stream, kernel, dim3(static_cast<unsigned>(num_blocks)),
                               dim3(static_cast<unsigned>(num_warps * 32)), static_cast<size_t>(shared_bytes), args);
}

}  // namespace

bool accepts_gemv_tokens(const LinearCall& call) {
  const Weight& weight = call.weight;
  const DType dtype = call.dtype();
  const int64_t num_tokens = call.x.size(0);
  if (dtype == DType::kF32 || num_tokens < 1 || num_tokens > kMaxTokens || call.offsets.is_given() ||
      weight.num_experts != 1 || weight.layout != Layout::kCudaPlanes) {
    return false;
  }
  const bool is_pair = weight.k > kMostK;
  const bool is_normed = call.norm.weight.is_given();
  if (is_pair) {
    const int64_t most_tokens = weight.k >= kLeastKOfSeveral ? 8 : 1;
    if (num_tokens > most_tokens || is_normed || call.gate != Gate::kNone) return false;
  }
  if (is_normed && num_tokens > 8) return false;
  return weight.format == (dtype == DType::kBF16 ? FormatId::kBF16 : FormatId::kF16) && weight.k % 8 == 0 &&
         weight.k >= kLeastK && weight.k <= kMostPairK && weight.n <= (1 << 24) &&
         is_aligned(weight.parts[0].data(), 16) && is_aligned(call.x.raw_data(), 16) && call.x.stride(0) % 8 == 0 &&
         (!is_normed || is_aligned(call.norm.weight.raw_data(), 16));
}

bool accepts_gated_gemv_tokens(const LinearCall& call) {
  return accepts_gemv_tokens(call) && call.weight.n % 2 == 0 && call.y.dtype() == call.dtype();
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
                  .is_x_float = call.x.dtype() == DType::kF32,
                  .is_y_float = call.y.dtype() == DType::kF32,
                  .gate = call.gate,
                  .mail = call.library->partial_sums()};
  CHECK(int64_t{num_multiprocessors()} * kMessages * 8 * kRows <= LinearLibrary::kMaxPartialSums);
  const auto start = [&]<typename T>(T) {
    if (args.k <= kMostK / 2) return launch<T, kMostSteps / 2>(call.stream, args);
    if (args.k <= kMostK) return launch<T, kMostSteps>(call.stream, args);
    launch<T, kPairSteps>(call.stream, args);
  };
  call.dtype() == DType::kBF16 ? start(bf16{}) : start(f16{});
}

}  // namespace quire::cuda

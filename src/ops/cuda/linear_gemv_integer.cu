// The row `gemv_integer`: one token, weights of an integer format whose groups are 32 or 128 k, in the tiles of
// weights.h; and the fused forms that a decoder's layer wants of it: the norm of the input before, the gated activation
// behind.
//
// As many blocks as multiprocessors; block b has panels (16 outputs) b, b + blocks, ... (of the
// gated form panels of `gate`, each followed by its panel of `up`). A panel's k is cut into chunks of 256; warps take
// chunks in turn, over the ends of panels, each through a ring of its own in shared memory that asynchronous copies
// fill, so that warps meet only to add their sums, every few panels. The rings are filled before the kernel waits for
// the one in front.
//
// Products run on the tensor cores, in f16: codes are exact there, inputs are brought near 1 by a power of two. All
// eight columns of the inputs' matrix are the same; of a group's sums, which the four threads of a row all have, one
// thread takes those that it has the scales of, and multiplies in float. A minimum multiplies the sum of a group's
// inputs. Of groups of 128 all four threads multiply all sums: there are few. The limit is the reading of the weights.
// A chunk's sum goes to class `chunk % warps`, ascending; classes are added in ascending order: the order depends on k
// alone.
#include <algorithm>

#include "ops/cuda/async_copy.cuh"
#include "ops/cuda/device_dtype.cuh"
#include "ops/cuda/device_weight.cuh"
#include "ops/cuda/gate.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/linear.h"
#include "ops/cuda/linear_gemv_integer.cuh"
#include "ops/cuda/packed_pairs.cuh"

namespace quire::cuda {

namespace {

using namespace integer;

constexpr int kWarps = 16;
constexpr int kThreads = 32 * kWarps;
constexpr int kPanelsAtOnce = 8;             // whose sums are added over the warps together
constexpr int kMaxSharedBytes = 208 * 1024;  // that a launch asks for, beside the kernel's own

template <int Bits, ScaleKind Kind>
struct Shape : Chunk<Bits, Kind> {
  static constexpr int kStageBytes = Chunk<Bits, Kind>::kBytes;
  static constexpr int kStages = (Bits == 4 ? 64 : 32) / kWarps;
  static constexpr int kRingBytes = kWarps * kStages * kStageBytes;
};

// The rings, the inputs, and the sums of their groups.
template <int Bits, ScaleKind Kind>
constexpr int64_t shared_bytes(int64_t k) {
  return Shape<Bits, Kind>::kRingBytes + k * 2 + k / 32 * 4;
}

struct Args {
  DeviceWeight w;
  const void* x;
  bool is_x_float;  // normed, it becomes `dtype`
  DType dtype;      // of what is multiplied
  void* y;
  DType y_dtype;
  const float* bias;         // or null
  const void* residual;      // or null
  const float* norm_weight;  // or null: no norm
  float epsilon;
  Gate gate;
};

template <int Bits, ScaleKind Kind>
__global__ void __launch_bounds__(kThreads, 1) gemv_integer_kernel(Args args) {
  using S = Shape<Bits, Kind>;
  extern __shared__ __align__(16) char dynamic_shared[];
  __shared__ float partials[2][kPanelsAtOnce][kWarps][kPanelLanes];
  __shared__ float2 reduced[kWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const DeviceWeight& w = args.w;
  const int k = static_cast<int>(w.k);
  const int num_chunks = k / kChunk;
  const bool is_gated = args.gate != Gate::kNone;
  const int num_blocks = static_cast<int>(gridDim.x);
  const int block = static_cast<int>(blockIdx.x);
  const int num_outputs = static_cast<int>(is_gated ? w.n / 2 : w.n);
  const int num_output_panels = (num_outputs + kPanelLanes - 1) / kPanelLanes;
  const int num_own_outputs = (num_output_panels - block + num_blocks - 1) / num_blocks;  // panels
  const int num_panels = is_gated ? 2 * num_own_outputs : num_own_outputs;
  char* const ring = dynamic_shared + warp * S::kStages * S::kStageBytes;
  uint4* const inputs = reinterpret_cast<uint4*>(dynamic_shared + S::kRingBytes);  // [chunk][lane]
  float* const input_sums = reinterpret_cast<float*>(inputs + num_chunks * 32);    // [group]

  // Item i is a chunk of the block's panel i / num_chunks.
  const auto panel_of = [&](int own) {
    if (!is_gated) return block + own * num_blocks;
    return block + own / 2 * num_blocks + (own % 2 == 0 ? 0 : num_output_panels);
  };
  int fetched_panel = warp / num_chunks;
  int fetched_chunk = warp % num_chunks;
  const auto next_item = [&](int& panel, int& chunk) {
    chunk += kWarps;
    while (chunk >= num_chunks) {
      chunk -= num_chunks;
      ++panel;
    }
  };
  const auto fetch = [&](int stage) {
    if (fetched_panel < num_panels) {
      const int64_t panel = panel_of(fetched_panel);
      const uint32_t target = shared_address(ring + stage * S::kStageBytes + 16 * lane);
      const uint8_t* codes = w.codes + panel * w.panel_code_bytes + fetched_chunk * S::kCodeBytes + 16 * lane;
#pragma unroll
      for (int tile = 0; tile < S::kTiles; ++tile) {
        copy_16(target + static_cast<uint32_t>(tile * kWeightTileBytes), codes + tile * kWeightTileBytes);
      }
      if (lane < scale_bytes(Kind) / 16) {
        copy_16(target + static_cast<uint32_t>(S::kCodeBytes),
                w.scales + panel * w.panel_scale_bytes + fetched_chunk * scale_bytes(Kind) + 16 * lane);
      }
      next_item(fetched_panel, fetched_chunk);
    }
    end_copy_group();
  };
  let_next_start();
#pragma unroll
  for (int stage = 0; stage < S::kStages; ++stage) fetch(stage);
  wait_for_previous();

  // ---- The inputs, normed where that is asked for, as f16 near 1 in the order of the tensor cores' operand
  const auto place_of = [&](int at) { return input_place(inputs, at); };
  const auto unpack_inputs = [&](float(&x)[8], const uint32_t(&words)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool is_bf16 = args.dtype == DType::kBF16;
      x[2 * i] = is_bf16 ? low_float<bf16>(words[i]) : low_float<f16>(words[i]);
      x[2 * i + 1] = is_bf16 ? high_float<bf16>(words[i]) : high_float<f16>(words[i]);
    }
  };
  const bool is_normed = args.norm_weight != nullptr;
  float squares = 0;
  float largest = 0;
#pragma unroll 4
  for (int at = static_cast<int>(threadIdx.x) * 8; at < k; at += kThreads * 8) {
    float x[8];
    if (args.is_x_float) {
      load_eight(x, static_cast<const float*>(args.x) + at);
    } else {
      const uint4 loaded = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(args.x) + at);
      const uint32_t words[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
      uint32_t* const place = place_of(at);
#pragma unroll
      for (int i = 0; i < 4; ++i) place[4 * i] = words[i];
      unpack_inputs(x, words);
    }
    float factors[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    if (is_normed) load_eight(factors, args.norm_weight + at);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      squares += x[i] * x[i];
      largest = fmaxf(largest, fabsf(x[i] * factors[i]));
    }
  }
  squares = warp_sum(squares);
  largest = warp_max(largest);
  if (lane == 0) reduced[warp] = {squares, largest};
  __syncthreads();
  squares = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    squares += reduced[i].x;
    largest = fmaxf(largest, reduced[i].y);
  }
  float norm = 1;
  if (is_normed) {
    norm = 1.0f / sqrtf(squares / static_cast<float>(k) + args.epsilon);
    largest *= norm;
  }
  const uint32_t exponent = min(max(__float_as_uint(largest) >> 23, 2u), 252u);
  const float up = __uint_as_float(exponent << 23);  // brings sums back
  const float down = __uint_as_float((254u - exponent) << 23);
  for (int first = 0; first < k; first += kThreads * 8) {  // lanes of a warp go on together
    const int at = first + static_cast<int>(threadIdx.x) * 8;
    float sum = 0;
    if (at < k) {
      uint32_t* const place = place_of(at);
      float x[8];
      if (args.is_x_float) {  // too large to be kept: it comes again, from a cache
        load_eight(x, static_cast<const float*>(args.x) + at);
      } else {
        unpack_inputs(x, {place[0], place[4], place[8], place[12]});
      }
      if (is_normed) {
        float factors[8];
        load_eight(factors, args.norm_weight + at);
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] = round_as(args.dtype, x[i] * norm * factors[i]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const __half2 pair = __floats2half2_rn(x[2 * i] * down, x[2 * i + 1] * down);
        place[4 * i] = *reinterpret_cast<const uint32_t*>(&pair);
        sum += __low2float(pair) + __high2float(pair);
      }
    }
    if constexpr (S::kHasMin) {
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (t == 0 && at < k) input_sums[at / 32] = sum;
    }
  }
  __syncthreads();

  // ---- Chunks
  int stage = 0;
  int panel = warp / num_chunks;
  int chunk = warp % num_chunks;
  for (int first_panel = 0, buffer = 0; first_panel < num_panels; first_panel += kPanelsAtOnce, buffer ^= 1) {
    const int end_panel = min(first_panel + kPanelsAtOnce, num_panels);
    float sums[2] = {0, 0};  // rows g and g + 8
    while (panel < end_panel) {
      wait_for_copy_groups<S::kStages - 1>();
      __syncwarp();
      const char* const here = ring + stage * S::kStageBytes;
      take_chunk<Bits, Kind>(sums, here, inputs, input_sums, chunk, w.panel.offset);
      __syncwarp();  // everybody has read the stage
      fetch(stage);
      stage = stage + 1 == S::kStages ? 0 : stage + 1;
      const int before = panel;
      next_item(panel, chunk);
      if (panel != before) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          sums[half] = whole_sum<Kind>(sums[half]);
          if (t == 0) partials[buffer][before - first_panel][warp][g + 8 * half] = sums[half];
          sums[half] = 0;
        }
      }
    }
    __syncthreads();
    // A thread an output: warps in the order of the chunks that they began with.
    const int row = static_cast<int>(threadIdx.x) % kPanelLanes;
    const int own = first_panel + static_cast<int>(threadIdx.x) / kPanelLanes * (is_gated ? 2 : 1);
    const int output = panel_of(own) * kPanelLanes + row;
    if (own < end_panel && output < num_outputs) {
      const auto sum_of = [&](int index) {
        float sum = 0;
        const int first_warp = index * num_chunks % kWarps;
        for (int i = 0; i < min(kWarps, num_chunks); ++i) {
          sum += partials[buffer][index - first_panel][(first_warp + i) % kWarps][row];
        }
        return sum * up;
      };
      float sum = sum_of(own);
      if (args.bias != nullptr) sum += args.bias[output];
      if (is_gated) {
        float other = sum_of(own + 1);
        if (args.bias != nullptr) other += args.bias[output + num_outputs];
        sum = gated(args.gate, args.y_dtype, sum, other);
      }
      if (args.residual != nullptr) sum += load_as_float(args.residual, args.y_dtype, output);
      store_float_as(args.y, args.y_dtype, output, sum);
    }
  }
  wait_for_all_copies();
}

template <int Bits, ScaleKind Kind>
void launch(cudaStream_t stream, const Args& args, int num_blocks) {
  const auto kernel = gemv_integer_kernel<Bits, Kind>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes));
  launch_dependent_with_memory(stream, kernel, dim3(static_cast<unsigned>(num_blocks)), dim3(kThreads),
                               static_cast<size_t>(shared_bytes<Bits, Kind>(args.w.k)), args);
}

template <int Bits>
int64_t shared_bytes(ScaleKind kind, int64_t k) {
  if (kind == ScaleKind::kHalf) return shared_bytes<Bits, ScaleKind::kHalf>(k);
  if (kind == ScaleKind::kHalfAndMin) return shared_bytes<Bits, ScaleKind::kHalfAndMin>(k);
  if (kind == ScaleKind::kHalfAndZero) return shared_bytes<Bits, ScaleKind::kHalfAndZero>(k);
  return shared_bytes<Bits, ScaleKind::kSuperBytes>(k);
}

}  // namespace

bool accepts_gemv_integer(const LinearCall& call) {
  const Weight& weight = call.weight;
  if (call.dtype() == DType::kF32 || call.x.size(0) != 1 || call.offsets.is_given() || weight.num_experts != 1) {
    return false;
  }
  if (weight.layout != Layout::kCudaPlanes || weight.quant().is_float) return false;
  const PanelFormat panel = panel_format(weight.format);
  const ScaleKind kind = panel.scale_kind;
  const int stored_bits = device_weight(weight).stored_bits;
  return (panel.group_size == 32 || kind == ScaleKind::kHalfAndZero) && panel.scale_kind != ScaleKind::kSuperSigned &&
         weight.k % kChunk == 0 && weight.n <= (1 << 24) &&
         (stored_bits == 4 ? shared_bytes<4>(kind, weight.k) : shared_bytes<8>(kind, weight.k)) <= kMaxSharedBytes &&
         is_aligned(call.x.raw_data(), 16) &&
         (!call.norm.weight.is_given() || is_aligned(call.norm.weight.raw_data(), 16));
}

bool accepts_gated_gemv_integer(const LinearCall& call) {
  // Panels of `gate` end where those of `up` begin.
  return accepts_gemv_integer(call) && call.weight.n % (2 * kPanelLanes) == 0 && call.y.dtype() == call.dtype();
}

void linear_gemv_integer(const LinearCall& call) {
  const int num_blocks = num_multiprocessors();
  const Args args{.w = device_weight(call.weight),
                  .x = call.x.raw_data(),
                  .is_x_float = call.x.dtype() == DType::kF32,
                  .dtype = call.dtype(),
                  .y = call.y.raw_data(),
                  .y_dtype = call.y.dtype(),
                  .bias = call.epilogue.bias.is_given() ? call.epilogue.bias.data<float>() : nullptr,
                  .residual = call.epilogue.residual.raw_data(),
                  .norm_weight = call.norm.weight.is_given() ? call.norm.weight.data<float>() : nullptr,
                  .epsilon = call.norm.epsilon,
                  .gate = call.gate};
  const ScaleKind kind = args.w.panel.scale_kind;
  if (args.w.stored_bits == 4) {
    (kind == ScaleKind::kHalf          ? launch<4, ScaleKind::kHalf>
     : kind == ScaleKind::kHalfAndMin  ? launch<4, ScaleKind::kHalfAndMin>
     : kind == ScaleKind::kHalfAndZero ? launch<4, ScaleKind::kHalfAndZero>
                                       : launch<4, ScaleKind::kSuperBytes>)(call.stream, args, num_blocks);
  } else {
    (kind == ScaleKind::kHalf         ? launch<8, ScaleKind::kHalf>
     : kind == ScaleKind::kHalfAndMin ? launch<8, ScaleKind::kHalfAndMin>
                                      : launch<8, ScaleKind::kSuperBytes>)(call.stream, args, num_blocks);
  }
}

}  // namespace quire::cuda

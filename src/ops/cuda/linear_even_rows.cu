// The row `even_rows`: up to 64 tokens, 16-bit weights of their dtype, with the gated activation behind where a layer
// wants it.
//
// Weight rows are spread evenly over the multiprocessors: a block, one a multiprocessor, has N of them and all of k, so
// that no block waits for sums of another (where there are more rows than 112 a block, it takes several such tiles in
// turn). The copy engine brings a stage of k at a time, N rows of weights and the tokens, and a block keeps some 200 KB
// on their way. One warpgroup multiplies: tokens are the 64 rows of tensor core products (wgmma), weights their
// columns; tokens that are not there are whatever lies in memory, since rows of a product do not meet.
//
// The limit is the reading of the weights. One k is added after the other, so a token has the same bits among as many
// as there are, which are those of cuBLASLt where it splits no k (linear_strict.h).
#include "ops/cuda/linear_even_rows.h"

#include <algorithm>
#include <span>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/linear_few_tokens.cuh"
#include "ops/cuda/packed_pairs.cuh"
#include "ops/cuda/stage_ring.cuh"
#include "ops/cuda/tensor_map.h"
#include "ops/cuda/wgmma_tokens.cuh"

namespace quire::cuda {

namespace {

using few::Output;

constexpr int kTokens = kMaxEvenTokens;
constexpr int kBoxBytes = 128;  // of k
constexpr int kBoxElements = kBoxBytes / 2;
constexpr int kStepBytes = 32;  // of k, a product
constexpr int kConsumers = 128;
constexpr int kThreads = kConsumers + 32;
constexpr int kRingBytes = 216 * 1024;
constexpr int kMaxStages = 16;
// Each stage has its costs: of few rows it has up to 4 boxes of k, as many as that holds. The first and the last one
// are waited for with nothing else to do: of many rows it has one box.
constexpr int kMostStageBytes = 48 * 1024;
constexpr int kManyRows = 80;

struct Args {
  Output output;
  int token_rows;  // of a box
  int num_steps;   // stages of a tile
  int num_tiles;   // of N rows
  int num_stages;
  // k divides into boxes, so that one copy brings all those of a stage; else a box a copy, with zeros past k.
  bool has_whole_boxes;
};

template <typename T, int N, int Width>
__global__ void __launch_bounds__(kThreads, 1)
    even_rows_kernel(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map, Args args) {
  extern __shared__ char dynamic_shared[];
  __shared__ uint64_t full[kMaxStages];
  __shared__ uint64_t empty[kMaxStages];
  // The swizzle repeats every 1024 bytes.
  char* const ring = dynamic_shared + (1024 - shared_address(dynamic_shared) % 1024) % 1024;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int num_stages = args.num_stages;
  constexpr int kWeightBytes = Width * N * kBoxBytes;
  const int box_bytes = args.token_rows * kBoxBytes;
  const int stage_bytes = kWeightBytes + Width * box_bytes;
  const Output& output = args.output;
  const bool is_gated = output.is_gated();
  const int outputs_of_tile = is_gated ? N / 2 : N;
  const int first_tile = static_cast<int>(blockIdx.x);
  const int num_blocks = static_cast<int>(gridDim.x);
  if (static_cast<int>(threadIdx.x) == kConsumers) prefetch_map(&w_map);
  init_ring(full, empty, kConsumers / 32);
  let_next_start();
  __syncthreads();

  if (warp == kConsumers / 32) {
    if (lane > 0) return;
    const uint64_t once = evict_first_policy();
    const uint64_t often = evict_last_policy();
    const int depth = args.has_whole_boxes ? Width : 1;  // boxes of a copy
    const auto copy = [&](char* target, const CUtensorMap* map, int row, int box, int s, uint64_t policy) {
      if (args.has_whole_boxes) return copy_box(target, map, Coordinates3{0, row, box}, &full[s], policy);
      copy_box(target, map, Coordinates2{box * kBoxElements, row}, &full[s], policy);
    };
    const auto load_weights = [&](int tile, int step, int s) {
      char* const stage = ring + s * stage_bytes;
      barrier_arrive_expecting(&full[s], static_cast<uint32_t>(stage_bytes));
      if (!is_gated) {
        for (int box = 0; box < Width; box += depth) {
          copy(stage + box * N * kBoxBytes, &w_map, tile * N, step * Width + box, s, once);
        }
        return;
      }
      for (int box = 0; box < Width; ++box) {  // gates, then what they gate
        char* const target = stage + box * N * kBoxBytes;
        copy(target, &w_map, tile * (N / 2), step * Width + box, s, once);
        copy(target + N / 2 * kBoxBytes, &w_map, output.num_gates + tile * (N / 2), step * Width + box, s, once);
      }
    };
    const auto load_tokens = [&](int step, int s) {
      char* const target = ring + s * stage_bytes + kWeightBytes;
      for (int box = 0; box < Width; box += depth) {
        copy(target + box * box_bytes, &x_map, 0, step * Width + box, s, often);
      }
    };
    const int count = ceil_div(args.num_tiles - first_tile, num_blocks) * args.num_steps;
    // Half of the ring is asked for before the kernel ahead has ended: with all of it models were up to 2 % slower
    // (H200).
    const int num_first = min(num_stages, count);
    const int num_early = min((num_stages + 1) / 2, count);
    int tile = first_tile;
    int step = 0;
    const auto advance = [&] {
      if (++step == args.num_steps) {
        step = 0;
        tile += num_blocks;
      }
    };
    for (int i = 0; i < num_early; ++i) {
      load_weights(tile, step, i);
      advance();
    }
    wait_for_previous();
    for (int i = 0; i < num_early; ++i) load_tokens(i % args.num_steps, i);
    for (int i = num_early; i < num_first; ++i) {
      load_weights(tile, step, i);
      load_tokens(step, i);
      advance();
    }
    int s = 0;
    uint32_t parity = 0;
    for (int i = num_first; i < count; ++i) {
      barrier_wait(&empty[s], parity);
      load_weights(tile, step, s);
      load_tokens(step, s);
      advance();
      if (++s == num_stages) {
        s = 0;
        parity ^= 1u;
      }
    }
    return;
  }

  wait_for_previous();
  const int first_token = warp * 16 + lane / 4;  // and 8 more
  int s = 0;
  uint32_t parity = 0;
  const auto release = [&](int stage) {
    __syncwarp();
    if (lane == 0) barrier_arrive(&empty[stage]);
  };
  for (int tile = first_tile; tile < args.num_tiles; tile += num_blocks) {
    float sums[N / 2];
#pragma unroll
    for (int j = 0; j < N / 2; ++j) sums[j] = 0;
    int before = 0;  // a stage whose products may still run
    for (int step = 0; step < args.num_steps; ++step) {
      barrier_wait(&full[s], parity);
      const uint32_t w = shared_address(ring + s * stage_bytes);
      const uint32_t x = w + kWeightBytes;
      wgmma_fence();
#pragma unroll
      for (int box = 0; box < Width; ++box) {
#pragma unroll
        for (int i = 0; i < kBoxBytes / kStepBytes; ++i) {
          const uint32_t x_at = x + static_cast<uint32_t>(box * box_bytes + i * kStepBytes);
          const uint32_t w_at = w + static_cast<uint32_t>(box * N * kBoxBytes + i * kStepBytes);
          wgmma_tokens<T, N>(sums, matrix_descriptor(x_at, 16, 1024), matrix_descriptor(w_at, 16, 1024), true);
        }
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (step > 0) release(before);
      before = s;
      if (++s == num_stages) {
        s = 0;
        parity ^= 1u;
      }
    }
    // The residual is asked for while the last products run, floats of the second token when the first is done.
    constexpr int kWords = N / 8;
    const int first_output = tile * outputs_of_tile + 2 * (lane % 4);
    const bool has_residual = output.residual != nullptr;
    const bool is_float = output.y_dtype == DType::kF32;
    uint32_t residual[2][kWords];  // pairs of both tokens; of floats the firsts and the seconds of one token's pairs
    const auto ask_for_floats = [&](int token) {
      const float* const row = static_cast<const float*>(output.residual) + token * output.residual_stride;
#pragma unroll
      for (int j = 0; j < kWords; ++j) {
        const int out = first_output + 8 * j;
        if (token >= output.num_tokens || out >= output.num_outputs) break;
        const float2 pair = __ldcg(reinterpret_cast<const float2*>(row + out));
        residual[0][j] = __float_as_uint(pair.x);
        residual[1][j] = __float_as_uint(pair.y);
      }
    };
    if (has_residual && is_float) ask_for_floats(first_token);
    if (has_residual && !is_float) {
#pragma unroll
      for (int i = 0; i < 2 * kWords; ++i) {
        const int token = first_token + i / kWords * 8;
        const int out = first_output + i % kWords * 8;
        if (token >= output.num_tokens || out >= output.num_outputs) continue;
        const uint16_t* const row = static_cast<const uint16_t*>(output.residual) + token * output.residual_stride;
        residual[i / kWords][i % kWords] = __ldcg(reinterpret_cast<const uint32_t*>(row + out));
      }
    }
    wgmma_wait<0>();
    hold(sums);
    release(before);

    // Pairs of neighbouring outputs of one token, then of the other: a loop that is not unrolled, for half of the code.
    // Of the gated form a thread has the sums of a gate and of what it gates.
#pragma unroll 1
    for (int token = first_token; token < first_token + 16; token += 8) {
      if (token >= output.num_tokens) break;
      if (output.bias != nullptr) {
#pragma unroll
        for (int j = 0; j < N / 8; ++j) {
          const bool is_up = is_gated && j >= N / 16;
          const int out = first_output + 8 * (is_up ? j - N / 16 : j);
          if (out >= output.num_outputs) continue;
          const float2 bias = few::load_pair(output.bias, DType::kF32, out + (is_up ? output.num_gates : 0));
          sums[4 * j] += bias.x;
          sums[4 * j + 1] += bias.y;
        }
      }
      if (is_gated) {
#pragma unroll
        for (int i = 0; i < 2 * (N / 16); ++i) {
          float& gate = sums[4 * (i / 2) + i % 2];
          gate = gated(output.gate, kDTypeOf<T>, gate, sums[4 * (i / 2 + N / 16) + i % 2]);
        }
      }
      const int num_pairs = is_gated ? N / 16 : N / 8;
      if (is_float) {
        float* const row = static_cast<float*>(output.y) + token * output.y_stride;
#pragma unroll
        for (int j = 0; j < N / 8; ++j) {
          const int out = first_output + 8 * j;
          if (j >= num_pairs || out >= output.num_outputs) break;
          float2 sum = {sums[4 * j], sums[4 * j + 1]};
          if (has_residual) {
            sum = {sum.x + __uint_as_float(residual[0][j]), sum.y + __uint_as_float(residual[1][j])};
          }
          *reinterpret_cast<float2*>(row + out) = sum;
        }
      } else {
        uint16_t* const row = static_cast<uint16_t*>(output.y) + token * output.y_stride;
#pragma unroll
        for (int j = 0; j < N / 8; ++j) {
          const int out = first_output + 8 * j;
          if (j >= num_pairs || out >= output.num_outputs) break;
          float2 sum = {sums[4 * j], sums[4 * j + 1]};
          if (has_residual) {
            const float2 other = unpack_pair<T>(residual[0][j]);
            sum = {sum.x + other.x, sum.y + other.y};
          }
          *reinterpret_cast<uint32_t*>(row + out) = pack_pair<T>(sum.x, sum.y);
        }
      }
#pragma unroll
      for (int j = 0; j < N / 8; ++j) {
        sums[4 * j] = sums[4 * j + 2];
        sums[4 * j + 1] = sums[4 * j + 3];
        if (!is_float) residual[0][j] = residual[1][j];
      }
      if (has_residual && is_float && token == first_token) ask_for_floats(token + 8);
    }
  }
}

// ---- Launches -------------------------------------------------------------------------------------------------------

int token_rows_of(int64_t num_tokens) {
  return static_cast<int>(ceil_div<int64_t>(num_tokens, 8)) * 8;
}

template <typename T, int N, int Width>
void launch(const LinearCall& call) {
  const Weight& weight = call.weight;
  const Output output = few::output_of(call);
  const bool is_gated = output.gate != Gate::kNone;
  CHECK(!is_gated || output.residual == nullptr);
  const int64_t num_boxes = ceil_div<int64_t>(weight.k, kBoxElements);
  const int token_rows = token_rows_of(output.num_tokens);
  const int stage_bytes = Width * (N + token_rows) * kBoxBytes;
  const Args args{.output = output,
                  .token_rows = token_rows,
                  .num_steps = static_cast<int>(ceil_div<int64_t>(num_boxes, Width)),
                  .num_tiles = ceil_div(output.num_outputs, is_gated ? N / 2 : N),
                  .num_stages = std::min(kMaxStages, kRingBytes / stage_bytes),
                  .has_whole_boxes = weight.k % kBoxElements == 0};
  const auto map_of = [&](const void* data, int64_t num_rows, int64_t stride, int32_t box_rows, int32_t depth) {
    const int64_t sizes[] = {args.has_whole_boxes ? kBoxElements : weight.k, num_rows, num_boxes};
    const int64_t strides[] = {stride, kBoxElements};
    const int32_t box[] = {kBoxElements, box_rows, depth};
    const size_t rank = args.has_whole_boxes ? 3 : 2;
    return make_tensor_map({.dtype = call.x.dtype(),
                            .data = const_cast<void*>(data),
                            .sizes = std::span(sizes).first(rank),
                            .strides = std::span(strides).first(rank - 1),
                            .box = std::span(box).first(rank)});
  };
  const CUtensorMap w_map =
      map_of(weight.parts[0].data(), weight.n, weight.k, is_gated ? N / 2 : N, is_gated ? 1 : Width);
  const CUtensorMap x_map = map_of(call.x.raw_data(), output.num_tokens, call.x.stride(0), token_rows, Width);
  const auto kernel = even_rows_kernel<T, N, Width>;
  // Products read 64 rows of tokens, also behind the last stage.
  constexpr int kSharedBytes = kRingBytes + (kTokens - 8) * kBoxBytes + 1024;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  launch_dependent_with_memory(call.stream, kernel,
                               dim3(static_cast<unsigned>(std::min(args.num_tiles, num_multiprocessors()))),
                               dim3(kThreads), kSharedBytes, w_map, x_map, args);
}

template <int N>
constexpr int kMostBoxes = (N < kManyRows) ? 4 : 1;

template <typename T, int N, int Width = kMostBoxes<N>>
void launch_stage(const LinearCall& call) {
  if constexpr (Width > 1 && Width * (N + kTokens) * kBoxBytes > kMostStageBytes) {
    if (Width * (N + token_rows_of(call.x.size(0))) * kBoxBytes > kMostStageBytes) {
      return launch_stage<T, N, Width / 2>(call);
    }
  }
  launch<T, N, Width>(call);
}

constexpr int kTileRows[] = {112, 96, 80, 64, 48, 32, 16};

// With which the blocks that have most have least to do; a tile costs as much as some rows beside its own.
int tile_rows_of(int64_t num_rows) {
  constexpr int kRowsOfTile = 8;
  const auto cost = [&](int rows) {
    return ceil_div<int64_t>(ceil_div<int64_t>(num_rows, rows), num_multiprocessors()) * (rows + kRowsOfTile);
  };
  return *std::min_element(std::begin(kTileRows), std::end(kTileRows), [&](int a, int b) { return cost(a) < cost(b); });
}

template <typename T>
void launch_any(const LinearCall& call) {
  switch (tile_rows_of(call.weight.n)) {
    case 16:
      return launch_stage<T, 16>(call);
    case 32:
      return launch_stage<T, 32>(call);
    case 48:
      return launch_stage<T, 48>(call);
    case 64:
      return launch_stage<T, 64>(call);
    case 80:
      return launch_stage<T, 80>(call);
    case 96:
      return launch_stage<T, 96>(call);
    default:
      return launch_stage<T, 112>(call);
  }
}

}  // namespace

bool fits_even_rows(const LinearCall& call) {
  const Weight& weight = call.weight;
  const DType dtype = call.x.dtype();
  if (dtype == DType::kF32 || call.offsets.is_given() || call.norm.weight.is_given() || weight.num_experts != 1) {
    return false;
  }
  if (weight.layout != Layout::kCudaPlanes) return false;
  if (weight.format != (dtype == DType::kBF16 ? FormatId::kBF16 : FormatId::kF16)) return false;
  return weight.k % 8 == 0 && weight.n % 8 == 0 && weight.n < (1 << 30) && weight.k < (1 << 30) &&
         few::is_call_aligned(call);
}

bool accepts_even_rows(const LinearCall& call) {
  // Of many tokens and rows the gate behind the product is what pays: without, cuBLASLt takes 57.4 instead of 59.4 us
  // for 64 tokens of 28,672 x 4,096, and 251 instead of 261 for 128,256 (H200).
  constexpr int64_t kManyTokens = 17;
  constexpr int64_t kManyOutputs = 16'384;
  const int64_t num_tokens = call.x.size(0);
  if (call.gate == Gate::kNone && num_tokens >= kManyTokens && call.weight.n > kManyOutputs) return false;
  return num_tokens >= 1 && num_tokens <= kTokens && fits_even_rows(call);
}

bool accepts_gated_even_rows(const LinearCall& call) {
  return accepts_even_rows(call) && call.weight.n % 16 == 0 && call.y.dtype() == call.x.dtype();
}

void linear_even_rows(const LinearCall& call) {
  const auto function = call.x.dtype() == DType::kBF16 ? launch_any<bf16> : launch_any<f16>;
  function(call);
}

}  // namespace quire::cuda

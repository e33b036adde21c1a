// The linear layer for more tokens than the rows for few of them take, in their orders of sums, bit for bit: e4m3
// weights with e4m3 activations (a scale for 128 k of a token) in that of `few_tokens`, 16-bit ones with activations of
// their dtype in that of `even_rows`, and the numbers that `few_tokens_integer` makes of integer weights in its.
//
// A block is a tile of 128 outputs (of the gated form: 64 gates and the 64 that belong to them) and N tokens, and goes
// over all of k: products of a part of k are summed in registers, as a block of `few_tokens` does, and parts are added
// in ascending order, in shared memory. Where there are few tiles the parts are blocks that give each other their sums,
// as there. Two warpgroups of 64 outputs each multiply on the tensor cores from shared memory (wgmma, the tokens as
// columns); a warp asks the copy engine for 128 bytes of k a stage. Neighbouring blocks share a tile of outputs, of a
// few tiles of tokens, so that what a wave of blocks reads stays in the L2 cache. The limit is arithmetic.
#include "ops/cuda/linear_many_tokens.h"

#include <algorithm>
#include <type_traits>

#include "ops/cuda/elementwise.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/linear_answers.h"
#include "ops/cuda/linear_cublaslt.h"
#include "ops/cuda/linear_few_tokens.cuh"
#include "ops/cuda/stage_ring.cuh"
#include "ops/cuda/tensor_map.h"
#include "ops/cuda/wgmma_tokens.cuh"

namespace quire::cuda {

namespace {

using namespace few;

constexpr int kRowBytes = 128;  // of k, a stage
constexpr int kWeightBytes = kRows * kRowBytes;
constexpr int kBlockThreads =
    kConsumers + 128;                 // a whole warpgroup asks for memory, so that it can give registers away
constexpr int kTokenTilesAtOnce = 8;  // whose blocks are neighbours
constexpr int kLargestTile = 256;
constexpr int kTile = 128;

template <typename W>
constexpr bool kIsF8 = std::is_same_v<W, F8>;

template <typename W, int N>
struct Shape {
  // Where sums of parts that are done are kept: in registers, or, where products of 128 k take those, beside the ring.
  // The larger tile has no room for them.
  static constexpr bool kHasRegisterTotals = !kIsF8<W> && N <= kTile;
  static constexpr bool kHasTotals = kIsF8<W>;
  static constexpr int kTotalBytes = kHasTotals ? N * kSumStride * 4 : 0;
  static constexpr int kStageBytes = kWeightBytes + N * kRowBytes;
  static constexpr int kStages = kHasRegisterTotals ? 6 : 4;
  static constexpr int kScales = kIsF8<W> ? N : 4;  // of a stage
  static constexpr uint32_t kExpectedBytes = kStageBytes + (kIsF8<W> ? N * 4 : 0);
  static constexpr int kSharedBytes = kStages * kStageBytes + kTotalBytes + 1024;
  static_assert(kSharedBytes <= 225 * 1024 && (kHasTotals || N * kSumStride * 4 <= kStages * kStageBytes));
};

struct Args {
  Output output;
  const float* x_scales;  // of e4m3: [groups of 128 k, scale_stride]
  int scale_stride;
  int elements_per_box;  // of k
  int num_parts;         // of k
  int num_units;         // of boxes, in all parts, which begin at whole ones
  int boxes_of_unit;
  int up_row;  // of the weight: where what is gated begins
  int num_tiles;
  int num_token_tiles;
  bool is_weight_new;  // the kernel ahead has made it
};

// Grid: x tiles of outputs times tiles of tokens; y 1, or the parts of k.
template <typename W, int N>
__global__ void __launch_bounds__(kBlockThreads, 1)
    many_tokens_kernel(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
                       Args args) {
  using S = Shape<W, N>;
  extern __shared__ char dynamic_shared[];
  __shared__ uint64_t full[S::kStages];
  __shared__ uint64_t empty[S::kStages];
  __shared__ alignas(16) float x_scales[S::kStages][S::kScales];
  // The swizzle repeats every 1024 bytes.
  char* const ring = dynamic_shared + (1024 - shared_address(dynamic_shared) % 1024) % 1024;
  char* const totals = S::kHasTotals ? ring + S::kStages * S::kStageBytes : ring;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool is_alone = gridDim.y == 1;
  const int first_part = is_alone ? 0 : static_cast<int>(blockIdx.y);
  const int end_part = is_alone ? args.num_parts : first_part + 1;
  const auto begin_of = [&](int part) { return args.num_units * part / args.num_parts * args.boxes_of_unit; };
  const int begin = begin_of(first_part);
  const int end = begin_of(end_part);

  const int group = static_cast<int>(blockIdx.x) / (args.num_tiles * kTokenTilesAtOnce);
  const int in_group = static_cast<int>(blockIdx.x) % (args.num_tiles * kTokenTilesAtOnce);
  const int group_size = min(kTokenTilesAtOnce, args.num_token_tiles - group * kTokenTilesAtOnce);
  const int tile = in_group / group_size;
  const int first_token = (group * kTokenTilesAtOnce + in_group % group_size) * N;
  const int first_output = tile * args.output.outputs_of_tile();
  const bool is_gated = args.output.is_gated();

  init_ring(full, empty, kConsumers / 32);
  let_next_start();
  __syncthreads();

  if (warp >= kConsumers / 32) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
    if (warp == kConsumers / 32 && lane == 0) {
      const uint64_t often = evict_last_policy();
      const uint64_t of_weights = args.num_token_tiles > 1 ? often : evict_first_policy();
      const auto load_weights = [&](int box, int s) {
        char* const stage = ring + s * S::kStageBytes;
        const int k = box * args.elements_per_box;
        barrier_arrive_expecting(&full[s], S::kExpectedBytes);
        copy_box(stage, &w_map, Coordinates2{k, first_output}, &full[s], of_weights);
        copy_box(stage + kHalfRows * kRowBytes, &w_map,
                 Coordinates2{k, first_output + (is_gated ? args.up_row : kHalfRows)}, &full[s], of_weights);
      };
      const auto load_tokens = [&](int box, int s) {
        char* const stage = ring + s * S::kStageBytes + kWeightBytes;
        copy_box(stage, &x_map, Coordinates2{box * args.elements_per_box, first_token}, &full[s], often);
        if constexpr (kIsF8<W>) {
          copy_bytes(x_scales[s], args.x_scales + int64_t{box} * args.scale_stride + first_token, N * 4, &full[s]);
        }
      };
      const int num_first = min(S::kStages, end - begin);
      if (args.is_weight_new) wait_for_previous();
      for (int i = 0; i < num_first; ++i) load_weights(begin + i, i);
      wait_for_previous();
      for (int i = 0; i < num_first; ++i) load_tokens(begin + i, i);
      int s = 0;
      uint32_t parity = 0;
      for (int box = begin + num_first; box < end; ++box) {
        barrier_wait(&empty[s], parity);
        load_weights(box, s);
        load_tokens(box, s);
        if (++s == S::kStages) {
          s = 0;
          parity ^= 1u;
        }
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    wait_for_previous();
    const int half = warp / 4;
    int s = 0;
    uint32_t parity = 0;
    const auto release = [&](int stage) {
      __syncwarp();
      if (lane == 0) barrier_arrive(&empty[stage]);
    };
    const auto advance = [&] {
      if (++s == S::kStages) {
        s = 0;
        parity ^= 1u;
      }
    };
    const auto multiply = [&](float(&target)[N / 2], int stage_index, int step, bool adds) {
      const uint32_t stage = shared_address(ring + stage_index * S::kStageBytes);
      const uint32_t w = stage + static_cast<uint32_t>(half * kHalfRows * kRowBytes + step * 32);
      const uint32_t x = stage + static_cast<uint32_t>(kWeightBytes + step * 32);
      wgmma_tokens<W, N>(target, matrix_descriptor(w, 16, 1024), matrix_descriptor(x, 16, 1024), adds);
    };
    [[maybe_unused]] float register_totals[S::kHasRegisterTotals ? N / 2 : 1];
    for (int part = first_part; part < end_part; ++part) {
      const int count = begin_of(part + 1) - begin_of(part);
      float sums[N / 2];
#pragma unroll
      for (int j = 0; j < N / 2; ++j) sums[j] = 0;
      if constexpr (kIsF8<W>) {
        for (int i = 0; i < count; ++i) {
          float some[N / 2];
          float2 scales[N / 8];
          barrier_wait(&full[s], parity);
          wgmma_fence();
#pragma unroll
          for (int step = 0; step < 4; ++step) multiply(some, s, step, step > 0);
          wgmma_commit();
#pragma unroll
          for (int j = 0; j < N / 8; ++j) {
            scales[j] = *reinterpret_cast<const float2*>(&x_scales[s][8 * j + 2 * (lane % 4)]);
          }
          wgmma_wait<0>();
          hold(some);
          release(s);
#pragma unroll
          for (int j = 0; j < N / 2; ++j) {
            sums[j] = fmaf(some[j], j % 2 == 0 ? scales[j / 4].x : scales[j / 4].y, sums[j]);
          }
          advance();
        }
      } else {
        int before = 0;  // a stage whose products may still run
        for (int i = 0; i < count; ++i) {
          barrier_wait(&full[s], parity);
          wgmma_fence();
#pragma unroll
          for (int step = 0; step < 4; ++step) multiply(sums, s, step, true);
          wgmma_commit();
          wgmma_wait<1>();
          if (i > 0) release(before);
          before = s;
          advance();
        }
        wgmma_wait<0>();
        hold(sums);
        if (count > 0) release(before);
      }
      if constexpr (S::kHasRegisterTotals) {
#pragma unroll
        for (int j = 0; j < N / 2; ++j) {
          register_totals[j] = part > first_part ? register_totals[j] + sums[j] : sums[j];
        }
      } else if constexpr (S::kHasTotals) {
        // A thread's own places, so that no other waits.
        if (part > first_part) {
          store_sums<N, true>(totals, sums);
        } else {
          store_sums<N>(totals, sums);
        }
      } else {
        // One part. The ring is free, everything that was asked for has come and been used.
        consumer_barrier();
        store_sums<N>(totals, sums);
      }
    }
    if constexpr (S::kHasRegisterTotals) {
      consumer_barrier();
      store_sums<N>(totals, register_totals);
    }
    consumer_barrier();
    Output output = args.output;
    const int64_t element_bytes = output.y_dtype == DType::kF32 ? 4 : 2;
    output.num_tokens = min(N, output.num_tokens - first_token);
    output.y = static_cast<char*>(output.y) + first_token * output.y_stride * element_bytes;
    if (output.residual != nullptr) {
      output.residual =
          static_cast<const char*>(output.residual) + first_token * output.residual_stride * element_bytes;
    }
    finish_tile<N, kIsF8<W>>(output, totals, {tile, static_cast<int>(blockIdx.x)});
  }
}

// ---- Launches -------------------------------------------------------------------------------------------------------

// Rows of a weight, and the order of their sums.
struct WeightRows {
  const void* data;
  int64_t num_rows;
  bool is_new;  // made by the kernel ahead
  int num_parts;
  int num_units;
  int boxes_of_unit;
};

// How the blocks lie. All ways give the same bits.
struct Lie {
  int tile;  // of tokens
  bool has_part_blocks;
};

// What takes the least time: blocks in turns, by the tokens and the share of k that each has.
Lie choose_lie(int num_tiles, int num_tokens, int num_parts, bool is_f8) {
  const auto blocks_of = [&](int tile) { return num_tiles * ceil_div(num_tokens, tile); };
  const auto time_of = [&](const Lie& lie) {
    const int num_blocks = blocks_of(lie.tile) * (lie.has_part_blocks ? num_parts : 1);
    const double turns = ceil_div(num_blocks, num_multiprocessors());
    // The larger tile reads less; parts that wait for one another cost about as much as some of the products.
    const double tokens = lie.tile == kTile ? kTile : 0.9 * kLargestTile;
    return turns * tokens * (lie.has_part_blocks ? 1.0 / num_parts + 0.1 : 1.0);
  };
  Lie best = {kTile, false};
  const auto consider = [&](const Lie& lie) {
    if (time_of(lie) < time_of(best)) best = lie;
  };
  for (const int tile : {kTile, kLargestTile}) {
    if (tile == kLargestTile && is_f8) continue;
    if (num_parts == 1 && tile == kLargestTile) consider({tile, false});
    const int num_blocks = blocks_of(tile) * num_parts;
    if (num_parts > 1 && num_blocks <= num_multiprocessors() && has_room_for_sums(num_blocks, tile)) {
      consider({tile, true});
    }
  }
  return best;
}

template <typename W, int N>
void launch_tile(const LinearCall& call, const CUtensorMap& w_map, const CUtensorMap& x_map, const Args& args,
                 bool has_part_blocks) {
  using S = Shape<W, N>;
  const auto kernel = many_tokens_kernel<W, N>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes));
  const dim3 grid(static_cast<unsigned>(args.num_tiles * args.num_token_tiles),
                  static_cast<unsigned>(has_part_blocks ? args.num_parts : 1));
  launch_dependent_with_memory(call.stream, kernel, grid, dim3(kBlockThreads), S::kSharedBytes, w_map, x_map, args);
}

// x: rows of W's operands, num_tokens of them.
struct TokenRows {
  const void* data;
  int64_t stride;
  const float* scales;
  int scale_stride;
};

template <typename W>
void launch(const LinearCall& call, const Output& output, const WeightRows& weight, const TokenRows& x) {
  constexpr DType kDType = kIsF8<W> ? DType::kF8E4M3 : std::is_same_v<W, bf16> ? DType::kBF16 : DType::kF16;
  const int per_box = kRowBytes / static_cast<int>(dtype_bytes(kDType));
  Args args{.output = output,
            .x_scales = x.scales,
            .scale_stride = x.scale_stride,
            .elements_per_box = per_box,
            .num_parts = weight.num_parts,
            .num_units = weight.num_units,
            .boxes_of_unit = weight.boxes_of_unit,
            .up_row = static_cast<int>(weight.num_rows / 2),
            .num_tiles = num_tiles_of(output),
            .num_token_tiles = 0,
            .is_weight_new = weight.is_new};
  const Lie lie = choose_lie(args.num_tiles, output.num_tokens, args.num_parts, kIsF8<W>);
  args.num_token_tiles = ceil_div(output.num_tokens, lie.tile);
  const int64_t k = call.weight.k;
  const int64_t w_sizes[] = {k, weight.num_rows};
  const int64_t w_strides[] = {k};
  const int32_t w_box[] = {per_box, kHalfRows};
  const int64_t x_sizes[] = {k, output.num_tokens};
  const int64_t x_strides[] = {x.stride};
  const int32_t x_box[] = {per_box, lie.tile};
  const CUtensorMap w_map = make_tensor_map(
      {.dtype = kDType, .data = const_cast<void*>(weight.data), .sizes = w_sizes, .strides = w_strides, .box = w_box});
  const CUtensorMap x_map = make_tensor_map(
      {.dtype = kDType, .data = const_cast<void*>(x.data), .sizes = x_sizes, .strides = x_strides, .box = x_box});
  if constexpr (!kIsF8<W>) {
    if (lie.tile == kLargestTile) {
      return launch_tile<W, kLargestTile>(call, w_map, x_map, args, lie.has_part_blocks);
    }
  }
  launch_tile<W, kTile>(call, w_map, x_map, args, lie.has_part_blocks);
}

char* offset_bytes(const void* data, int64_t num_bytes) {
  return const_cast<char*>(static_cast<const char*>(data)) + num_bytes;
}

struct Buffer {
  char* data;
  int64_t num_bytes;
};

// By cuBLASLt, where a way of it has the same bits (of one part of k) and is faster: the products, plain or into
// `buffer`, from which the gated activation takes them. A residual that stands in y's place goes to `buffer` first,
// since the library's sums differ where it adds to what lies there already. Returns how many tokens are done:
// all, none, or where `buffer` is small a multiple of what it holds, since the way was looked at for so many.
template <typename W>
int64_t multiply_by_library(const LinearCall& call, const Output& output, const WeightRows& weight,
                            const Buffer& buffer) {
  if (weight.num_parts > 1 || output.bias != nullptr) return 0;
  const bool is_gated = output.gate != Gate::kNone;
  const bool is_in_place = output.residual != nullptr && output.residual == output.y;
  const int64_t k = call.weight.k;
  const int64_t row_bytes = weight.num_rows * dtype_bytes(output.y_dtype);
  int64_t most = output.num_tokens;
  if ((is_gated || is_in_place) && most * row_bytes > buffer.num_bytes) {
    most = buffer.num_bytes / row_bytes / kLargestTile * kLargestTile;
  }
  if (most == 0) return 0;
  const MatmulShape shape{.num_tokens = most,
                          .n = weight.num_rows,
                          .k = k,
                          .dtype = call.x.dtype(),
                          .y_dtype = output.y_dtype,
                          .x_stride = call.x.stride(0),
                          .y_stride = is_gated ? weight.num_rows : output.y_stride,
                          .residual_stride = is_in_place                  ? weight.num_rows
                                             : output.residual != nullptr ? output.residual_stride
                                                                          : 0};
  const cublasLtMatmulAlgo_t* const answer = call.library->same_answers().find(
      call.stream, *call.library, shape, weight.data, [&](void* y, const void* x, const void* residual) {
        Output plain = output;
        plain.y = y;
        plain.y_stride = weight.num_rows;
        plain.residual = residual;
        plain.residual_stride = weight.num_rows;
        plain.num_tokens = static_cast<int>(most);
        plain.num_outputs = static_cast<int>(weight.num_rows);
        plain.gate = Gate::kNone;
        launch<W>(call, plain, weight, {.data = x, .stride = k, .scales = nullptr, .scale_stride = 0});
      });
  if (answer == nullptr) return 0;
  const int64_t x_row_bytes = call.x.stride(0) * 2;
  const int64_t y_row_bytes = output.y_stride * dtype_bytes(output.y_dtype);
  const int64_t num_done = output.num_tokens / most * most;
  for (int64_t first = 0; first < num_done; first += most) {
    char* const y = offset_bytes(output.y, first * y_row_bytes);
    const int64_t residual_row_bytes = output.residual_stride * dtype_bytes(output.y_dtype);
    const void* residual = nullptr;
    if (output.residual != nullptr) residual = offset_bytes(output.residual, first * residual_row_bytes);
    if (is_in_place) {
      CUDA_CHECK(cudaMemcpy2DAsync(buffer.data, static_cast<size_t>(row_bytes), residual,
                                   static_cast<size_t>(residual_row_bytes), static_cast<size_t>(row_bytes),
                                   static_cast<size_t>(most), cudaMemcpyDeviceToDevice, call.stream));
      residual = buffer.data;
    }
    call.library->run(call.stream, shape,
                      {.y = is_gated ? buffer.data : y,
                       .x = offset_bytes(call.x.raw_data(), first * x_row_bytes),
                       .w = weight.data,
                       .residual = residual},
                      *answer);
    if (!is_gated) continue;
    const int64_t half = weight.num_rows / 2;
    const ConstTensorView products(buffer.data, output.y_dtype, {most, weight.num_rows});
    const TensorView target = TensorView(y, output.y_dtype, {most, output.y_stride}).slice(1, 0, output.num_outputs);
    binary(call.stream, output.gate == Gate::kSilu ? BinaryOp::kSiluMultiply : BinaryOp::kGeluTanhMultiply, target,
           products.slice(1, 0, half), products.slice(1, half, 2 * half));
  }
  return num_done;
}

template <typename W>
void launch_floats(const LinearCall& call, const Output& output, const WeightRows& weight, const Buffer& buffer) {
  const int64_t num_done = multiply_by_library<W>(call, output, weight, buffer);
  if (num_done == output.num_tokens) return;
  Output rest = output;
  rest.num_tokens -= static_cast<int>(num_done);
  rest.y = offset_bytes(output.y, num_done * output.y_stride * dtype_bytes(output.y_dtype));
  if (output.residual != nullptr) {
    rest.residual = offset_bytes(output.residual, num_done * output.residual_stride * dtype_bytes(output.y_dtype));
  }
  launch<W>(call, rest, weight,
            {.data = offset_bytes(call.x.raw_data(), num_done * call.x.stride(0) * 2),
             .stride = call.x.stride(0),
             .scales = nullptr,
             .scale_stride = 0});
}

// Activations become e4m3 in the buffer of slices, as many at once as find room.
void multiply_f8(const LinearCall& call, const WeightRows& weight) {
  const int64_t k = call.weight.k;
  const int64_t num_groups = 2 * num_pairs_of(call.weight);
  const int64_t most = (call.library->slice_bytes() - 256) / (k + num_groups * int64_t{sizeof(float)}) / kTile * kTile;
  CHECK(most > 0);
  const int64_t num_tokens = call.x.size(0);
  for (int64_t first = 0; first < num_tokens; first += most) {
    const int64_t count = std::min(most, num_tokens - first);
    uint8_t* const codes = static_cast<uint8_t*>(call.library->slice_data());
    float* const scales = reinterpret_cast<float*>(codes + ceil_div<int64_t>(count * k, 256) * 256);
    const int scale_stride = static_cast<int>(ceil_div<int64_t>(count, kTile) * kTile);
    quantize_groups_to_f8(call.stream, {.codes = codes,
                                        .scales = scales,
                                        .scale_stride = scale_stride,
                                        .x = call.x.slice(0, first, first + count),
                                        .norm_weight = call.norm.weight,
                                        .epsilon = call.norm.epsilon});
    Output output = output_of(call);
    const int64_t y_bytes = dtype_bytes(call.y.dtype());
    output.w_scales = reinterpret_cast<const float*>(call.weight.parts[1].data());
    output.num_tokens = static_cast<int>(count);
    output.y = offset_bytes(output.y, first * output.y_stride * y_bytes);
    if (output.residual != nullptr) {
      output.residual = offset_bytes(output.residual, first * output.residual_stride * y_bytes);
    }
    launch<F8>(call, output, weight, {.data = codes, .stride = k, .scales = scales, .scale_stride = scale_stride});
  }
}

}  // namespace

void linear_many_tokens(const LinearCall& call) {
  const Weight& weight = call.weight;
  WeightRows rows{.data = weight.parts[0].data(),
                  .num_rows = weight.n,
                  .is_new = false,
                  .num_parts = 1,
                  .num_units = static_cast<int>(ceil_div<int64_t>(weight.k * 2, kRowBytes)),
                  .boxes_of_unit = 1};
  if (weight.layout == Layout::kCudaF8) {
    rows.num_units = num_pairs_of(weight);
    rows.num_parts = parts_of_pairs(num_tiles_of(output_of(call)), rows.num_units);
    rows.boxes_of_unit = kPairBytes / kRowBytes;
    return multiply_f8(call, rows);
  }
  const auto function = call.x.dtype() == DType::kBF16 ? launch_floats<bf16> : launch_floats<f16>;
  function(call, output_of(call), rows, {static_cast<char*>(call.library->slice_data()), call.library->slice_bytes()});
}

void linear_many_tokens_integer(const LinearCall& call) {
  constexpr int64_t kChunk = 256;
  const Weight& weight = call.weight;
  const bool is_gated = call.gate != Gate::kNone;
  const Output whole = output_of(call);
  const int num_chunks = static_cast<int>(weight.k / kChunk);
  const int num_parts = strict_parts_of_chunks(num_tiles_of(whole), num_chunks);
  const int64_t row_bytes = weight.k * 2;
  // Half of the buffer is for products that are to be gated.
  const int64_t number_bytes = is_gated ? call.library->slice_bytes() / 2 : call.library->slice_bytes();
  const int64_t most_rows = number_bytes / row_bytes;
  const int64_t most = is_gated ? most_rows / 2 / kHalfRows * kHalfRows : most_rows / kRows * kRows;  // outputs of y
  CHECK(most > 0);
  const DType dtype = call.x.dtype();
  for (int64_t first = 0; first < whole.num_outputs; first += most) {
    const int64_t count = std::min<int64_t>(most, whole.num_outputs - first);
    char* const numbers = static_cast<char*>(call.library->slice_data());
    const Buffer products = {numbers + number_bytes, call.library->slice_bytes() - number_bytes};
    write_numbers(call.stream, weight, {.out = numbers, .dtype = dtype, .first_row = first, .num_rows = count});
    if (is_gated) {
      write_numbers(call.stream, weight,
                    {.out = offset_bytes(numbers, count * row_bytes),
                     .dtype = dtype,
                     .first_row = whole.num_outputs + first,
                     .num_rows = count});
    }
    Output output = whole;
    const int64_t y_bytes = dtype_bytes(call.y.dtype());
    output.num_outputs = static_cast<int>(count);
    output.y = offset_bytes(output.y, first * y_bytes);
    if (output.residual != nullptr) output.residual = offset_bytes(output.residual, first * y_bytes);
    if (output.bias != nullptr) output.bias += first;
    const WeightRows rows{.data = numbers,
                          .num_rows = is_gated ? 2 * count : count,
                          .is_new = true,
                          .num_parts = num_parts,
                          .num_units = num_chunks,
                          .boxes_of_unit = static_cast<int>(kChunk * 2 / kRowBytes)};
    const auto function = dtype == DType::kBF16 ? launch_floats<bf16> : launch_floats<f16>;
    function(call, output, rows, products);
  }
}

}  // namespace quire::cuda

// The kernel of the row `few_tokens_integer`: 2 to 256 tokens, weights of an integer format in the tiles of weights.h,
// with the gated activation behind where a layer wants it. Launched by linear_few_tokens_integer*.cu.
//
// Grid: x tiles of 128 outputs (8 panels; of the gated form 4 panels of `gate` and the 4 that belong to them), y parts
// of k, which the block that ends last adds. A warp of a block asks the copy engine for 256 or 128 k of codes and
// scales of the panels and for as many of the tokens; each of the eight others has a panel: it takes codes from shared
// memory straight into the registers of the tensor core instruction, as numbers of the activations' dtype, and two
// warpgroups multiply 64 outputs each by all tokens, in float. While one tile of codes becomes numbers, the tensor
// cores multiply the one before. Weights are read once; the limit is the reading for few tokens, the making of numbers
// or the products for many. The order of a token's sum depends on the weight's shape and on the tile of tokens;
// weights are rounded once, so that bits differ from the rows for fewer tokens.
//
// Numbers: where a format has 4 bits and a scale, packed: code less offset, which is exact, times the scale (of bf16 in
// two halves, so that only the last addition rounds). For few tokens and groups of 128 without the scale, which
// multiplies a group's sums. Else scale and minimum in float, then rounded.
#pragma once

#include <algorithm>
#include <type_traits>

#include "ops/cuda/device_weight.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/linear_few_tokens.cuh"
#include "ops/cuda/linear_skinny.cuh"
#include "ops/cuda/stage_ring.cuh"
#include "ops/cuda/tensor_map.h"
#include "ops/cuda/wgmma_register_weights.cuh"

namespace quire::cuda::few {

constexpr int kPanels = kRows / kPanelLanes;   // of a tile
constexpr int kBoxElements = 64;               // 128 bytes of k
constexpr int kIntegerRingBytes = 110 * 1024;  // two blocks a multiprocessor
constexpr int kLargeRingBytes = 200 * 1024;    // one
constexpr int kLargestChunk = 256;             // k of a stage

constexpr int scale_bytes_of_chunk(ScaleKind kind, int group_size, int chunk) {
  switch (kind) {
    case ScaleKind::kHalf:
      return chunk / group_size * 32;
    case ScaleKind::kHalfAndMin:
      return chunk / group_size * 64;
    case ScaleKind::kHalfAndZero:
      return chunk / group_size * 48;
    case ScaleKind::kSuperSigned:  // these have all of their 256 k
      return 32 + 256 / group_size * 16;
    default:
      return 64 + 256;
  }
}

template <int Bits, ScaleKind Kind, int GroupSize, int N>
struct IntegerShape {
  static constexpr int kChunk = N >= 64 ? 128 : kLargestChunk;
  static constexpr int kTileK = Bits == 4 ? 64 : 32;
  static constexpr int kTiles = kChunk / kTileK;
  static constexpr int kCodeBytes = kTiles * kWeightTileBytes;  // of a panel
  static constexpr int kScaleBytes = scale_bytes_of_chunk(Kind, GroupSize, kChunk);
  static constexpr bool kHasSuperBlocks = Kind == ScaleKind::kSuperSigned || Kind == ScaleKind::kSuperBytes;
  static constexpr int kChunksOfScales = kHasSuperBlocks ? 256 / kChunk : 1;  // that share a block of scales
  static constexpr int kBoxes = kChunk / kBoxElements;
  static constexpr int kTokenBytes = kBoxes * N * 128;
  static constexpr int kUsedBytes = kTokenBytes + kPanels * (kCodeBytes + kScaleBytes);
  static constexpr int kStageBytes = (kUsedBytes + 1023) / 1024 * 1024;  // boxes lie at multiples of the swizzle
  static constexpr bool kIsLarge = N > 64;  // one block a multiprocessor, for the registers of its sums
  static constexpr int kStages = std::min(6, (kIsLarge ? kLargeRingBytes : kIntegerRingBytes) / kStageBytes);
  static constexpr int kSharedBytes = std::max(kStages * kStageBytes, N* kSumStride * 4) + 1024;
  // Of large blocks a whole warpgroup asks for memory, so that it can give registers away.
  static constexpr int kBlockThreads = kIsLarge ? kConsumers + 128 : kThreads;
  static_assert(kStages >= 2 && kTiles % 2 == 0);
};

struct IntegerArgs {
  Output output;
  DeviceWeight w;
  int num_chunks;
};

// ---- Numbers --------------------------------------------------------------------------------------------------------

template <int Bits, ScaleKind Kind>
constexpr bool kIsPacked = Bits == 4 && (Kind == ScaleKind::kHalf || Kind == ScaleKind::kHalfAndZero);

// What a thread needs of a group for its rows g and g + 8, as pairs of T; `rest` is what T does not hold of the scale.
struct PackedGroup {
  uint32_t offset[2];
  uint32_t scale[2];
  uint32_t rest[2];
};
struct FloatGroup {
  ScaleAndMin rows[2];  // the minimum less `bias` scales
};

// What a code is more than its value while its bits stand in a float: 0x4300 | code in the upper half is 128 + code,
// and 0x47000000 | code << 8 is 2^15 + code.
template <int Bits>
constexpr float kBias = Bits == 4 ? 128.0f : 32768.0f;
// In a T: 128 + code, 1024 + code.
template <typename T>
constexpr uint32_t kBiasPair = std::is_same_v<T, bf16> ? 0x43004300u : 0x64006400u;

// Sums of a group of their own, beside the sums of all, must find room in the registers; and where bits shall be the
// same for any number of tokens, numbers are scaled for all.
template <ScaleKind Kind, int N>
constexpr bool kMayScaleSums = Kind == ScaleKind::kHalfAndZero&& N <= 32;

template <typename T, ScaleKind Kind>
__device__ __forceinline__ PackedGroup load_packed_group(const uint8_t* block, int g, int offset) {
  PackedGroup group;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const f16 scale = reinterpret_cast<const f16*>(block)[g + 8 * half];
    const int zero = Kind == ScaleKind::kHalfAndZero ? block[32 + g + 8 * half] : offset;
    group.offset[half] = kBiasPair<T> + static_cast<uint32_t>(zero) * 0x00010001u;
    if constexpr (std::is_same_v<T, bf16>) {
      const float whole = to_float(scale);
      group.scale[half] = pack_pair<bf16>(whole, whole);
      const float rest = whole - __uint_as_float(group.scale[half] << 16);
      group.rest[half] = pack_pair<bf16>(rest, rest);
    } else {
      const __half2 pair = __half2half2(scale);
      group.scale[half] = *reinterpret_cast<const uint32_t*>(&pair);
      group.rest[half] = 0;
    }
  }
  return group;
}

template <typename T, bool IsScaled>
__device__ __forceinline__ uint32_t make_pair(uint32_t biased, const PackedGroup& group, int half) {
  using Pair = std::conditional_t<std::is_same_v<T, bf16>, __nv_bfloat162, __half2>;
  const auto pair = [](const uint32_t& bits) { return *reinterpret_cast<const Pair*>(&bits); };
  const Pair code = __hsub2(pair(biased), pair(group.offset[half]));
  Pair number = code;
  if constexpr (!IsScaled) {
  } else if constexpr (std::is_same_v<T, bf16>) {
    number = __hfma2(code, pair(group.scale[half]), __hmul2(code, pair(group.rest[half])));
  } else {
    number = __hmul2(code, pair(group.scale[half]));
  }
  return *reinterpret_cast<const uint32_t*>(&number);
}

// One step of 16 k: register p has row g + 8 (p % 2).
template <typename T, bool IsScaled>
__device__ __forceinline__ void make_packed_numbers(uint32_t (&a)[4], uint32_t word, const PackedGroup& group) {
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    uint32_t biased;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(biased) : "r"(word >> (4 * p)), "r"(0x000f000fu), "r"(kBiasPair<T>));
    a[p] = make_pair<T, IsScaled>(biased, group, p % 2);
  }
}

template <typename T, int Bits>
__device__ __forceinline__ void make_float_numbers(uint32_t (&a)[4], uint32_t low, uint32_t high,
                                                   const FloatGroup& group) {
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    float first;
    float second;
    if constexpr (Bits == 4) {
      uint32_t pair;
      asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(pair) : "r"(low >> (4 * p)), "r"(0x000f000fu), "r"(0x43004300u));
      first = __uint_as_float(pair << 16);
      second = __uint_as_float(pair & 0xffff0000u);
    } else {
      const uint32_t word = p < 2 ? low : high;
      first = __uint_as_float(__byte_perm(word, 0x47000000u, p % 2 == 0 ? 0x7404 : 0x7424));
      second = __uint_as_float(__byte_perm(word, 0x47000000u, p % 2 == 0 ? 0x7414 : 0x7434));
    }
    const ScaleAndMin& scale = group.rows[p % 2];
    a[p] = pack_pair<T>(fmaf(first, scale.scale, scale.min), fmaf(second, scale.scale, scale.min));
  }
}

// A group's scales for a thread's rows, and the numbers that they make of codes.
template <typename T, int Bits, ScaleKind Kind, int GroupSize>
struct NumberGroup {
  std::conditional_t<kIsPacked<Bits, Kind>, PackedGroup, FloatGroup> of_rows;

  static __device__ __forceinline__ const uint8_t* block_of(const uint8_t* scales, int index) {
    constexpr bool kHasSuperBlocks = Kind == ScaleKind::kSuperSigned || Kind == ScaleKind::kSuperBytes;
    return kHasSuperBlocks ? scales : scales + index * scale_bytes_of_chunk(Kind, GroupSize, GroupSize);
  }
  // `bias`: kBias and what the format takes off a code.
  __device__ __forceinline__ void load(const uint8_t* scales, int index, int g, int offset, float bias) {
    const uint8_t* const block = block_of(scales, index);
    if constexpr (kIsPacked<Bits, Kind>) {
      of_rows = load_packed_group<T, Kind>(block, g, offset);
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        ScaleAndMin& row = of_rows.rows[half];
        row = decode_scale<Kind>(load_raw_scale<Kind>(block, g + 8 * half, index));
        row.min = fmaf(-bias, row.scale, row.min);
      }
    }
  }
  // Of a step of 16 k of a tile's codes.
  template <bool IsScaled>
  __device__ __forceinline__ void make(uint32_t (&a)[4], const uint32_t (&words)[4], int step) const {
    if constexpr (kIsPacked<Bits, Kind>) {
      make_packed_numbers<T, IsScaled>(a, words[step], of_rows);
    } else if constexpr (Bits == 4) {
      make_float_numbers<T, 4>(a, words[step], 0, of_rows);
    } else {
      make_float_numbers<T, 8>(a, words[2 * step], words[2 * step + 1], of_rows);
    }
  }
};

// ---- The kernel -----------------------------------------------------------------------------------------------------

template <typename T, int Bits, ScaleKind Kind, int GroupSize, int N, bool ScalesSums>
__global__ void __launch_bounds__(IntegerShape<Bits, Kind, GroupSize, N>::kBlockThreads,
                                  IntegerShape<Bits, Kind, GroupSize, N>::kIsLarge ? 1 : 2)
    few_tokens_integer_kernel(const __grid_constant__ CUtensorMap x_map, IntegerArgs args) {
  using S = IntegerShape<Bits, Kind, GroupSize, N>;
  extern __shared__ char dynamic_shared[];
  __shared__ uint64_t full[S::kStages];
  __shared__ uint64_t empty[S::kStages];
  char* const ring = dynamic_shared + (1024 - shared_address(dynamic_shared) % 1024) % 1024;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int part = static_cast<int>(blockIdx.y);
  const int num_parts = static_cast<int>(gridDim.y);
  // Parts begin at whole chunks of the smaller shapes, whatever the shape: the order of sums is the same for all.
  constexpr int kChunksOfUnit = kLargestChunk / S::kChunk;
  const int begin = args.num_chunks * part / num_parts * kChunksOfUnit;
  const int count = args.num_chunks * (part + 1) / num_parts * kChunksOfUnit - begin;
  init_ring(full, empty, kConsumers / 32);
  let_next_start();
  __syncthreads();

  if (warp >= kConsumers / 32) {
    if constexpr (S::kIsLarge) asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
    if (warp == kConsumers / 32) {
      // A lane a panel; panels past the last are the last again, and are not stored.
      const int first_panel = static_cast<int>(blockIdx.x) * args.output.outputs_of_tile() / kPanelLanes;
      const int behind = args.output.is_gated() && lane >= kPanels / 2
                             ? args.output.num_outputs / kPanelLanes + lane - kPanels / 2
                             : lane;
      const int64_t panel = min(first_panel + behind, static_cast<int>(args.w.panels_per_expert) - 1);
      const uint8_t* codes = args.w.codes + panel * args.w.panel_code_bytes;
      const uint8_t* scales = args.w.scales + panel * args.w.panel_scale_bytes;
      const auto load_weights = [&](int i, int s) {
        char* const stage = ring + s * S::kStageBytes + S::kTokenBytes;
        if (lane == 0) barrier_arrive_expecting(&full[s], S::kUsedBytes);
        __syncwarp();
        if (lane < kPanels) {
          const int64_t chunk = begin + i;
          copy_bytes(stage + lane * S::kCodeBytes, codes + chunk * S::kCodeBytes, S::kCodeBytes, &full[s]);
          copy_bytes(stage + kPanels * S::kCodeBytes + lane * S::kScaleBytes,
                     scales + chunk / S::kChunksOfScales * S::kScaleBytes, S::kScaleBytes, &full[s]);
        }
      };
      const auto load_tokens = [&](int i, int s) {
        if (lane < S::kBoxes) {
          copy_box(ring + s * S::kStageBytes + lane * N * 128, &x_map,
                   Coordinates2{(begin + i) * S::kChunk + lane * kBoxElements, 0}, &full[s], evict_last_policy());
        }
      };
      fill_ring(empty, count, load_weights, load_tokens);
      __syncwarp();
    }
  } else {
    if constexpr (S::kIsLarge) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    wait_for_previous();
    const int g = lane / 4;
    float sums[N / 2] = {};
    const float bias = kBias<Bits> + static_cast<float>(args.w.panel.offset);
    NumberGroup<T, Bits, Kind, GroupSize> group;
    constexpr bool kScales = ScalesSums;
    [[maybe_unused]] float group_sums[kScales ? N / 2 : 1];
    [[maybe_unused]] float scales_now[2] = {};  // of rows g and g + 8, in the group that is being multiplied
    [[maybe_unused]] float scales_next[2] = {};
    const auto load_group = [&](const uint8_t* scales, int index) {
      if constexpr (kScales) {
        const f16* const halves = reinterpret_cast<const f16*>(group.block_of(scales, index));
        scales_next[0] = to_float(halves[g]);
        scales_next[1] = to_float(halves[g + 8]);
      }
      group.load(scales, index, g, args.w.panel.offset, bias);
    };
    constexpr int kSteps = S::kTileK / 16;
    const auto make_numbers = [&](uint32_t(&a)[kSteps][4], int s, int i, int tile) {
      const char* const panels = ring + s * S::kStageBytes + S::kTokenBytes;
      const uint8_t* const scales =
          reinterpret_cast<const uint8_t*>(panels) + kPanels * S::kCodeBytes + warp * S::kScaleBytes;
      const int first_group = (begin + i) % S::kChunksOfScales * (S::kChunk / GroupSize);
      const uint4 loaded =
          *reinterpret_cast<const uint4*>(panels + warp * S::kCodeBytes + tile * kWeightTileBytes + 16 * lane);
      const uint32_t words[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int at = tile * S::kTileK + step * 16;
        if (at % GroupSize == 0) load_group(scales, first_group + at / GroupSize);
        group.template make<!kScales>(a[step], words, step);
      }
    };
    // Behind the last product of a group.
    const auto end_group = [&] {
      if constexpr (kScales) {
        hold(group_sums);
#pragma unroll
        for (int j = 0; j < N / 2; ++j) sums[j] += scales_now[j % 4 / 2] * group_sums[j];
        scales_now[0] = scales_next[0];
        scales_now[1] = scales_next[1];
      }
    };
    // The numbers of a tile are made while the products of the one before run, over the ends of chunks too; but no
    // product runs on over the end of the loop's body: ptxas would make all of them wait for one another (C7513).
    uint32_t a[2][kSteps][4];
    int s = 0;
    uint32_t parity = 0;
    barrier_wait(&full[0], 0);
    make_numbers(a[0], 0, 0, 0);
    scales_now[0] = scales_next[0];
    scales_now[1] = scales_next[1];
    const auto release = [&](int stage) {
      __syncwarp();
      if (lane == 0) barrier_arrive(&empty[stage]);
    };
    constexpr int kBodyChunks = S::kTiles == 2 ? kChunksOfUnit : 1;
    for (int first = 0; first < count; first += kBodyChunks) {
      int before = 0;  // the stage of the chunk before, in this body
#pragma unroll
      for (int c = 0; c < kBodyChunks; ++c) {
        const int i = first + c;
        const int current = s;
        const uint64_t tokens = matrix_descriptor(shared_address(ring + s * S::kStageBytes), 16, 1024);
#pragma unroll
        for (int tile = 0; tile < S::kTiles; ++tile) {
          wgmma_fence();
#pragma unroll
          for (int step = 0; step < kSteps; ++step) {
            const int at = tile * S::kTileK + step * 16;
            const uint64_t x = tokens + (at / kBoxElements * N * 128 + at % kBoxElements * 2) / 16;
            if constexpr (kScales) {
              wgmma_register_weights<T, N>(group_sums, a[tile % 2][step], x, at % GroupSize != 0);
            } else {
              wgmma_register_weights<T, N>(sums, a[tile % 2][step], x, true);
            }
          }
          wgmma_commit();
          const bool ends_chunk = tile + 1 == S::kTiles;
          const bool is_last = i + 1 == count;
          if (ends_chunk) {
            // Behind the last chunk its own first tile again, for nothing.
            if (!is_last && ++s == S::kStages) {
              s = 0;
              parity ^= 1u;
            }
            barrier_wait(&full[s], parity);
          }
          if (c > 0 || tile > 0) wgmma_wait<1>();  // who read these registers has ended
          if (c > 0 && tile == 0) release(before);
          make_numbers(a[(tile + 1) % 2], s, ends_chunk && !is_last ? i + 1 : i, ends_chunk ? 0 : tile + 1);
          const bool ends_body = ends_chunk && c + 1 == kBodyChunks;
          if (ends_body || (kScales && (tile + 1) * S::kTileK % GroupSize == 0)) {
            wgmma_wait<0>();
            end_group();
          }
        }
        before = current;
        if (c + 1 == kBodyChunks) release(current);
      }
    }
    wgmma_wait<0>();
    hold(sums);
    // The ring is free: everything that was asked for has come and been used.
    consumer_barrier();
    store_sums<N>(ring, sums);
    consumer_barrier();
    finish_tile<N, false>(args.output, ring);
  }
}

template <typename T, int Bits, ScaleKind Kind, int GroupSize, int N, bool ScalesSums = kMayScaleSums<Kind, N>>
void launch_integer(const LinearCall& call) {
  const IntegerArgs args{.output = output_of(call),
                         .w = device_weight(call.weight),
                         .num_chunks = static_cast<int>(call.weight.k / kLargestChunk)};
  const int64_t sizes[] = {call.weight.k, args.output.num_tokens};
  const int64_t strides[] = {call.x.stride(0)};
  const int32_t box[] = {kBoxElements, N};
  const CUtensorMap x_map = make_tensor_map({.dtype = call.x.dtype(),
                                             .data = const_cast<void*>(call.x.raw_data()),
                                             .sizes = sizes,
                                             .strides = strides,
                                             .box = box});
  using Shape = IntegerShape<Bits, Kind, GroupSize, N>;
  const auto kernel = few_tokens_integer_kernel<T, Bits, Kind, GroupSize, N, ScalesSums>;
  const int num_tiles = num_tiles_of(args.output);
  constexpr int kManyChunks =
      12;  // of a part: it is cut once more, for two blocks a multiprocessor (down: 41 to 36 us)
  int num_parts = choose_parts(num_tiles, args.num_chunks, kLeastChunks);
  if (call.is_strict) {
    num_parts = strict_parts_of_chunks(num_tiles, args.num_chunks);
  } else if (Shape::kIsLarge) {
    while (num_parts > 1 && num_tiles * num_parts > num_multiprocessors()) num_parts /= 2;  // all run at once
  } else if (num_parts < kMaxParts && num_tiles * num_parts <= num_multiprocessors() &&
             args.num_chunks >= kManyChunks * num_parts) {
    num_parts *= 2;
  }
  while (num_parts > 1 && num_tiles * num_parts > can_run_at_once(Shape::kIsLarge ? 1 : 2)) num_parts /= 2;
  CHECK(num_parts == 1 || has_room_for_sums(num_tiles * num_parts, N));
  const int num_blocks = num_tiles * num_parts;
  const int shared_bytes = std::max(Shape::kSharedBytes, least_shared_bytes(num_blocks));
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  launch_dependent_with_memory(call.stream, kernel,
                               dim3(static_cast<unsigned>(num_tiles), static_cast<unsigned>(num_parts)),
                               dim3(Shape::kBlockThreads), static_cast<size_t>(shared_bytes), x_map, args);
}

template <typename T, int Bits, ScaleKind Kind, int GroupSize>
void launch_integer_tile(const LinearCall& call) {
  switch (tile_of(static_cast<int>(call.x.size(0)))) {
    case 8:
      return launch_integer<T, Bits, Kind, GroupSize, 8>(call);
    case 16:
      return launch_integer<T, Bits, Kind, GroupSize, 16>(call);
    case 32:
      return launch_integer<T, Bits, Kind, GroupSize, 32>(call);
    case 64:
      return launch_integer<T, Bits, Kind, GroupSize, 64>(call);
    case 128:
      return launch_integer<T, Bits, Kind, GroupSize, 128>(call);
    default:
      return launch_integer<T, Bits, Kind, GroupSize, 256>(call);
  }
}

void few_tokens_4bit(const LinearCall& call);
void few_tokens_8bit(const LinearCall& call);
void few_tokens_int4(const LinearCall& call);
void few_tokens_int4_scaled(const LinearCall& call);  // numbers are scaled, never sums

}  // namespace quire::cuda::few

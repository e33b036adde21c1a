// The row `few_tokens_integer`: 9 to 128 tokens of bf16, weights of an integer format in the tiles of weights.h, with
// the gated activation behind where a layer wants it.
//
// Grid: x tiles of 128 outputs (8 panels; of the gated form 4 panels of `gate` and the 4 that belong to them), y parts
// of k, which are the blocks of one cluster. A warp of a block asks the copy engine for 256 k of codes and scales of
// the panels and for as many of the tokens; each of the eight others has a panel: it takes codes from shared memory
// straight into the registers of the tensor core instruction, as numbers of the activations' dtype (scale and minimum
// in float, then rounded once), and two warpgroups multiply 64 outputs each by all tokens, in float. While one tile of
// codes becomes numbers, the tensor cores multiply the one before. Weights are read once; the limit is the reading for
// few tokens, the making of numbers for many. The order of a token's sum depends on the weight's shape alone; weights
// are rounded, so that bits differ from the rows for fewer tokens.
#include <algorithm>

#include "ops/cuda/device_weight.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/linear_few_tokens.cuh"
#include "ops/cuda/linear_few_tokens.h"
#include "ops/cuda/linear_skinny.cuh"
#include "ops/cuda/tensor_map.h"
#include "ops/cuda/wgmma_register_weights.cuh"

namespace quire::cuda {

namespace {

using namespace few;

constexpr int kMinTokens = 9;
constexpr int kMaxTokens = 128;
constexpr int kPanels = kRows / kPanelLanes;  // of a tile
constexpr int kChunk = 256;                   // k of a stage
constexpr int kBoxElements = 64;              // 128 bytes of k
constexpr int kBoxes = kChunk / kBoxElements;
constexpr int kRingBytes = 110 * 1024;       // two blocks a multiprocessor
constexpr int kLargeRingBytes = 200 * 1024;  // one

constexpr int scale_bytes_of_chunk(ScaleKind kind, int group_size) {
  if (kind == ScaleKind::kHalf || kind == ScaleKind::kHalfAndMin) {
    return kChunk / group_size * (kind == ScaleKind::kHalf ? 32 : 64);
  }
  if (kind == ScaleKind::kSuperSigned) return 32 + kChunk / group_size * 16;
  return 64 + 256;
}

template <int Bits, ScaleKind Kind, int GroupSize, int N>
struct Shape {
  static constexpr int kTileK = Bits == 4 ? 64 : 32;
  static constexpr int kTiles = kChunk / kTileK;
  static constexpr int kCodeBytes = kTiles * kWeightTileBytes;  // of a panel
  static constexpr int kScaleBytes = scale_bytes_of_chunk(Kind, GroupSize);
  static constexpr int kTokenBytes = kBoxes * N * 128;
  static constexpr int kUsedBytes = kTokenBytes + kPanels * (kCodeBytes + kScaleBytes);
  static constexpr int kStageBytes = (kUsedBytes + 1023) / 1024 * 1024;  // boxes lie at multiples of the swizzle
  static constexpr bool kIsLarge = kStageBytes > kRingBytes / 2;
  static constexpr int kStages = std::min(6, (kIsLarge ? kLargeRingBytes : kRingBytes) / kStageBytes);
  static constexpr int kSharedBytes = std::max(kStages * kStageBytes, N* kSumStride * 4) + 1024;
};

struct Args {
  Output output;
  DeviceWeight w;
  int num_chunks;
};

// What a code is more than its value while its bits stand in a float: 0x4300 | code in the upper half is 128 + code,
// and 0x47000000 | code << 8 is 2^15 + code.
template <int Bits>
constexpr float kBias = Bits == 4 ? 128.0f : 32768.0f;

// Numbers of one step of 16 k: register p has row g + 8 (p % 2). `scales` have the bias in the minimum.
template <int Bits>
__device__ __forceinline__ void make_numbers(uint32_t (&a)[4], uint32_t low, uint32_t high,
                                             const ScaleAndMin (&scales)[2]) {
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
    const ScaleAndMin& scale = scales[p % 2];
    a[p] = pack_pair<bf16>(fmaf(first, scale.scale, scale.min), fmaf(second, scale.scale, scale.min));
  }
}

template <int Bits, ScaleKind Kind, int GroupSize, int N>
__global__ void __launch_bounds__(kThreads, Shape<Bits, Kind, GroupSize, N>::kIsLarge ? 1 : 2)
    few_tokens_integer_kernel(const __grid_constant__ CUtensorMap x_map, Args args) {
  using S = Shape<Bits, Kind, GroupSize, N>;
  extern __shared__ char dynamic_shared[];
  __shared__ uint64_t full[S::kStages];
  __shared__ uint64_t empty[S::kStages];
  char* const ring = dynamic_shared + (1024 - shared_address(dynamic_shared) % 1024) % 1024;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int part = static_cast<int>(blockIdx.y);
  const int num_parts = static_cast<int>(gridDim.y);
  const int begin = args.num_chunks * part / num_parts;
  const int count = args.num_chunks * (part + 1) / num_parts - begin;
  if (threadIdx.x == 0) {
    for (int s = 0; s < S::kStages; ++s) {
      barrier_init(&full[s], 1);
      barrier_init(&empty[s], kConsumers / 32);
    }
    fence_async_proxy();
  }
  let_next_start();
  __syncthreads();

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
        copy_bytes(stage + kPanels * S::kCodeBytes + lane * S::kScaleBytes, scales + chunk * S::kScaleBytes,
                   S::kScaleBytes, &full[s]);
      }
    };
    const auto load_tokens = [&](int i, int s) {
      if (lane < kBoxes) {
        copy_box(ring + s * S::kStageBytes + lane * N * 128, &x_map,
                 Coordinates2{(begin + i) * kChunk + lane * kBoxElements, 0}, &full[s], evict_last_policy());
      }
    };
    const int num_first = min(S::kStages, count);
    for (int i = 0; i < num_first; ++i) load_weights(i, i);
    wait_for_previous();
    for (int i = 0; i < num_first; ++i) load_tokens(i, i);
    int s = 0;
    uint32_t parity = 0;
    for (int i = num_first; i < count; ++i) {
      barrier_wait(&empty[s], parity);
      load_weights(i, s);
      load_tokens(i, s);
      if (++s == S::kStages) {
        s = 0;
        parity ^= 1u;
      }
    }
    __syncwarp();
  } else {
    wait_for_previous();
    const int g = lane / 4;
    float sums[N / 2] = {};
    const float bias = kBias<Bits> + static_cast<float>(args.w.panel.offset);
    int s = 0;
    uint32_t parity = 0;
    for (int i = 0; i < count; ++i) {
      const char* const stage = ring + s * S::kStageBytes;
      const uint32_t tokens = shared_address(stage);
      const char* const codes = stage + S::kTokenBytes + warp * S::kCodeBytes + 16 * lane;
      const uint8_t* const scales =
          reinterpret_cast<const uint8_t*>(stage) + S::kTokenBytes + kPanels * S::kCodeBytes + warp * S::kScaleBytes;
      barrier_wait(&full[s], parity);
      constexpr int kSteps = S::kTileK / 16;
      uint32_t a[2][kSteps][4];
#pragma unroll
      for (int tile = 0; tile < S::kTiles; ++tile) {
        const uint4 loaded = *reinterpret_cast<const uint4*>(codes + tile * kWeightTileBytes);
        const uint32_t words[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
        if (tile >= 2) wgmma_wait<1>();  // who read these registers has ended
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          const int group = (tile * S::kTileK + step * 16) / GroupSize;
          ScaleAndMin of_rows[2];
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint8_t* block = scales;
            if constexpr (Kind == ScaleKind::kHalf || Kind == ScaleKind::kHalfAndMin) {
              block += group * (Kind == ScaleKind::kHalf ? 32 : 64);
            }
            of_rows[half] = decode_scale<Kind>(load_raw_scale<Kind>(block, g + 8 * half, group));
            of_rows[half].min -= bias * of_rows[half].scale;
          }
          if constexpr (Bits == 4) {
            make_numbers<4>(a[tile % 2][step], words[step], 0, of_rows);
          } else {
            make_numbers<8>(a[tile % 2][step], words[2 * step], words[2 * step + 1], of_rows);
          }
        }
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          const int at = tile * S::kTileK + step * 16;
          const uint32_t x = tokens + static_cast<uint32_t>(at / kBoxElements * N * 128 + at % kBoxElements * 2);
          wgmma_register_weights<N>(sums, a[tile % 2][step], matrix_descriptor(x, 16, 1024));
        }
        wgmma_commit();
      }
      wgmma_wait<0>();
      hold(sums);
      __syncwarp();
      if (lane == 0) barrier_arrive(&empty[s]);
      if (++s == S::kStages) {
        s = 0;
        parity ^= 1u;
      }
    }
    // The ring is free: everything that was asked for has come and been used.
    asm volatile("bar.sync 1, 256;" ::: "memory");
    store_sums<N>(ring, sums);
  }

  finish_tile<false>(args.output, ring);
}

template <int Bits, ScaleKind Kind, int GroupSize, int N>
void launch(const LinearCall& call, const Args& args) {
  const int64_t sizes[] = {call.weight.k, args.output.num_tokens};
  const int64_t strides[] = {call.x.stride(0)};
  const int32_t box[] = {kBoxElements, N};
  const CUtensorMap x_map = make_tensor_map({.dtype = call.x.dtype(),
                                             .data = const_cast<void*>(call.x.raw_data()),
                                             .sizes = sizes,
                                             .strides = strides,
                                             .box = box});
  constexpr int kSharedBytes = Shape<Bits, Kind, GroupSize, N>::kSharedBytes;
  const auto kernel = few_tokens_integer_kernel<Bits, Kind, GroupSize, N>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  const int num_tiles = num_tiles_of(args.output);
  constexpr int kLeastChunks = 2;
  constexpr int kManyChunks =
      12;  // of a part: it is cut once more, for two blocks a multiprocessor (down: 41 to 36 us)
  int num_parts = choose_parts(num_tiles, args.num_chunks, kLeastChunks);
  if (num_parts < kMaxParts && num_tiles * num_parts <= num_multiprocessors() &&
      args.num_chunks >= kManyChunks * num_parts) {
    num_parts *= 2;
  }
  launch_cluster(call.stream, kernel, dim3(static_cast<unsigned>(num_tiles), static_cast<unsigned>(num_parts)),
                 dim3(kThreads), dim3(1, static_cast<unsigned>(num_parts)), kSharedBytes, x_map, args);
}

template <int Bits, ScaleKind Kind, int GroupSize>
void launch_any(const LinearCall& call, const Args& args) {
  const int tile = std::max(16, tile_of(args.output.num_tokens));
  if (tile == 16) return launch<Bits, Kind, GroupSize, 16>(call, args);
  if (tile == 32) return launch<Bits, Kind, GroupSize, 32>(call, args);
  if (tile == 64) return launch<Bits, Kind, GroupSize, 64>(call, args);
  return launch<Bits, Kind, GroupSize, 128>(call, args);
}

}  // namespace

bool accepts_few_tokens_integer(const LinearCall& call) {
  const Weight& weight = call.weight;
  const int64_t num_tokens = call.x.size(0);
  if (call.x.dtype() != DType::kBF16 || num_tokens < kMinTokens || num_tokens > kMaxTokens || call.offsets.is_given() ||
      weight.num_experts != 1 || weight.layout != Layout::kCudaPlanes || call.norm.weight.is_given()) {
    return false;
  }
  const FormatId format = weight.format;
  return (format == FormatId::kQ4_0 || format == FormatId::kQ4_K || format == FormatId::kQ8_0 ||
          format == FormatId::kQ6_K) &&
         weight.k % kChunk == 0 && weight.n % 8 == 0 && weight.n < (1 << 24) && weight.k < (1 << 24) &&
         is_call_aligned(call);
}

bool accepts_gated_few_tokens_integer(const LinearCall& call) {
  // Panels of `gate` end where those of `up` begin.
  return accepts_few_tokens_integer(call) && call.weight.n % (2 * kPanelLanes) == 0 && call.y.dtype() == call.x.dtype();
}

void linear_few_tokens_integer(const LinearCall& call) {
  const Args args{.output = output_of(call),
                  .w = device_weight(call.weight),
                  .num_chunks = static_cast<int>(call.weight.k / kChunk)};
  switch (call.weight.format) {
    case FormatId::kQ4_0:
      return launch_any<4, ScaleKind::kHalf, 32>(call, args);
    case FormatId::kQ4_K:
      return launch_any<4, ScaleKind::kSuperBytes, 32>(call, args);
    case FormatId::kQ8_0:
      return launch_any<8, ScaleKind::kHalf, 32>(call, args);
    default:
      return launch_any<8, ScaleKind::kSuperSigned, 16>(call, args);
  }
}

}  // namespace quire::cuda

// Integer weights as the numbers that few_tokens_integer multiplies (linear_few_tokens_integer.cuh), in rows. A warp
// has a tile of codes at a time, 512 bytes, and stores what each thread would have in the registers of its products.
// The limit is the writing.
#include "ops/cuda/linear_few_tokens_integer.cuh"
#include "ops/cuda/linear_many_tokens.h"

namespace quire::cuda {

namespace {

using namespace few;

constexpr int kWarps = 8;

struct Args {
  uint32_t* out;  // pairs
  DeviceWeight w;
  int64_t first_row;
  int64_t num_rows;
};

// Grid: x panels, y chunks of 256 k in turns of kWarps tiles.
template <typename T, int Bits, ScaleKind Kind, int GroupSize>
__global__ void __launch_bounds__(32 * kWarps) numbers_kernel(Args args) {
  using S = IntegerShape<Bits, Kind, GroupSize, 8>;  // its chunks have 256 k
  static_assert(S::kChunk == kLargestChunk);
  constexpr int kSteps = S::kTileK / 16;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const DeviceWeight& w = args.w;
  const int64_t num_tiles = w.k / S::kTileK;
  const int64_t tile = int64_t{blockIdx.y} * kWarps + warp;
  let_next_start();
  wait_for_previous();
  if (tile >= num_tiles) return;
  const int64_t panel = args.first_row / kPanelLanes + blockIdx.x;
  const int64_t chunk = tile / S::kTiles;
  const int tile_of_chunk = static_cast<int>(tile % S::kTiles);
  const uint8_t* const scales = w.scales + panel * w.panel_scale_bytes + chunk * S::kScaleBytes;
  const uint4 loaded = load_once(w.codes + panel * w.panel_code_bytes + tile * kWeightTileBytes + 16 * lane);
  const uint32_t words[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
  NumberGroup<T, Bits, Kind, GroupSize> group;
  const float bias = kBias<Bits> + static_cast<float>(w.panel.offset);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int at = tile_of_chunk * S::kTileK + step * 16;
    if (step == 0 || at % GroupSize == 0) group.load(scales, at / GroupSize, g, w.panel.offset, bias);
    uint32_t a[4];
    group.template make<true>(a, words, step);
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const int64_t row = (panel * kPanelLanes + g + 8 * (p % 2)) - args.first_row;
      const int64_t k = chunk * kLargestChunk + at + 2 * (lane % 4) + 8 * (p / 2);
      if (row < args.num_rows) args.out[(row * w.k + k) / 2] = a[p];
    }
  }
}

template <typename T, int Bits, ScaleKind Kind, int GroupSize>
void launch(cudaStream_t stream, const Weight& weight, const NumberRows& rows) {
  const Args args{.out = static_cast<uint32_t*>(rows.out),
                  .w = device_weight(weight),
                  .first_row = rows.first_row,
                  .num_rows = rows.num_rows};
  constexpr int kTileK = IntegerShape<Bits, Kind, GroupSize, 8>::kTileK;
  const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(rows.num_rows, kPanelLanes)),
                  static_cast<unsigned>(ceil_div<int64_t>(weight.k / kTileK, kWarps)));
  launch_dependent(stream, numbers_kernel<T, Bits, Kind, GroupSize>, grid, dim3(32 * kWarps), args);
}

}  // namespace

void write_numbers(cudaStream_t stream, const Weight& weight, const NumberRows& rows) {
  CHECK(rows.first_row % kPanelLanes == 0);
  if (rows.dtype == DType::kF16) {
    CHECK(weight.format == FormatId::kInt4G128);
    return launch<f16, 4, ScaleKind::kHalfAndZero, 128>(stream, weight, rows);
  }
  CHECK(rows.dtype == DType::kBF16);
  switch (weight.format) {
    case FormatId::kInt4G128:
      return launch<bf16, 4, ScaleKind::kHalfAndZero, 128>(stream, weight, rows);
    case FormatId::kQ4_0:
      return launch<bf16, 4, ScaleKind::kHalf, 32>(stream, weight, rows);
    case FormatId::kQ4_K:
      return launch<bf16, 4, ScaleKind::kSuperBytes, 32>(stream, weight, rows);
    case FormatId::kQ8_0:
      return launch<bf16, 8, ScaleKind::kHalf, 32>(stream, weight, rows);
    default:
      CHECK(weight.format == FormatId::kQ6_K);
      return launch<bf16, 8, ScaleKind::kSuperSigned, 16>(stream, weight, rows);
  }
}

}  // namespace quire::cuda

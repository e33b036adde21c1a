// Integer weights as the numbers that few_tokens_integer multiplies (linear_few_tokens_integer.cuh), in rows. A warp
// has a tile of codes at a time, 512 bytes, and stores what each thread would have in the registers of its products.
// The limit is the writing.
#include "ops/cuda/lanes.cuh"
#include "ops/cuda/linear_few_tokens_integer.cuh"
#include "ops/cuda/linear_many_tokens.h"

namespace quire::cuda {

namespace {

using namespace few;

constexpr int kWarps = 8;
constexpr int kStretch = 64;  // of k: a warp's

struct Args {
  uint16_t* out;
  DeviceWeight w;
  int64_t first_row;
  int64_t num_rows;
};

// Grid: x panels, y stretches of 64 k in turns of kWarps.
template <typename T, int Bits, ScaleKind Kind, int GroupSize>
__global__ void __launch_bounds__(32 * kWarps) numbers_kernel(Args args) {
  using S = IntegerShape<Bits, Kind, GroupSize, 8>;  // its chunks have 256 k
  static_assert(S::kChunk == kLargestChunk);
  constexpr int kStepsOfTile = S::kTileK / 16;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const DeviceWeight& w = args.w;
  const int64_t first_k = (int64_t{blockIdx.y} * kWarps + warp) * kStretch;
  let_next_start();
  wait_for_previous();
  if (first_k >= w.k) return;
  const int64_t panel = args.first_row / kPanelLanes + blockIdx.x;
  const uint8_t* const codes =
      w.codes + panel * w.panel_code_bytes + first_k / S::kTileK * kWeightTileBytes + 16 * lane;
  const uint8_t* const scales = w.scales + panel * w.panel_scale_bytes + first_k / kLargestChunk * S::kScaleBytes;
  const float bias = kBias<Bits> + static_cast<float>(w.panel.offset);
  uint32_t a[4][4];  // [step of 16 k][register]
  NumberGroup<T, Bits, Kind, GroupSize> group;
#pragma unroll
  for (int tile = 0; tile < kStretch / S::kTileK; ++tile) {
    const uint4 loaded = load_once(codes + tile * kWeightTileBytes);
    const uint32_t words[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
    for (int step = 0; step < kStepsOfTile; ++step) {
      const int in_stretch = tile * S::kTileK + step * 16;
      const int in_chunk = static_cast<int>(first_k % kLargestChunk) + in_stretch;
      if (in_stretch == 0 || in_stretch % GroupSize == 0) {
        group.load(scales, in_chunk / GroupSize, g, w.panel.offset, bias);
      }
      group.template make<true>(a[in_stretch / 16], words, step);
    }
  }
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    // Four lanes have a row; each gets what all of them have of one step: eight neighbours in k.
    uint32_t own[4] = {a[0][p], a[1][p], a[2][p], a[3][p]};
    const uint4 whole = transpose_in_four(own, t);
    const int64_t row = panel * kPanelLanes + g + 8 * (p % 2) - args.first_row;
    if (row < args.num_rows) {
      *reinterpret_cast<uint4*>(args.out + row * w.k + first_k + 16 * t + 8 * (p / 2)) = whole;
    }
  }
}

template <typename T, int Bits, ScaleKind Kind, int GroupSize>
void launch(cudaStream_t stream, const Weight& weight, const NumberRows& rows) {
  const Args args{.out = static_cast<uint16_t*>(rows.out),
                  .w = device_weight(weight),
                  .first_row = rows.first_row,
                  .num_rows = rows.num_rows};
  const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(rows.num_rows, kPanelLanes)),
                  static_cast<unsigned>(ceil_div<int64_t>(weight.k / kStretch, kWarps)));
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

// Prefill attention over a cache of e4m3 or int8 codes: those of K and V become f16, which holds them exactly, once for
// all query heads and tiles of queries, in memory of the plan; the kernel of attention_prefill.cu then reads them as it
// reads pages. Scales become floats, in the order in which its consumers want them. Included by its parts alone.
#pragma once

#include "ops/cuda/attention_prefill_tiles.cuh"

namespace quire::cuda::prefill {

// Memory: K of [tile][KV head of the launch][128 keys][D], V of the same, then scales [tile][KV head][K, V][160].
__device__ __forceinline__ int64_t converted_scales_at(int tile, int kv_head, const Args& args, bool is_v) {
  const int num_kv_heads = args.num_unit_heads / args.group_size;
  return ((int64_t{tile} * num_kv_heads + kv_head) * 2 + (is_v ? 1 : 0)) * kConvertedScales;
}

struct ConvertArgs {
  const char* k;
  const char* v;
  const uint16_t* k_scales;
  const uint16_t* v_scales;
  int64_t page_bytes;
  int64_t head_bytes;
  int64_t token_bytes;
  int64_t scale_page_stride;
  int page_size;
  int head_dim;
  int first_kv_head;
  const int32_t* page_table;
  int64_t page_table_stride;
  const PrefillSequence* sequences;
  char* converted_k;
  char* converted_v;
  float* converted_scales;
};

// Grid: (tile of 128 keys, KV head of the launch, sequence), in blocks of 256 threads. What no query sees may hold
// anything but for the scales, which are zero.
template <int D, bool IsI8>
__global__ void __launch_bounds__(256) convert_kernel(ConvertArgs args) {
  using S = Shape<D, true>;
  const PrefillSequence sequence = args.sequences[blockIdx.z];
  if (static_cast<int>(blockIdx.x) >= sequence.num_tiles) return;
  const int tile = sequence.first_tile + static_cast<int>(blockIdx.x);
  const int64_t place = int64_t{sequence.first_converted + static_cast<int>(blockIdx.x)} * gridDim.y + blockIdx.y;
  const int64_t head = args.first_kv_head + static_cast<int>(blockIdx.y);
  const int32_t* const pages = args.page_table + sequence.sequence * args.page_table_stride;
  const int first_key = tile * kConvertedKeys;
  const auto is_seen = [&](int key) { return sequence.first_key <= key && key < sequence.end_key; };
  constexpr int kParts = D / 16;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kConvertedKeys * kParts; i += 256) {
    const int which = i / (kConvertedKeys * kParts);
    const int row = i / kParts % kConvertedKeys;
    const int part = i % kParts;
    const int key = first_key + row;
    if (!is_seen(key)) continue;
    uint4 x = {0, 0, 0, 0};
    if (part * 16 < args.head_dim) {
      const char* source = (which == 0 ? args.k : args.v) + pages[key / args.page_size] * args.page_bytes +
                           head * args.head_bytes + key % args.page_size * args.token_bytes + part * 16;
      x = *reinterpret_cast<const uint4*>(source);
    }
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
    uint32_t pairs[8];
#pragma unroll
    for (int p = 0; p < 8; ++p) {
      const uint32_t pair = words[p / 2] >> (p % 2 * 16);
      pairs[p] = IsI8 ? unpack_i8_pair(pair) : unpack_f8_pair(pair);
    }
    uint4* const target = reinterpret_cast<uint4*>((which == 0 ? args.converted_k : args.converted_v) +
                                                   (place * kConvertedKeys + row) * D * 2 + part * 32);
    target[0] = {pairs[0], pairs[1], pairs[2], pairs[3]};
    target[1] = {pairs[4], pairs[5], pairs[6], pairs[7]};
  }
  const int which = static_cast<int>(threadIdx.x) / kConvertedKeys;
  const int row = static_cast<int>(threadIdx.x) % kConvertedKeys;
  const int key = first_key + row;
  float scale = 0;
  if (is_seen(key)) {
    const int64_t at =
        pages[key / args.page_size] * args.scale_page_stride + head * args.page_size + key % args.page_size;
    scale = __uint_as_float(static_cast<uint32_t>((which == 0 ? args.k_scales : args.v_scales)[at]) << 16);
    if (which == 1) {
      scale *= kValueBoost;
      if (scale > kLargestF16) scale = kLargestF16;  // NaN stays
    }
  }
  const int column = row % S::kKeys;
  args.converted_scales[(place * 2 + which) * kConvertedScales + row / S::kKeys * (S::kScaleBytes / 4) +
                        column % 8 / 2 * S::kScaleStride + column / 8 * 2 + column % 2] = scale;
}

}  // namespace quire::cuda::prefill

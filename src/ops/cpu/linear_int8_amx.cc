// The int8 kernels of linear layers for AMX: one instruction multiplies a group of k of 16 tokens with those of 16
// outputs, exactly. What is left, a float multiplication and an addition (two with minima) a token and group, takes
// longer than the tiles do, so that of panels with unpacked weights each is read again for every 16 tokens, from the
// first-level cache. Tokens have the codes of 32 k side by side, a row of a tile.
#include <immintrin.h>

#include <utility>

#include "ops/cpu/codes_avx512.h"
#include "ops/cpu/linear_int8_impl.h"

namespace quire::cpu {
namespace {

using Impl = Int8Impl<Avx512Codes>;

// What LDTILECFG reads.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles 0 and 1: sums; 2 and 3: activations; 4 and 5: weights.
constexpr TileConfig make_config(int num_tokens, int group_size) {
  TileConfig config;
  for (int i = 0; i < 2; ++i) {
    config.rows[i] = config.rows[2 + i] = static_cast<uint8_t>(num_tokens);
    config.row_bytes[i] = config.row_bytes[4 + i] = 64;
    config.row_bytes[2 + i] = static_cast<uint16_t>(group_size);
    config.rows[4 + i] = static_cast<uint8_t>(group_size / 4);
  }
  return config;
}

template <int kTokens, int kGroupSize>
constexpr TileConfig kConfig = make_config(kTokens, kGroupSize);

// sums[token][output] of one group. Two sets of tiles take turns; their numbers have to be written out.
template <int kSet>
[[gnu::always_inline]] inline void multiply_group(const int8_t* x, const uint8_t* weights, int32_t* sums) {
  if constexpr (kSet == 0) {
    _tile_loadd(2, x, kTileK);
    _tile_loadd(4, weights, 64);
    _tile_zero(0);
    _tile_dpbssd(0, 2, 4);
    _tile_stored(0, sums, 64);
  } else {
    _tile_loadd(3, x, kTileK);
    _tile_loadd(5, weights, 64);
    _tile_zero(1);
    _tile_dpbssd(1, 3, 5);
    _tile_stored(1, sums, 64);
  }
}

template <int kTokens, int kGroupSize, bool kHasMin>
void multiply_tile(const UnpackedPanels& panel, int64_t k, const Int8Tile& x, float* out, int64_t out_stride) {
  // Groups whose sums lie in memory at once: tiles work on the next ones while these become floats.
  constexpr int kBatch = 4;
  constexpr int kGroupsPerBlock = kTileK / kGroupSize;
  alignas(64) int32_t sums[kBatch][kTokens * kPanelLanes];
  __m512 acc[kTokens];
  unroll<kTokens>([&](auto t) __attribute__((always_inline)) { acc[t] = _mm512_setzero_ps(); });
  const int64_t num_groups = k / kGroupSize;
  _tile_loadconfig(&kConfig<kTokens, kGroupSize>);
  for (int64_t first = 0; first < num_groups; first += kBatch) {
    unroll<kBatch>([&](auto i) __attribute__((always_inline)) {
      const int64_t group = first + i;
      if (group >= num_groups) return;
      multiply_group<decltype(i)::value % 2>(
          x.codes + group / kGroupsPerBlock * kTokens * kTileK + group % kGroupsPerBlock * kGroupSize,
          panel.codes + group * kGroupSize * kPanelLanes, sums[i]);
    });
    const int64_t end = num_groups - first < kBatch ? num_groups : first + kBatch;
    for (int64_t group = first; group < end; ++group) {
      const int32_t* group_sums = sums[group - first];
      const float* d = x.scales + group / kGroupsPerBlock * kTokens;
      const __m512 scale = _mm512_loadu_ps(panel.scales + group * kPanelLanes);
      unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
        const __m512 dot = _mm512_cvtepi32_ps(_mm512_load_si512(group_sums + t * kPanelLanes));
        acc[t] = _mm512_fmadd_ps(dot, _mm512_mul_ps(scale, _mm512_set1_ps(d[t])), acc[t]);
      });
      if constexpr (kHasMin) {
        const __m512 min = _mm512_loadu_ps(panel.mins + group * kPanelLanes);
        unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
          acc[t] = _mm512_fmadd_ps(min, _mm512_set1_ps(x.sums[group * kTokens + t]), acc[t]);
        });
      }
    }
  }
  // The system need not save tiles that are released.
  _tile_release();
  unroll<kTokens>([&](auto t) __attribute__((always_inline)) { _mm512_storeu_ps(out + t * out_stride, acc[t]); });
}

template <FormatId kFormat, int... kTiles>
constexpr Int8Kernels::Format make_format(std::integer_sequence<int, kTiles...>) {
  constexpr PanelFormat kPanel = panel_format(kFormat);
  Int8Kernels::Format format{};
  format.unpack = Impl::Kernel<kFormat>::template unpack<true>;
  ((format.multiply_tile[0][kTiles] = multiply_tile<kTiles, kPanel.group_size, kPanel.has_min()>), ...);
  return format;
}

template <FormatId... kFormats>
constexpr Int8Kernels make_kernels(FormatList<kFormats...>) {
  Int8Kernels kernels{};
  kernels.finish = LinearFinish<Avx512Lanes>::finish;
  kernels.quantize = Impl::quantize<Impl::CodeOrder::kRows>;
  ((kernels.formats[static_cast<int>(kFormats)] = make_format<kFormats>(std::integer_sequence<int, 1, 2, 4, 8, 16>{})),
   ...);
  return kernels;
}

}  // namespace

const Int8Kernels kAmxInt8Kernels = make_kernels(AllInt8Formats{});

}  // namespace quire::cpu

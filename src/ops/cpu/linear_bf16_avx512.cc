// The kernels of linear_kernels.h's "bf16_pairs" order by the dot products of AVX512_BF16: a load of 16 outputs' pairs
// serves a tile of tokens. With one panel each token costs a broadcast beside its dot product, and processors that load
// 64 bytes a cycle are held up by that (Zen 4: 85 % of the multiplier with 24 tokens); two panels share the broadcasts
// (92 % with 12).
#include <immintrin.h>

#include <utility>

#include "ops/cpu/lanes_avx512.h"
#include "ops/cpu/linear_finish_impl.h"
#include "ops/cpu/linear_kernels.h"
#include "ops/cpu/packed_panel.h"

namespace quire::cpu {
namespace {

constexpr int64_t kBlockK = 2 * kPairsPerBlock;

void round_row(const float* x, int64_t k, uint32_t* out, int64_t block_stride) {
  for (int64_t begin = 0; begin < k; begin += kBlockK) {
    const int left = static_cast<int>(k - begin < kBlockK ? k - begin : kBlockK);
    const __m512 first = Avx512Lanes::load(x + begin, left).v;
    const __m512 second = left > 16 ? Avx512Lanes::load(x + begin + 16, left - 16).v : _mm512_setzero_ps();
    _mm512_storeu_si512(out, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)));
    out += block_stride;
  }
}

template <int kPanels, int kTokens>
void multiply(const PackedPanels& panel, const uint32_t* x, float* out, int64_t out_stride) {
  __m512 acc[kPanels * kTokens];
  unroll<kPanels * kTokens>([&](auto i) __attribute__((always_inline)) { acc[i] = _mm512_setzero_ps(); });
  const uint8_t* weights = panel.codes;
  const uint8_t* ahead = panel.ahead;
  int64_t pairs_left = (panel.k + 1) / 2;
  while (pairs_left > 0) {
    for (const uint8_t* end = ahead + panel.ahead_step; ahead != end; ahead += 64) Avx512Lanes::prefetch(ahead);
    const int64_t num_pairs = pairs_left < kPairsPerBlock ? pairs_left : kPairsPerBlock;
    for (int64_t j = 0; j < num_pairs; ++j) {
      __m512i w[kPanels];
      unroll<kPanels>([&](auto p) __attribute__((always_inline)) {
        w[p] = _mm512_loadu_si512(weights + p * panel.codes_stride);
      });
      unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
        const __m512i pair = _mm512_set1_epi32(static_cast<int>(x[t * kPairsPerBlock + j]));
        unroll<kPanels>([&](auto p) __attribute__((always_inline)) {
          __m512& sum = acc[p * kTokens + t];
          sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(w[p]), reinterpret_cast<__m512bh>(pair));
        });
      });
      weights += 64;
    }
    x += kTokens * kPairsPerBlock;
    pairs_left -= num_pairs;
  }
  unroll<kPanels * kTokens>([&](auto i) __attribute__((always_inline)) {
    _mm512_storeu_ps(out + i % kTokens * out_stride + i / kTokens * kPanelLanes, acc[i]);
  });
}

template <int... kFew, int... kTiles>
constexpr BF16Kernels make_kernels(std::integer_sequence<int, kFew...>, std::integer_sequence<int, kTiles...>) {
  BF16Kernels kernels{};
  kernels.finish = LinearFinish<Avx512Lanes>::finish;
  kernels.round_row = round_row;
  ((kernels.multiply[kFew] = multiply<1, kFew>), ...);
  ((kernels.multiply_two[kTiles] = multiply<2, kTiles>), ...);
  return kernels;
}

}  // namespace

const BF16Kernels kAvx512BF16Kernels =
    make_kernels(std::integer_sequence<int, 1, 2, 4, 8, 12, 16, 24>{}, std::integer_sequence<int, 1, 2, 4, 8, 12>{});

}  // namespace quire::cpu

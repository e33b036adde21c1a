// The kernels of linear_kernels.h's "bf16_pairs" order by the dot products of AVX512_BF16: a load of 16 outputs' pairs
// serves a tile of tokens, each of which costs one instruction with a broadcast from memory. With 24 tokens the
// multiplier is busy nearly always; with few of them memory is the limit.
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

template <int kTokens>
void multiply(const PackedPanels& panel, const uint32_t* x, float* out, int64_t out_stride) {
  __m512 acc[kTokens];
  unroll<kTokens>([&](auto t) __attribute__((always_inline)) { acc[t] = _mm512_setzero_ps(); });
  const uint8_t* weights = panel.codes;
  const uint8_t* ahead = panel.ahead;
  int64_t pairs_left = (panel.k + 1) / 2;
  while (pairs_left > 0) {
    for (const uint8_t* end = ahead + panel.ahead_step; ahead != end; ahead += 64) Avx512Lanes::prefetch(ahead);
    const int64_t num_pairs = pairs_left < kPairsPerBlock ? pairs_left : kPairsPerBlock;
    for (int64_t j = 0; j < num_pairs; ++j) {
      const __m512bh w = reinterpret_cast<__m512bh>(_mm512_loadu_si512(weights));
      unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
        const __m512i pair = _mm512_set1_epi32(static_cast<int>(x[t * kPairsPerBlock + j]));
        acc[t] = _mm512_dpbf16_ps(acc[t], w, reinterpret_cast<__m512bh>(pair));
      });
      weights += 64;
    }
    x += kTokens * kPairsPerBlock;
    pairs_left -= num_pairs;
  }
  unroll<kTokens>([&](auto t) __attribute__((always_inline)) { _mm512_storeu_ps(out + t * out_stride, acc[t]); });
}

template <int... kTokens>
constexpr BF16Kernels make_kernels(std::integer_sequence<int, kTokens...>) {
  BF16Kernels kernels{};
  kernels.finish = LinearFinish<Avx512Lanes>::finish;
  kernels.round_row = round_row;
  ((kernels.multiply[kTokens] = multiply<kTokens>), ...);
  return kernels;
}

}  // namespace

const BF16Kernels kAvx512BF16Kernels = make_kernels(std::integer_sequence<int, 1, 2, 4, 8, 12, 16, 24>{});

}  // namespace quire::cpu

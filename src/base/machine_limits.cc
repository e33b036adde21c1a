#include "base/machine_limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace quire {

namespace {

constexpr int kChains = 12;        // independent sums: more than latency times units
constexpr int64_t kSteps = 20000;  // of every chain, in one piece of work
constexpr int64_t kPieces = 64;

#if defined(__x86_64__)

// Each returns something that depends on all it did. Operations a call: kChains * kSteps * lanes.
[[gnu::target("avx512f,avx512vnni")]] int64_t spin_int8_avx512() {
  __m512i sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_epi32(i);
  __m512i x = _mm512_set1_epi8(3);
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int i = 0; i < kChains; ++i) sums[i] = _mm512_dpbusd_epi32(sums[i], x, x);
    __asm__ volatile("" : "+v"(x));
  }
  int64_t total = 0;
  for (const __m512i& sum : sums) total += _mm512_reduce_add_epi32(sum);
  return total;
}

[[gnu::target("avx2")]] int64_t spin_int8_avx2() {
  __m256i sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm256_set1_epi16(static_cast<int16_t>(i));
  __m256i x = _mm256_set1_epi8(1);
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int i = 0; i < kChains; ++i) sums[i] = _mm256_add_epi16(sums[i], _mm256_maddubs_epi16(x, sums[i]));
    __asm__ volatile("" : "+x"(x));
  }
  int64_t total = 0;
  for (const __m256i& sum : sums) total += _mm256_extract_epi32(sum, 0);
  return total;
}

[[gnu::target("avx512f")]] int64_t spin_f32_avx512() {
  __m512 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  __m512 x = _mm512_set1_ps(0.999f);
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int i = 0; i < kChains; ++i) sums[i] = _mm512_fmadd_ps(sums[i], x, x);
    __asm__ volatile("" : "+v"(x));
  }
  float total = 0;
  for (const __m512& sum : sums) total += _mm512_reduce_add_ps(sum);
  return static_cast<int64_t>(total);
}

[[gnu::target("avx512f,avx512bw,avx512bf16")]] int64_t spin_bf16_avx512() {
  __m512 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  __m512i x = _mm512_set1_epi16(0x3f7f);
  for (int64_t step = 0; step < kSteps; ++step) {
    const __m512bh pairs = reinterpret_cast<__m512bh>(x);
    for (int i = 0; i < kChains; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], pairs, pairs);
    __asm__ volatile("" : "+v"(x));
  }
  float total = 0;
  for (const __m512& sum : sums) total += _mm512_reduce_add_ps(sum);
  return static_cast<int64_t>(total);
}

[[gnu::target("avx2,fma")]] int64_t spin_f32_avx2() {
  __m256 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm256_set1_ps(static_cast<float>(i));
  __m256 x = _mm256_set1_ps(0.999f);
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int i = 0; i < kChains; ++i) sums[i] = _mm256_fmadd_ps(sums[i], x, x);
    __asm__ volatile("" : "+x"(x));
  }
  float total = 0;
  for (const __m256& sum : sums) total += _mm256_cvtss_f32(sum);
  return static_cast<int64_t>(total);
}

[[gnu::target("avx2")]] int64_t sum_bytes(const uint64_t* words, int64_t count) {
  __m256i sums[8] = {};
  for (int64_t i = 0; i + 32 <= count; i += 32) {
    for (int j = 0; j < 8; ++j) {
      const __m256i* p = reinterpret_cast<const __m256i*>(words + i + 4 * j);
      sums[j] = _mm256_add_epi64(sums[j], _mm256_loadu_si256(p));
    }
  }
  int64_t total = 0;
  for (const __m256i& sum : sums) total += _mm256_extract_epi64(sum, 0) + _mm256_extract_epi64(sum, 3);
  return total;
}

#elif defined(__aarch64__)

[[gnu::target("arch=armv8.2-a+dotprod")]] int64_t spin_int8_dotprod() {
  int32x4_t sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = vdupq_n_s32(i);
  int8x16_t x = vdupq_n_s8(3);
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int i = 0; i < kChains; ++i) sums[i] = vdotq_s32(sums[i], x, x);
    __asm__ volatile("" : "+w"(x));
  }
  int64_t total = 0;
  for (const int32x4_t& sum : sums) total += vaddvq_s32(sum);
  return total;
}

int64_t spin_int8_neon() {
  int16x8_t sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = vdupq_n_s16(static_cast<int16_t>(i));
  int8x8_t x = vdup_n_s8(1);
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int i = 0; i < kChains; ++i) sums[i] = vmlal_s8(sums[i], x, x);
    __asm__ volatile("" : "+w"(x));
  }
  int64_t total = 0;
  for (const int16x8_t& sum : sums) total += vaddvq_s16(sum);
  return total;
}

int64_t spin_f32_neon() {
  float32x4_t sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = vdupq_n_f32(static_cast<float>(i));
  float32x4_t x = vdupq_n_f32(0.999f);
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int i = 0; i < kChains; ++i) sums[i] = vfmaq_f32(sums[i], x, x);
    __asm__ volatile("" : "+w"(x));
  }
  float total = 0;
  for (const float32x4_t& sum : sums) total += vaddvq_f32(sum);
  return static_cast<int64_t>(total);
}

int64_t sum_bytes(const uint64_t* words, int64_t count) {
  uint64x2_t sums[8] = {};
  for (int64_t i = 0; i + 16 <= count; i += 16) {
    for (int j = 0; j < 8; ++j) sums[j] = vaddq_u64(sums[j], vld1q_u64(words + i + 2 * j));
  }
  uint64_t total = 0;
  for (const uint64x2_t& sum : sums) total += vaddvq_u64(sum);
  return static_cast<int64_t>(total);
}

#endif

// The best of many runs, in seconds: a limit is what the machine can do, and others may take time from some runs. A
// quarter of a second, so that a neighbour's time slice does not cover them all.
template <typename Work>
double best_seconds(Work work) {
  using Clock = std::chrono::steady_clock;
  const auto first_begin = Clock::now();
  double best = 1e9;
  for (int run = 0; run < 7 || Clock::now() - first_begin < std::chrono::milliseconds(250); ++run) {
    const auto begin = Clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return best;
}

double spin_rate(ThreadPool& pool, int64_t (*spin)(), double operations_a_step) {
  std::atomic<int64_t> sink = 0;
  const double seconds =
      best_seconds([&] { pool.parallel_for(kPieces, 1, [&](const WorkRange&) { sink.fetch_add(spin()); }); });
  return static_cast<double>(kPieces * kSteps * kChains) * operations_a_step / seconds * 1e-9;
}

}  // namespace

MachineLimits measure_machine_limits(ThreadPool& pool, const CpuFeatures& features) {
  MachineLimits limits;
#if defined(__x86_64__)
  if (!features.has_avx2()) return limits;
  limits.int8_gops =
      features.has_avx512_vnni() ? spin_rate(pool, spin_int8_avx512, 128) : spin_rate(pool, spin_int8_avx2, 64);
  limits.f32_gflops = features.has_avx512() ? spin_rate(pool, spin_f32_avx512, 32) : spin_rate(pool, spin_f32_avx2, 16);
  limits.bf16_gflops =
      features.has_avx512() && features.avx512_bf16 ? spin_rate(pool, spin_bf16_avx512, 64) : limits.f32_gflops;
#elif defined(__aarch64__)
  limits.int8_gops =
      features.neon_dotprod ? spin_rate(pool, spin_int8_dotprod, 32) : spin_rate(pool, spin_int8_neon, 16);
  limits.f32_gflops = spin_rate(pool, spin_f32_neon, 8);
  limits.bf16_gflops = limits.f32_gflops;
#endif
#if defined(__x86_64__) || defined(__aarch64__)
  const std::vector<uint64_t> words((int64_t{256} << 20) / 8, 1);
  std::atomic<int64_t> sink = 0;
  const int64_t count = static_cast<int64_t>(words.size());
  const double seconds = best_seconds([&] {
    pool.parallel_for(count, 1 << 17, [&](const WorkRange& range) {
      sink.fetch_add(sum_bytes(words.data() + range.begin, range.end - range.begin));
    });
  });
  limits.read_gbps = static_cast<double>(count) * 8 / seconds * 1e-9;
#else
  (void)pool, (void)features;
#endif
  return limits;
}

}  // namespace quire

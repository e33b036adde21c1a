#include "base/machine_limits.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

namespace quire {

namespace {

constexpr int kChains = 12;        // independent sums: more than latency times units
constexpr int64_t kSteps = 20000;  // of every chain, in one piece of work
constexpr int64_t kPieces = 64;

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

// The best of several runs, in seconds: a limit is what the machine can do, and others may take time from some runs.
template <typename Work>
double best_seconds(Work work) {
  double best = 1e9;
  for (int run = 0; run < 7; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
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
  if (!features.has_avx2()) return limits;
  limits.int8_gops =
      features.has_avx512_vnni() ? spin_rate(pool, spin_int8_avx512, 128) : spin_rate(pool, spin_int8_avx2, 64);
  limits.f32_gflops = features.has_avx512() ? spin_rate(pool, spin_f32_avx512, 32) : spin_rate(pool, spin_f32_avx2, 16);
  const std::vector<uint64_t> words((int64_t{256} << 20) / 8, 1);
  std::atomic<int64_t> sink = 0;
  const int64_t count = static_cast<int64_t>(words.size());
  const double seconds = best_seconds([&] {
    pool.parallel_for(count, 1 << 17, [&](const WorkRange& range) {
      sink.fetch_add(sum_bytes(words.data() + range.begin, range.end - range.begin));
    });
  });
  limits.read_gbps = static_cast<double>(count) * 8 / seconds * 1e-9;
  return limits;
}

}  // namespace quire

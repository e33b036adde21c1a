// Sixteen 16-bit numbers as one AVX2 register, and squares of them turned around: what the float lanes of AVX2 and of
// AVX-512 have in common. Included by those two files only.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace quire::cpu {
namespace {

struct X86Halves {
  __m256i v;
};

// out[k] holds number k of each of sixteen rows. The rows' eighths are joined while they are loaded, rows i and i + 8,
// so that the three steps within 128 bits are all that is left.
[[gnu::always_inline]] inline void load_transposed_halves(const uint16_t* const (&rows)[16], int64_t offset,
                                                          X86Halves (&out)[16]) {
  for (int part = 0; part < 2; ++part) {
    __m256i a[8];
    __m256i b[8];
    for (int i = 0; i < 8; ++i) {
      const auto eighth_of = [&](int row) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + offset + 8 * part));
      };
      a[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(eighth_of(i)), eighth_of(i + 8), 1);
    }
    for (int i = 0; i < 8; i += 2) {
      b[i] = _mm256_unpacklo_epi16(a[i], a[i + 1]);      // columns 0 to 3 of two rows
      b[i + 1] = _mm256_unpackhi_epi16(a[i], a[i + 1]);  // columns 4 to 7
    }
    for (int i = 0; i < 8; i += 4) {
      a[i] = _mm256_unpacklo_epi32(b[i], b[i + 2]);  // columns 0 and 1 of four rows
      a[i + 1] = _mm256_unpackhi_epi32(b[i], b[i + 2]);
      a[i + 2] = _mm256_unpacklo_epi32(b[i + 1], b[i + 3]);
      a[i + 3] = _mm256_unpackhi_epi32(b[i + 1], b[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
      out[8 * part + 2 * i] = {_mm256_unpacklo_epi64(a[i], a[i + 4])};
      out[8 * part + 2 * i + 1] = {_mm256_unpackhi_epi64(a[i], a[i + 4])};
    }
  }
}

}  // namespace
}  // namespace quire::cpu

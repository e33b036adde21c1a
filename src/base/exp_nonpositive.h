// e^x for x <= 0 by a polynomial: the same bits on every machine that rounds each operation, unlike a library's exp,
// and without branches, so that loops over a vocabulary are vectorised. Used where tokens are weighed.
#pragma once

#include <bit>
#include <cstdint>

namespace quire {

// To about one unit in the last place; exp(-87) = 2e-38 for all below.
constexpr float exp_nonpositive(float x) {
  const float clamped = x < -87.0f ? -87.0f : x;
  // Adding and taking away 1.5 * 2^23 rounds to the nearest integer.
  const float n = (clamped * 1.44269504f + 12582912.0f) - 12582912.0f;
  // ln 2 in two parts, the first with few bits, so that n * part is exact.
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const float scale = std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
  return p * scale;
}

}  // namespace quire

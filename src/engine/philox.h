// Philox4x32-10 (Salmon et al., SC'11): random numbers as a function of a key and a counter. A draw of a request
// depends on its seed, its choice and its position alone, never on what else runs or in which order.
#pragma once

#include <array>
#include <cstdint>

namespace quire {

inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xd2511f53u} * counter[0];
    const uint64_t product1 = uint64_t{0xcd9e8d57u} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += 0x9e3779b9u;
    key[1] += 0xbb67ae85u;
  }
  return counter;
}

// 53 bits.
inline uint64_t philox_bits(uint64_t seed, uint32_t stream, uint64_t position) {
  const auto words = philox4x32({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), stream, 0},
                                {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = (uint64_t{words[0]} << 21) ^ (words[1] >> 11);
  return bits & ((uint64_t{1} << 53) - 1);
}

// Uniform in [0, 1).
inline double philox_uniform(uint64_t seed, uint32_t stream, uint64_t position) {
  return static_cast<double>(philox_bits(seed, stream, position)) * 0x1p-53;
}

}  // namespace quire

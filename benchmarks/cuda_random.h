// Random bf16 numbers in the GPU's memory, for benchmarks.
#pragma once

#include <cstdint>

namespace quire {

// Uniform in [-scale, scale), a function of the seed and the place. On the default stream.
void fill_random(void* data, int64_t count, float scale, uint32_t seed);

}  // namespace quire

// Small kernels that benchmarks need: random bf16 numbers, and a copy that shows what the memory can do.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace quire {

// Uniform in [-scale, scale), a function of the seed and the place. On the default stream.
void fill_random(void* data, int64_t count, float scale, uint32_t seed);

// A plain copy, 16 bytes a thread: faster than the copy engine.
void copy_memory(cudaStream_t stream, void* to, const void* from, int64_t num_bytes);

// Reads everything and writes next to nothing.
void read_memory(cudaStream_t stream, void* sink, const void* from, int64_t num_bytes);

}  // namespace quire

// The definition of every weight format: what number each stored value is, as plain float arithmetic, one value at a
// time. Kernels are measured against it and the loader uses it for small tensors; it is not meant to be fast.
// The results equal those of gguf's Python package bit for bit, where it has the format.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/format.h"

namespace quire {

// Writes num_values floats. `blocks` holds quant_format(format).row_bytes(num_values) bytes, at any alignment;
// num_values is a whole number of blocks.
void dequantize_row(FormatId format, const std::byte* blocks, float* out, int64_t num_values);

// Of int4_g128: the zero point that a code is taken from. What a block has above it counts as it.
inline constexpr int kMaxInt4Zero = 16;

// The 16 numbers that a 4-bit code of iq4_nl and iq4_xs stands for.
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

}  // namespace quire

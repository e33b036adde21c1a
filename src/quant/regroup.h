// Rows of int4_g128 as rows of formats with groups of 32, for kernels that know no longer ones (the CPU's). The values
// stay the same bit for bit. Called at load.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/thread_pool.h"
#include "quant/weight.h"

namespace quire {

// The row-major weight in q4_0 where every zero point is 8, else in q5_0. It owns its bytes.
Weight regroup_int4(ThreadPool& pool, const Weight& weight);

// A block of q4_0 (zero must be 8) or q5_0 with the values scale * (codes[i] - zero) of 32 codes of 4 bits, 0 <= zero
// <= 16; `scale` is a f16.
void write_int4_group(FormatId format, const uint8_t* codes, uint16_t scale, int zero, std::byte* out);

}  // namespace quire

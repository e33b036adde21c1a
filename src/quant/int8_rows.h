// Rows of float weights as int8, each with one scale: what `--quantization int8` makes of them while they are loaded.
// The scale is f16(largest / 127), and a code is x / scale to the nearest, ties to even, at most 127 in size; where a
// row holds NaN its scale is NaN. The CUDA backend makes the same numbers itself.
#pragma once

#include "base/thread_pool.h"
#include "quant/weight.h"

namespace quire {

// Float weights whose rows are whole blocks of 32.
bool can_round_to_int8(const Weight& weight);

// The row-major weight in q8_0, all blocks of a row with the row's scale. It owns its bytes.
Weight round_to_int8(ThreadPool& pool, const Weight& weight);

}  // namespace quire

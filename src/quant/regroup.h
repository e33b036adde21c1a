// Rows of int4_g128 as rows of formats with groups of 32, for kernels that know no longer ones (the CPU's). The values
// stay the same bit for bit. Called at load.
#pragma once

#include "base/thread_pool.h"
#include "quant/weight.h"

namespace quire {

// The row-major weight in q4_0 where every zero point is 8, else in q5_0. It owns its bytes.
Weight regroup_int4(ThreadPool& pool, const Weight& weight);

}  // namespace quire

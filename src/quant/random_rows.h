// Rows of random weights in any format, as a file would hold them: for measuring a model of a real shape without its
// weights. Called at load, on the host; not for tests of kernels, which want extreme values too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quant/format.h"

namespace quire {

// Fills whole blocks with values around zero of a standard deviation of about 0.02. The same seed, the same bytes.
void fill_random_rows(FormatId format, std::span<std::byte> rows, uint64_t seed);

}  // namespace quire

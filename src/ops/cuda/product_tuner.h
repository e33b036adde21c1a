// Chooses among the ways in which cuBLASLt multiplies matrices of a shape, for `quire tune`: on random data of its own,
// with weights that rotate through more memory than the L2 cache holds, and only among those whose sums are right. What
// is chosen can be written down and taken up again by a later process. Called by LinearLibrary.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ops/cuda/linear_cublaslt.h"

namespace quire::cuda {

// A way to multiply as text: 16 hexadecimal digits for each word of the algorithm, and "/4" behind them where k has
// four parts. It means something to the same version of the library only.
std::string way_text(const ProductWay& way);
std::optional<ProductWay> parse_way(std::string_view text);

// The fastest of the candidates, by the median of several runs; nothing where there is no memory to measure with, or no
// candidate's sums are right. Waits for the stream.
std::optional<ProductWay> tune_product(LinearLibrary& library, cudaStream_t stream, const MatmulShape& shape,
                                       bool has_residual, std::span<const ProductWay> candidates);

}  // namespace quire::cuda

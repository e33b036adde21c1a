// Which of cuBLASLt's ways to multiply have the bits of our kernels' order, a k after the other. Its ways that split no
// k do so on an H200, all that have been tried; since nothing promises it, each is compared with our kernel on random
// inputs and the very weights, before it is used. Owned by LinearLibrary.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <functional>
#include <map>
#include <optional>
#include <tuple>

#include "ops/cuda/linear_cublaslt.h"

namespace quire::cuda {

class SameAnswers {
 public:
  // `multiply` computes y = x · wᵀ + residual of the shape in our order, rows of residual (or null) lying as those of
  // y.
  using Multiply = std::function<void(void* y, const void* x, const void* residual)>;

  // The fastest way that has the same bits; null where there is none, where there is no memory to compare with, or
  // while a stream is captured before the shape is known. The first call of a shape waits for the stream.
  const cublasLtMatmulAlgo_t* find(cudaStream_t stream, LinearLibrary& library, const MatmulShape& shape, const void* w,
                                   const Multiply& multiply);

 private:
  std::optional<cublasLtMatmulAlgo_t> choose(cudaStream_t stream, LinearLibrary& library, const MatmulShape& shape,
                                             const void* w, const Multiply& multiply);

  // Shapes of one bucket of num_tokens share a way.
  using Key = std::tuple<int64_t, int64_t, int64_t, DType, DType, bool>;
  std::map<Key, std::optional<cublasLtMatmulAlgo_t>> chosen_;
};

// About normal numbers, f16 or bf16; how many words of 4 bytes differ (num_other is on the device).
void fill_normal(cudaStream_t stream, DType dtype, void* x, int64_t size);
void count_other_words(cudaStream_t stream, const void* a, const void* b, int64_t num_words, int* num_other);

}  // namespace quire::cuda

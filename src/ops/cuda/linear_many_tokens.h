// The linear layer for any number of tokens in the orders of sums of `even_rows`, `few_tokens` and `few_tokens_integer`:
// what linear_strict.cc uses for more tokens than those take. Kernels in linear_many_tokens.cu and linear_numbers.cu.
#pragma once

#include "ops/cuda/linear.h"

namespace quire::cuda {

// Calls that fits_even_rows or fits_few_tokens accepts.
void linear_many_tokens(const LinearCall& call);
// Calls that fits_few_tokens_integer accepts: weights become numbers in the buffer of slices first.
void linear_many_tokens_integer(const LinearCall& call);

// The numbers that `few_tokens_integer` multiplies, bit for bit, as rows of k of the activations' dtype. The first row
// is one of a panel's; rows past the weight's last are left out.
struct NumberRows {
  void* out;
  DType dtype;
  int64_t first_row;
  int64_t num_rows;
};
void write_numbers(cudaStream_t stream, const Weight& weight, const NumberRows& rows);

}  // namespace quire::cuda

// The kernels with which cuBLASLt's bits are compared with ours.
#include "ops/cuda/cuda_support.h"
#include "ops/cuda/device_dtype.cuh"
#include "ops/cuda/linear_answers.h"

namespace quire::cuda {

namespace {

constexpr int kThreads = 256;

// About normal: sums of four uniform numbers, of a hash of the index.
template <typename T>
__global__ void fill_kernel(T* x, int64_t size) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= size) return;
  uint64_t bits = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u;
  bits ^= bits >> 30;
  bits *= 0xbf58476d1ce4e5b9u;
  bits ^= bits >> 27;
  bits *= 0x94d049bb133111ebu;
  float sum = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) sum += static_cast<float>(bits >> (16 * j) & 0xffff) * 0x1p-15f - 1.0f;
  x[i] = from_float<T>(sum);
}

// Words of 4 bytes.
__global__ void compare_kernel(const uint32_t* a, const uint32_t* b, int64_t size, int* num_other) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < size && a[i] != b[i]) atomicAdd(num_other, 1);
}

unsigned num_blocks_of(int64_t size) {
  return static_cast<unsigned>(ceil_div<int64_t>(size, kThreads));
}

}  // namespace

void fill_normal(cudaStream_t stream, DType dtype, void* x, int64_t size) {
  dispatch_activation(dtype, [&](auto type) {
    fill_kernel<<<num_blocks_of(size), kThreads, 0, stream>>>(static_cast<decltype(type)*>(x), size);
  });
  CUDA_CHECK_LAUNCH();
}

void count_other_words(cudaStream_t stream, const void* a, const void* b, int64_t num_words, int* num_other) {
  CUDA_CHECK(cudaMemsetAsync(num_other, 0, sizeof(int), stream));
  compare_kernel<<<num_blocks_of(num_words), kThreads, 0, stream>>>(
      static_cast<const uint32_t*>(a), static_cast<const uint32_t*>(b), num_words, num_other);
  CUDA_CHECK_LAUNCH();
}

}  // namespace quire::cuda

// For choosing among ways to compute by measuring them: memory of the GPU for a moment, and a clock on a stream. Waits
// for the stream, so never within a step that is recorded.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "ops/cuda/cuda_support.h"

namespace quire::cuda {

class BriefMemory {
 public:
  explicit BriefMemory(int64_t num_bytes) {
    if (cudaMalloc(&data_, static_cast<size_t>(std::max<int64_t>(num_bytes, 256))) != cudaSuccess) {
      (void)cudaGetLastError();
      data_ = nullptr;
    }
  }
  ~BriefMemory() {
    if (data_ != nullptr) CUDA_CHECK(cudaFree(data_));
  }
  BriefMemory(const BriefMemory&) = delete;
  BriefMemory& operator=(const BriefMemory&) = delete;

  bool is_there() const { return data_ != nullptr; }
  void* data() const { return data_; }
  char* at(int64_t offset) const { return static_cast<char*>(data_) + offset; }

 private:
  void* data_ = nullptr;
};

class StreamClock {
 public:
  explicit StreamClock(cudaStream_t stream) : stream_(stream) {
    CUDA_CHECK(cudaEventCreate(&begin_));
    CUDA_CHECK(cudaEventCreate(&end_));
  }
  ~StreamClock() {
    (void)cudaEventDestroy(begin_);
    (void)cudaEventDestroy(end_);
  }
  StreamClock(const StreamClock&) = delete;
  StreamClock& operator=(const StreamClock&) = delete;

  template <typename Run>
  float milliseconds_of(const Run& run) {
    CUDA_CHECK(cudaEventRecord(begin_, stream_));
    run();
    CUDA_CHECK(cudaEventRecord(end_, stream_));
    CUDA_CHECK(cudaEventSynchronize(end_));
    float milliseconds = 0;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return milliseconds;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace quire::cuda

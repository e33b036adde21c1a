// Where packed weights lie: pieces of large blocks, so that small matrices lie in huge pages too. Streaming through 4
// KiB pages costs a quarter of the memory's speed. Used at load, by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "base/thread_pool.h"
#include "tensor/device.h"

namespace quire::cpu {

// A block lives as long as any piece of it.
class WeightMemory {
 public:
  // Aligned to 256 bytes; the whole of it is kept by the pointer. Its pages are in memory: threads that write a piece
  // together would each bring in the page that both are at, and one of them for nothing.
  Result<std::shared_ptr<std::byte>> take(ThreadPool& pool, int64_t num_bytes);

 private:
  std::shared_ptr<DeviceBuffer> block_;
  int64_t used_bytes_ = 0;
  int64_t present_bytes_ = 0;
};

}  // namespace quire::cpu

// Scratch memory of a step: a bump allocator over one block that was sized at start. Taking from it costs an addition;
// everything taken in a step is given back at once by reset(), or back to a mark by rewind().
// Not thread-safe: the thread that runs the step owns it.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "tensor/device.h"
#include "tensor/tensor.h"

namespace quire {

class Arena {
 public:
  explicit Arena(DeviceBuffer block) : block_(std::move(block)) {}

  // Aligned to 256 bytes. Running out is a fault of the memory plan, so it is a CHECK.
  void* take_bytes(int64_t num_bytes);

  TensorView take(DType dtype, std::initializer_list<int64_t> sizes);

  int64_t mark() const { return used_bytes_; }
  void rewind(int64_t mark);
  void reset() { rewind(0); }

  int64_t used_bytes() const { return used_bytes_; }
  int64_t capacity_bytes() const { return block_.num_bytes(); }
  // The most that was ever in use: what a profiling step reads.
  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  DeviceBuffer block_;
  int64_t used_bytes_ = 0;
  int64_t peak_bytes_ = 0;
};

// Gives back what was taken from the arena since its construction.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.rewind(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  int64_t mark_;
};

}  // namespace quire

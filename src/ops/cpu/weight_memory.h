// Where packed weights lie: pieces of large blocks, so that small matrices lie in huge pages too. Streaming through 4
// KiB pages costs up to a quarter of the memory's speed. Used by one thread at a time, at load and between steps.
//
// Where huge pages are slow to come, which is how virtual machines are whose host takes free memory back, pieces may be
// given in small pages at first, which are made huge later, some at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "ops/host_memory.h"
#include "tensor/device.h"

namespace quire::cpu {

// In which pages memory is brought in: huge ones, until one has cost so much that small ones may be quicker; from then
// on small ones, unless they turn out slower still.
class PageChoice {
 public:
  explicit PageChoice(bool may_be_small) : may_be_small_(may_be_small) {}
  bool is_small() const { return is_small_; }
  bool may_change() const { return may_be_small_; }
  // What a thread has just taken to bring in so many pieces of kHugePageBytes in pages of the present choice.
  void tell(double seconds, int64_t num_pieces);

 private:
  bool may_be_small_;
  bool is_small_ = false;
  double huge_seconds_ = 0.0;   // of a piece, when it was too much
  double small_seconds_ = 0.0;  // of all pieces so far
  int64_t num_small_ = 0;
};

// A block lives as long as any piece of it.
class WeightMemory {
 public:
  // kHugeOrSmall only where the caller will have small ones made huge.
  enum class Pages : uint8_t { kHuge, kHugeOrSmall };
  explicit WeightMemory(Pages pages = Pages::kHuge)
      : WeightMemory(PageChoice(pages == Pages::kHugeOrSmall && can_make_huge())) {}
  explicit WeightMemory(const PageChoice& choice) : choice_(choice) {}

  // Aligned to 256 bytes; the whole of it is kept by the pointer. Its pages are in memory: threads that write a piece
  // together would each bring in the page that both are at, and one of them for nothing.
  Result<std::shared_ptr<std::byte>> take(ThreadPool& pool, int64_t num_bytes);

  // Makes a piece of kHugePageBytes of small pages huge for each thread: some milliseconds. Nothing is left to do when
  // it returns false. Contents and places stay; nobody reads them meanwhile.
  bool make_some_huge(ThreadPool& pool);

 private:
  struct SmallPages {
    std::weak_ptr<DeviceBuffer> block;
    std::byte* begin;
    std::byte* end;
  };

  int64_t bring_in(ThreadPool& pool, const std::shared_ptr<DeviceBuffer>& block, int64_t begin, int64_t end);

  std::shared_ptr<DeviceBuffer> block_;
  int64_t used_bytes_ = 0;
  int64_t present_bytes_ = 0;
  PageChoice choice_;
  std::vector<SmallPages> small_pages_;
};

}  // namespace quire::cpu

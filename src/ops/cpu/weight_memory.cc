#include "ops/cpu/weight_memory.h"

#include <algorithm>
#include <utility>

#include "ops/host_memory.h"

namespace quire::cpu {

namespace {

// Touched only as it fills, so that a block larger than a model costs address space and no memory.
constexpr int64_t kBlockBytes = int64_t{64} << 20;
// Of pages brought in at once, beyond what is asked for: as much memory may stay unused.
constexpr int64_t kMostAheadPages = 8;

// Brings in [begin, end) of a block, whose bytes before `begin` are there; returns how far they are then.
int64_t bring_in(ThreadPool& pool, const DeviceBuffer& block, int64_t begin, int64_t end) {
  if (end <= begin) return begin;
  const int64_t first_page = begin / kHugePageBytes;
  const int64_t end_page = (end + kHugePageBytes - 1) / kHugePageBytes;
  std::byte* data = static_cast<std::byte*>(block.data());
  pool.parallel_for(end_page - first_page, 1, [&](const WorkRange& range) {
    const int64_t range_begin = (first_page + range.begin) * kHugePageBytes;
    const int64_t range_end = std::min((first_page + range.end) * kHugePageBytes, block.num_bytes());
    make_present(data + range_begin, range_end - range_begin);
  });
  return end_page * kHugePageBytes;
}

}  // namespace

Result<std::shared_ptr<std::byte>> WeightMemory::take(ThreadPool& pool, int64_t num_bytes) {
  const auto piece_of = [](const std::shared_ptr<DeviceBuffer>& block, int64_t offset) {
    return std::shared_ptr<std::byte>(block, static_cast<std::byte*>(block->data()) + offset);
  };
  const int64_t rounded_bytes = (num_bytes + 255) / 256 * 256;
  const auto piece_of_block = [&] {
    const int64_t offset = used_bytes_;
    used_bytes_ += rounded_bytes;
    if (used_bytes_ > present_bytes_) {
      // A page for each thread, so that all of them are busy with it.
      const int64_t ahead = std::min<int64_t>(pool.num_threads() - 1, kMostAheadPages) * kHugePageBytes;
      present_bytes_ = bring_in(pool, *block_, present_bytes_, std::min(used_bytes_ + ahead, block_->num_bytes()));
    }
    return piece_of(block_, offset);
  };
  const bool is_large = rounded_bytes > kBlockBytes / 4;
  if (!is_large && block_ != nullptr && used_bytes_ + rounded_bytes <= block_->num_bytes()) return piece_of_block();
  if (!is_large) {
    Result<DeviceBuffer> block = allocate_host(kBlockBytes, "weights");
    if (block.is_ok()) {
      block_ = std::make_shared<DeviceBuffer>(std::move(block).value());
      used_bytes_ = 0;
      present_bytes_ = 0;
      return piece_of_block();
    }  // else: what is asked for may still fit
  }
  ASSIGN_OR_RETURN(DeviceBuffer own, allocate_host(rounded_bytes, "weights"));
  // A small one comes from the heap.
  if (is_large) bring_in(pool, own, 0, rounded_bytes);
  return piece_of(std::make_shared<DeviceBuffer>(std::move(own)), 0);
}

}  // namespace quire::cpu

#include "ops/cpu/weight_memory.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "ops/host_memory.h"

namespace quire::cpu {

namespace {

// Touched only as it fills, so that a block larger than a model costs address space and no memory.
constexpr int64_t kBlockBytes = int64_t{64} << 20;
// Of pages brought in at once, beyond what is asked for: as much memory may stay unused.
constexpr int64_t kMostAheadPages = 8;
// A huge page that is at hand costs its zeros, 0.2 ms; one that the host has to find costs 2 to 5 (EPYC, Firecracker).
constexpr double kSlowHugePageSeconds = 1e-3;

using Clock = std::chrono::steady_clock;

}  // namespace

void PageChoice::tell(double seconds, int64_t num_pieces) {
  if (!may_be_small_ || num_pieces == 0) return;
  if (!is_small_) {
    huge_seconds_ = seconds / static_cast<double>(num_pieces);
    is_small_ = huge_seconds_ > kSlowHugePageSeconds;
    return;
  }
  small_seconds_ += seconds;
  num_small_ += num_pieces;
  if (small_seconds_ > huge_seconds_ * static_cast<double>(num_small_)) {
    // The host has to find these as well.
    is_small_ = false;
    may_be_small_ = false;
  }
}

// Brings in [begin, end) of a block, whose bytes before `begin` are there; returns how far they are then.
int64_t WeightMemory::bring_in(ThreadPool& pool, const std::shared_ptr<DeviceBuffer>& block, int64_t begin,
                               int64_t end) {
  if (end <= begin) return begin;
  std::byte* data = static_cast<std::byte*>(block->data());
  const int64_t end_page = (end + kHugePageBytes - 1) / kHugePageBytes;
  for (int64_t page = begin / kHugePageBytes; page < end_page;) {
    const bool is_small = choice_.is_small();
    // A huge page for each thread, and when it is known what these cost the rest.
    const int64_t num_pages =
        is_small || !choice_.may_change() ? end_page - page : std::min<int64_t>(end_page - page, pool.num_threads());
    std::atomic<int64_t> nanoseconds = 0;
    pool.parallel_for(num_pages, 1, [&](const WorkRange& range) {
      const Clock::time_point start = Clock::now();
      const int64_t first_byte = (page + range.begin) * kHugePageBytes;
      const int64_t num_bytes = std::min((page + range.end) * kHugePageBytes, block->num_bytes()) - first_byte;
      if (is_small) {
        make_present_in_small_pages(data + first_byte, num_bytes);
      } else {
        make_present(data + first_byte, num_bytes);
      }
      nanoseconds.fetch_add(std::chrono::nanoseconds(Clock::now() - start).count(), std::memory_order_relaxed);
    });
    if (is_small) {
      std::byte* first = data + page * kHugePageBytes;
      small_pages_.push_back({block, first, first + num_pages * kHugePageBytes});
    }
    choice_.tell(1e-9 * static_cast<double>(nanoseconds.load()), num_pages);
    page += num_pages;
  }
  return end_page * kHugePageBytes;
}

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
      present_bytes_ = bring_in(pool, block_, present_bytes_, std::min(used_bytes_ + ahead, block_->num_bytes()));
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
  ASSIGN_OR_RETURN(DeviceBuffer memory, allocate_host(rounded_bytes, "weights"));
  const auto own = std::make_shared<DeviceBuffer>(std::move(memory));
  // A small one comes from the heap.
  if (is_large) bring_in(pool, own, 0, rounded_bytes);
  return piece_of(own, 0);
}

bool WeightMemory::make_some_huge(ThreadPool& pool) {
  while (!small_pages_.empty()) {
    SmallPages& pages = small_pages_.back();
    const std::shared_ptr<DeviceBuffer> block = pages.block.lock();
    if (block == nullptr || pages.begin == pages.end) {
      small_pages_.pop_back();
      continue;
    }
    const int64_t num_left = (pages.end - pages.begin) / kHugePageBytes;
    const int64_t num_pages = std::min<int64_t>(num_left, pool.num_threads());
    std::byte* first = pages.begin;
    pages.begin += num_pages * kHugePageBytes;
    pool.parallel_for(num_pages, 1, [&](const WorkRange& range) { make_huge(first + range.begin * kHugePageBytes); });
    return true;
  }
  return false;
}

}  // namespace quire::cpu

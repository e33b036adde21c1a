// What becomes of a sequence that has to give way: its tokens are computed again later, or its pages are kept in the
// swap space. Two rates measured at start tell which is cheaper. Plain numbers; used by the scheduler.
#pragma once

#include <cstdint>

namespace quire {

enum class PreemptionMode : uint8_t {
  kAuto,  // the cheaper
  kRecompute,
  kSwap,  // while there is room in the swap space, else recompute
};

struct PreemptionCosts {
  double prefill_tokens_per_second = 0.0;  // computing again; 0: not known
  double swap_bytes_per_second = 0.0;      // copying pages, one way; 0: not known
  int64_t page_bytes = 0;

  // Copying `num_pages` pages out and back again against computing `num_tokens` tokens. What is not known loses.
  bool is_swap_cheaper(int64_t num_tokens, int64_t num_pages) const {
    if (swap_bytes_per_second <= 0.0) return false;
    if (prefill_tokens_per_second <= 0.0) return true;
    const double swap_seconds = 2.0 * static_cast<double>(num_pages * page_bytes) / swap_bytes_per_second;
    return swap_seconds < static_cast<double>(num_tokens) / prefill_tokens_per_second;
  }
};

}  // namespace quire

#include "engine/step_recordings.h"

#include <algorithm>
#include <bit>

namespace quire {

int StepRecordings::padded_rows(int num_rows, int max_num_rows) {
  int padded = num_rows;
  if (num_rows <= 8) {
    padded = static_cast<int>(std::bit_ceil(static_cast<unsigned>(num_rows)));
  } else {
    const int step = num_rows <= 64 ? 8 : num_rows <= 256 ? 16 : 64;
    padded = (num_rows + step - 1) / step * step;
  }
  return std::max(num_rows, std::min(padded, max_num_rows));
}

int64_t StepRecordings::padded_pages(int64_t num_pages, int64_t max_num_pages) {
  const int64_t padded = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(num_pages, 16))));
  return std::max(num_pages, std::min(padded, max_num_pages));
}

StepRecordings::Entry* StepRecordings::find(const Shape& shape) {
  if (const auto found = entries_.find(shape); found != entries_.end()) return &found->second;
  if (entries_.size() >= kMostEntries) entries_.clear();
  entries_.try_emplace(shape);
  return nullptr;
}

}  // namespace quire

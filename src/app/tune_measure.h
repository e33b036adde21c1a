// Measures the kernel rows of linear layers against each other on this machine, and picks: what `quire tune` does for
// each format, number of inputs and range of tokens. Main thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/cpu_info.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "ops/backends.h"

namespace quire::app {

struct TuneShape {
  FormatId format = FormatId::kF32;
  int64_t n = 0;  // outputs of the matrix that is measured; the choice holds for any
  int64_t k = 0;
  bool is_for_any_k = false;
};

// Rows are compared at `num_tokens`, for the range around it.
struct TokenRange {
  int64_t min_tokens;
  int64_t max_tokens;
  int64_t num_tokens;
};
inline constexpr TokenRange kTokenRanges[] = {{1, 1, 1}, {2, 8, 4}, {9, 32, 16}, {33, int64_t{1} << 30, 256}};

struct RowTimes {
  std::string row;
  std::vector<double> seconds;  // of one product, a sample each
};

struct TuneResult {
  TuneShape shape;
  TokenRange tokens;
  std::vector<RowTimes> rows;  // as the table has them: the first runs where nothing is chosen
  size_t chosen = 0;           // index in rows
};

// The first, unless another is clearly faster: by more than 3 % in the median and in the lower quartile.
size_t choose_fastest(const std::vector<RowTimes>& rows);

// A result for each range of tokens; rows that do not accept are left out, and the scalar one where there is another.
Result<std::vector<TuneResult>> measure_shape(ThreadPool& pool, const CpuFeatures& features, const TuneShape& shape,
                                              double seconds_per_range);

// What differs from the tables, narrow choices before wide ones.
std::vector<TunedLinear> choices_of(const std::vector<TuneResult>& results);

}  // namespace quire::app

#include "app/tune_measure.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "ops/cpu/linear.h"
#include "ops/host_memory.h"
#include "quant/random_rows.h"
#include "tensor/arena.h"

namespace quire::app {

namespace {

using Clock = std::chrono::steady_clock;

// Weights of a shape together: more than the caches that a core has for itself, so that they come from where a model's
// would.
constexpr int64_t kRotatedBytes = int64_t{96} << 20;
constexpr int64_t kScratchBytes = int64_t{256} << 20;
constexpr int kLeastSamples = 7;
constexpr double kClearlyFaster = 0.97;

Result<std::vector<Weight>> make_weights(ThreadPool& pool, cpu::WeightMemory& memory, const TuneShape& shape) {
  Weight weight;
  weight.format = shape.format;
  weight.n = shape.n;
  weight.k = shape.k;
  const int64_t num_bytes = shape.n * weight.quant().row_bytes(shape.k);
  std::vector<std::byte> rows(static_cast<size_t>(num_bytes));
  fill_random_rows(shape.format, rows, /*seed=*/1);
  weight.parts[0] = rows;
  std::vector<Weight> weights;
  const int64_t count = std::clamp<int64_t>(kRotatedBytes / std::max<int64_t>(1, num_bytes), 2, 64);
  for (int64_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(Weight packed, cpu::pack_weight(pool, memory, weight));
    weights.push_back(std::move(packed));
  }
  return weights;
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double at_share(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

}  // namespace

size_t choose_fastest(const std::vector<RowTimes>& rows) {
  size_t best = 0;
  for (size_t i = 1; i < rows.size(); ++i) {
    const auto is_faster_at = [&](double share, size_t than, double factor) {
      return at_share(rows[i].seconds, share) < factor * at_share(rows[than].seconds, share);
    };
    if (is_faster_at(0.5, 0, kClearlyFaster) && is_faster_at(0.25, 0, kClearlyFaster) && is_faster_at(0.5, best, 1.0))
      best = i;
  }
  return best;
}

Result<std::vector<TuneResult>> measure_shape(ThreadPool& pool, const CpuFeatures& features, const TuneShape& shape,
                                              double seconds_per_range) {
  cpu::WeightMemory memory;
  ASSIGN_OR_RETURN(const std::vector<Weight> weights, make_weights(pool, memory, shape));
  ASSIGN_OR_RETURN(DeviceBuffer block, allocate_host(kScratchBytes, "tuning"));
  Arena scratch(std::move(block));
  std::vector<TuneResult> results;
  for (const TokenRange& tokens : kTokenRanges) {
    const ArenaScope scope(scratch);
    const TensorView x = scratch.take(DType::kF32, {tokens.num_tokens, shape.k});
    const TensorView y = scratch.take(DType::kF32, {tokens.num_tokens, shape.n});
    for (int64_t i = 0; i < x.num_elements(); ++i) x.data<float>()[i] = 0.01f * static_cast<float>(i % 199 - 99);
    size_t next_weight = 0;
    const auto make_call = [&](const Weight& weight) {
      return cpu::LinearCall{.pool = pool, .scratch = scratch, .features = features, .y = y, .x = x, .weight = weight};
    };
    TuneResult result{shape, tokens, {}, 0};
    for (const KernelRow<cpu::LinearCall>& row : cpu::linear_rows()) {
      if (!row.accepts(make_call(weights[0]))) continue;
      if (row.name.starts_with("scalar") && !result.rows.empty()) continue;
      result.rows.push_back({std::string(row.name), {}});
      cpu::linear(make_call(weights[0]), row.name);  // warm
    }
    // In turns, a few products a sample, so that what disturbs the machine disturbs all rows alike.
    const double operations = 2.0 * static_cast<double>(shape.n * shape.k * tokens.num_tokens);
    const int products = static_cast<int>(std::clamp(1e8 / operations, 1.0, 64.0));
    const Clock::time_point begin = Clock::now();
    for (int sample = 0; result.rows.size() > 1 && (sample < kLeastSamples || seconds_since(begin) < seconds_per_range);
         ++sample) {
      for (RowTimes& row : result.rows) {
        const Clock::time_point sample_begin = Clock::now();
        for (int i = 0; i < products; ++i) {
          cpu::linear(make_call(weights[next_weight++ % weights.size()]), row.row);
        }
        row.seconds.push_back(seconds_since(sample_begin) / products);
      }
    }
    if (result.rows.size() > 1) result.chosen = choose_fastest(result.rows);
    results.push_back(std::move(result));
  }
  return results;
}

std::vector<TunedLinear> choices_of(const std::vector<TuneResult>& results) {
  std::vector<TunedLinear> choices;
  for (const TuneResult& result : results) {
    if (result.chosen == 0) continue;
    choices.push_back({result.shape.format, result.shape.is_for_any_k ? 0 : result.shape.k, result.tokens.min_tokens,
                       result.tokens.max_tokens, result.rows[result.chosen].row});
  }
  std::stable_sort(choices.begin(), choices.end(),
                   [](const TunedLinear& a, const TunedLinear& b) { return (a.k == 0) < (b.k == 0); });
  return choices;
}

}  // namespace quire::app

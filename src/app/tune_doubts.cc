#include "app/tune_doubts.h"

#include <fmt/format.h>

#include <algorithm>

namespace quire::app {

namespace {

double spread_of(std::vector<double> seconds) {
  if (seconds.empty()) return 0.0;
  std::sort(seconds.begin(), seconds.end());
  const auto at_share = [&](double share) {
    return seconds[static_cast<size_t>(share * static_cast<double>(seconds.size() - 1))];
  };
  return (at_share(0.75) - at_share(0.25)) / at_share(0.5);
}

std::string what_to_do(const Disturbance& disturbance) {
  if (disturbance.throttled_share > kNotableThrottledShare) {
    return fmt::format("the cgroup quota stopped this process for {:.0f} % of the time; raise it, or lower --threads",
                       100.0 * disturbance.throttled_share);
  }
  if (disturbance.stolen_cpus > kNotableStolenCpus) {
    return fmt::format(
        "other guests of this machine's host took {:.2f} processors meanwhile; wait until they are quiet",
        disturbance.stolen_cpus);
  }
  if (disturbance.other_cpus > kNotableOtherCpus) {
    return fmt::format(
        "other programs used {:.2f} processors meanwhile; stop them, or keep them on cores of their own (taskset)",
        disturbance.other_cpus);
  }
  return "something disturbs this machine (`quire doctor` may say what)";
}

}  // namespace

double widest_spread(const TuneResult& result) {
  double widest = 0.0;
  for (const RowTimes& row : result.rows) widest = std::max(widest, spread_of(row.seconds));
  return widest;
}

std::string doubts_about(const std::vector<TuneResult>& results, const Disturbance& disturbance) {
  double widest = 0.0;
  int64_t num_wide = 0;
  for (const TuneResult& result : results) {
    const double spread = widest_spread(result);
    widest = std::max(widest, spread);
    if (spread > kWideSpread) ++num_wide;
  }
  if (num_wide == 0) return {};
  return fmt::format(
      "{} of {} choices may be wrong, as times of one and the same product spread by up to {:.0f} %: {}. Then tune "
      "again; `quire tune --forget` takes the choices back",
      num_wide, results.size(), 100.0 * widest, what_to_do(disturbance));
}

}  // namespace quire::app

// Whether what `quire tune` measured can be believed. Rows are measured in turns, so that what disturbs the machine all
// the time disturbs all of them alike; where it comes and goes, times of one row lie far apart, and medians say little.
#pragma once

#include <string>
#include <vector>

#include "app/doctor_machine.h"
#include "app/tune_measure.h"

namespace quire::app {

// How far apart the middle half of the times lies, as a share of their median; of the row where that is widest.
double widest_spread(const TuneResult& result);

// On a quiet machine spreads are below 0.12; where another program takes a third of a core now and then, most
// measurements are as quiet, and some reach 0.7 (Zen 4, 2 threads, a busy loop beside `quire tune`).
inline constexpr double kWideSpread = 0.25;

// What to tell where times spread widely: what else took the processor meanwhile, as far as it can be seen, and what to
// do. Empty: nothing.
std::string doubts_about(const std::vector<TuneResult>& results, const Disturbance& disturbance);

}  // namespace quire::app

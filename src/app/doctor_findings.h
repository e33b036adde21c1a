// What `quire doctor` concludes from what it has read and measured: plain data in, sentences out, so that tests can try
// machines that they do not run on. Each finding says what was seen, what it costs, and what to do.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/bench_limits.h"
#include "app/bench_run.h"
#include "app/doctor_machine.h"
#include "base/machine_limits.h"

namespace quire::app {

// What the loaded model did. The limits are those of the processor, 0 where they are not known.
struct DoctorModel {
  BenchCell cell;
  Spread prefill;
  Spread decode;
  BenchLimits limits;
  double decode_read_tok_s = 0.0;      // if reading weights and KV were all the work
  double decode_multiply_tok_s = 0.0;  // if multiplying were
  ModelArithmetic arithmetic;
  double bits_per_weight = 0.0;
};

struct DoctorFacts {
  MachineState machine;
  Disturbance disturbance;  // while the limits, and the model, were measured
  int num_threads = 1;
  MachineLimits limits;             // of all threads
  MachineLimits one_thread_limits;  // of one
  double fork_join_us = 0.0;        // to give work to all threads and have it back
  bool is_on_cpu = true;
  std::string why_no_gpu;  // empty: one is used, or there is none
  std::optional<DoctorModel> model;
};

enum class FindingLevel : uint8_t { kGood, kNote, kProblem };

struct Finding {
  FindingLevel level;
  std::string id;    // for scripts: "threads", "huge_pages", …
  std::string text;  // what is so, and what to do
};

const char* finding_level_name(FindingLevel level);

// Problems first, then notes, then what is good.
std::vector<Finding> find_what_limits(const DoctorFacts& facts);

}  // namespace quire::app

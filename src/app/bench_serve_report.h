// From the records of bench-serve to figures: percentiles of latencies, throughput, goodput, errors by kind; as JSON
// and as a table for people.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "app/bench_serve_request.h"

namespace quire::app {

struct Percentiles {
  double mean = 0.0, p50 = 0.0, p90 = 0.0, p99 = 0.0, min = 0.0, max = 0.0;
  int64_t count = 0;
};
// Between ranks the value is interpolated. Of no values, all are 0.
Percentiles percentiles_of(std::vector<double> values);

// Limits in milliseconds; 0: none.
struct GoodputLimits {
  double ttft_ms = 0.0, tpot_ms = 0.0, itl_ms = 0.0, e2e_ms = 0.0;  // itl: the longest gap of a request
  bool has_any() const { return ttft_ms > 0 || tpot_ms > 0 || itl_ms > 0 || e2e_ms > 0; }
};
// "ttft:500", "tpot:50"; each at most once.
Result<GoodputLimits> parse_goodput(const std::vector<std::string>& texts);

struct BenchReport {
  int64_t num_ok = 0, num_failed = 0;
  std::map<std::string, int64_t> errors;             // by kind
  std::map<std::string, std::string> error_samples;  // a message of each kind
  double duration_s = 0.0;                           // from the first request's start to the last one's end
  int64_t num_prompt_tokens = 0, num_cached_tokens = 0, num_output_tokens = 0;
  bool is_counted_by_server = false;
  double request_throughput = 0.0, output_tok_s = 0.0, total_tok_s = 0.0;
  double mean_concurrency = 0.0;
  int64_t num_good = 0;
  double goodput = 0.0;                                  // requests a second that keep all limits
  Percentiles ttft_ms, tpot_ms, itl_ms, e2e_ms, lag_ms;  // lag: sent later than due
};
BenchReport make_bench_report(const std::vector<BenchRecord>& records, const GoodputLimits& limits);

boost::json::object to_json(const BenchReport& report, const GoodputLimits& limits);
boost::json::object to_json(const BenchRecord& record);
std::string to_table(const BenchReport& report, const GoodputLimits& limits);

}  // namespace quire::app

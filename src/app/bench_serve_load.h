// When bench-serve sends which request, and on which thread: a closed loop of so many clients, or arrivals of a Poisson
// process. Threads wait in poll most of their time, so hundreds of them cost little.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "app/bench_serve_request.h"

namespace quire::app {

struct BenchLoad {
  int concurrency = 1;        // requests in flight at most
  double request_rate = 0.0;  // a second, Poisson; 0: a closed loop
  int64_t num_requests = 0;
  double duration_s = 0.0;  // no request is sent after it; 0: no limit
  uint64_t seed = 0;
};

struct BenchProgress {
  std::atomic<int64_t> num_done{0};
  std::atomic<int64_t> num_failed{0};
  std::atomic<int64_t> num_output_tokens{0};
  std::atomic<int> num_running{0};
  std::atomic<int> peak_running{0};
};

// Sends request `index` over the thread's own client.
using BenchSend = std::function<BenchRecord(HttpClient& client, int64_t index, BenchClock::time_point run_start)>;

// Calls on_tick twice a second on the calling thread. An interrupt (SIGINT) cancels what runs; its records say so. The
// records come in the order in which requests ended.
std::vector<BenchRecord> run_bench_load(const BenchLoad& load, const HttpClientOptions& client_options,
                                        const BenchSend& send, BenchProgress* progress,
                                        const std::function<void(double elapsed_s)>& on_tick, bool* was_interrupted);

// When each of num_requests arrives, in seconds: gaps are exponential with the mean 1 / rate.
std::vector<double> poisson_arrivals(double request_rate, int64_t num_requests, uint64_t seed);

}  // namespace quire::app

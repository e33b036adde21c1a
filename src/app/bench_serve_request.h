// One streamed request of bench-serve: sends it, takes the time of every piece that comes, and says what came of it.
// Used by many threads at once, each with a client of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "app/bench_serve_prompts.h"
#include "server/http_client.h"

namespace quire::app {

using BenchClock = std::chrono::steady_clock;

struct BenchTarget {
  std::string base_url;  // ends in "/v1"
  std::string model;
  BenchApi api = BenchApi::kCompletions;
  double temperature = 0.0;
  bool has_ignore_eos = false;
  HttpFields headers;
  HttpFields credentials;
  std::string extra_fields;  // ",\"top_k\":1": as they go into the body

  std::string url() const { return base_url + (api == BenchApi::kChat ? "/chat/completions" : "/completions"); }
};

// Times are seconds since the start of the run.
struct BenchRecord {
  int64_t index = 0;
  double due_s = 0.0;    // when it should have been sent
  double start_s = 0.0;  // when it was
  double end_s = 0.0;
  double first_token_s = 0.0;  // 0: none came
  double last_token_s = 0.0;
  std::vector<float> gaps_s;  // between pieces
  int64_t num_pieces = 0;
  int64_t num_prompt_tokens = 0;  // as the server counts them
  int64_t num_cached_tokens = 0;
  int64_t num_output_tokens = 0;
  bool is_counted_by_server = false;
  std::string finish_reason;
  std::string error_kind;  // empty: the answer is whole
  std::string error_message;

  bool is_ok() const { return error_kind.empty(); }
  double ttft_s() const { return first_token_s - start_s; }
  double e2e_s() const { return end_s - start_s; }
  // Between tokens, the first excluded; 0 where there are less than two.
  double tpot_s() const {
    return num_output_tokens > 1 ? (last_token_s - first_token_s) / static_cast<double>(num_output_tokens - 1) : 0.0;
  }
};

BenchRecord run_bench_request(HttpClient& client, const BenchTarget& target, const BenchPrompt& prompt,
                              BenchClock::time_point run_start);

}  // namespace quire::app

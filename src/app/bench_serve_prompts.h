// The prompts that bench-serve sends: random words or token ids of given lengths behind a shared prefix, or those of a
// data set. All of them are made before the clock starts, from a seed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"

namespace quire::app {

enum class BenchApi : uint8_t { kCompletions, kChat };
enum class LengthSpread : uint8_t { kFixed, kUniform, kExponential };

struct BenchPromptOptions {
  BenchApi api = BenchApi::kCompletions;
  int64_t num_prompts = 0;
  int64_t shared_prefix_len = 0;  // tokens (or words) that all prompts begin with
  int64_t input_len = 512;        // those after the prefix
  int64_t output_len = 128;       // the mean, where the spread is not fixed
  LengthSpread output_spread = LengthSpread::kFixed;
  bool has_output_len = false;  // it was asked for: it wins over a data set's own
  bool are_ids = false;
  int64_t first_id = 1000;  // ids are drawn from [first_id, last_id]
  int64_t last_id = 30000;
  std::filesystem::path dataset;  // empty: random prompts
  uint64_t seed = 0;
};

struct BenchPrompt {
  std::string json;  // the value of "prompt" or of "messages"
  int64_t output_len = 0;
};

// A data set is a JSON array or JSON lines of {"prompt": "…" | [ids] | …}, {"messages": […]} or ShareGPT's
// {"conversations": [{"from": "human", "value": "…"}, …]}; "output_len" or "max_tokens" may stand beside. It is
// shuffled by the seed, and begins anew when it is shorter than num_prompts.
Result<std::vector<BenchPrompt>> make_bench_prompts(const BenchPromptOptions& options);

}  // namespace quire::app

// Measures prefill and decode of a loaded model at one batch size and one length. Random token ids, every sequence its
// own unless the cell says otherwise; the engine's own step loop, so that what is timed is what serves. Main thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"

namespace quire::app {

struct BenchCell {
  int batch_size = 1;
  int64_t prompt_len = 512;
  int64_t gen_len = 128;
  bool is_prompt_shared = false;  // all sequences have one prompt, whose pages they share: for decode at large batches
  SamplingParams sampling = {.temperature = 0.0f, .ignore_eos = true};  // but for max_tokens and n
};

struct BenchTimes {
  double prefill_tok_s = 0.0;     // prompt tokens of all sequences, until each has its first token
  double decode_tok_s = 0.0;      // steps in which all sequences decode, all tokens together; 0: there was none
  int64_t num_prefill_steps = 0;  // in which the prompts were read
  int64_t num_decode_steps = 0;   // gen_len of them, or those that the context has room for
  double kv_useful_share = 0.0;   // of the bytes in pages in use, averaged over the steps
};

// `seed` draws the prompts. The error says when the cell does not fit the engine's context or pages.
Result<BenchTimes> run_bench_cell(Engine& engine, const BenchCell& cell, uint64_t seed);

struct Spread {
  double median = 0.0;
  double min = 0.0;
  double max = 0.0;
};
Spread spread_of(std::vector<double> values);

}  // namespace quire::app

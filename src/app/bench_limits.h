// The fastest that this machine could prefill and decode a model, from its measured limits: the least work that a cell
// needs over the rate of the unit that does it. What `quire bench` reports its shares of.
#pragma once

#include "app/bench_run.h"
#include "app/model_arithmetic.h"
#include "base/machine_limits.h"
#include "models/model_config.h"

namespace quire::app {

struct BenchWork {
  const ModelConfig& config;
  int64_t weight_bytes = 0;        // read once a step
  int64_t kv_bytes_per_token = 0;  // over all layers
  ModelArithmetic arithmetic;
};

// Tokens a second of all sequences together.
struct BenchLimits {
  double prefill_tok_s = 0.0;
  double decode_tok_s = 0.0;
};

// Weights that one token is multiplied with.
double num_multiplied_weights(const ModelConfig& config);

BenchLimits bench_limits(const BenchWork& work, const BenchCell& cell, const MachineLimits& machine);

}  // namespace quire::app

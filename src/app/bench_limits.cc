#include "app/bench_limits.h"

#include <algorithm>

namespace quire::app {

namespace {

// Multiply-adds of one token in all linear layers but the head.
double linear_macs(const ModelConfig& config) {
  const double hidden = static_cast<double>(config.hidden_size);
  const double attention =
      hidden * (2.0 * static_cast<double>(config.query_size()) + 2.0 * static_cast<double>(config.kv_size()));
  const double mlp = 3.0 * hidden * static_cast<double>(config.intermediate_size);
  return config.num_layers * (attention + mlp);
}

double head_macs(const ModelConfig& config) {
  return static_cast<double>(config.hidden_size) * static_cast<double>(config.vocab_size);
}

// Multiply-adds of one query over `context` keys: scores and weighted values.
double attention_macs(const ModelConfig& config, double context) {
  double macs = 0.0;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const int window = config.window_of_layer(layer);
    const double seen = window > 0 ? std::min(context, static_cast<double>(window)) : context;
    macs += 2.0 * static_cast<double>(config.query_size()) * seen;
  }
  return macs;
}

// Multiply-adds a second.
double multiply_rate(const MachineLimits& machine, Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kInt8:
      return 1e9 * machine.int8_gops / 2.0;
    case Arithmetic::kBF16:
      return 1e9 * machine.bf16_gflops / 2.0;
    case Arithmetic::kF32:
      return 1e9 * machine.f32_gflops / 2.0;
  }
  return 0.0;
}

}  // namespace

double num_multiplied_weights(const ModelConfig& config) {
  return linear_macs(config) + head_macs(config);
}

BenchLimits bench_limits(const BenchWork& work, const BenchCell& cell, const MachineLimits& machine) {
  const double linear_rate = multiply_rate(machine, work.arithmetic.linear);
  const double attention_rate = multiply_rate(machine, work.arithmetic.attention);
  const double read_rate = 1e9 * machine.read_gbps;
  const double prompt = static_cast<double>(cell.prompt_len);
  const double batch = cell.batch_size;

  BenchLimits limits;
  const double prefill_seconds = linear_macs(work.config) / linear_rate +
                                 head_macs(work.config) / prompt / linear_rate +
                                 attention_macs(work.config, 0.5 * prompt) / attention_rate;
  limits.prefill_tok_s = 1.0 / prefill_seconds;

  const double context = prompt + 0.5 * static_cast<double>(cell.gen_len);
  const double compute_seconds = batch * ((linear_macs(work.config) + head_macs(work.config)) / linear_rate +
                                          attention_macs(work.config, context) / attention_rate);
  const double read_seconds =
      (static_cast<double>(work.weight_bytes) + batch * context * static_cast<double>(work.kv_bytes_per_token)) /
      read_rate;
  limits.decode_tok_s = batch / std::max(compute_seconds, read_seconds);
  return limits;
}

}  // namespace quire::app

#include "app/sameness.h"

#include <algorithm>

namespace quire::app {

namespace {

// What one sequence pays is time a layer, not a share of it: 12 to 14 us. That is a tenth of what 436 MB take (of
// Llama-3.1-8B, 115 us; H200), 7 % of the time of 550 MB (14B) and 5 % of that of 975 (32B).
constexpr int64_t kLeastLayerBytes = 550'000'000;

int64_t layer_bytes(const ModelConfig& config) {
  const int64_t of_attention = config.hidden_size * 2 * (config.query_size() + config.kv_size());
  return 2 * (of_attention + 3 * config.hidden_size * config.intermediate_size);
}

// The kernels of one order take these; else a slow one would stand in.
bool has_even_sizes(const ModelConfig& config) {
  const int64_t sizes[] = {config.hidden_size, config.query_size(), config.kv_size(), config.intermediate_size,
                           config.vocab_size};
  return std::all_of(std::begin(sizes), std::end(sizes), [](int64_t size) { return size % 8 == 0; });
}

bool are_multiplied_as_they_are(const EngineFlags& flags, WeightKind weights) {
  if (flags.compute == "f32" || flags.quantization == "fp8") return false;
  if (weights == WeightKind::kBF16) return flags.dtype == "auto" || flags.dtype == "bf16";
  return weights == WeightKind::kF16 && (flags.dtype == "auto" || flags.dtype == "f16");
}

}  // namespace

Sameness choose_sameness(const EngineFlags& flags, WeightKind weights, const ModelConfig& config) {
  if (flags.sameness == "strict") return Sameness::kStrict;
  if (flags.sameness == "off" || !flags.kernels.empty()) return Sameness::kOff;
  const bool is_cheap =
      are_multiplied_as_they_are(flags, weights) && layer_bytes(config) >= kLeastLayerBytes && has_even_sizes(config);
  return is_cheap ? Sameness::kInBatches : Sameness::kOff;
}

}  // namespace quire::app

// Rotary position embedding: from a model's parameters to the table of inverse frequencies that the rope op takes. The
// formulas are those of Hugging Face transformers, in float where it computes in float. Called at load.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

enum class RopeScaling : uint8_t {
  kNone,
  kLinear,    // all frequencies divided by factor
  kLlama3,    // low frequencies divided by factor, a smooth step between
  kYarn,      // "NTK by parts", and an attention factor
  kLongRope,  // a divisor for every frequency, one list for short contexts and one for long ones
};

std::string_view rope_scaling_name(RopeScaling scaling);

struct RopeConfig {
  double theta = 10000.0;
  int rotary_dim = 0;  // elements of a head that are rotated, even
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  int64_t original_context = 0;        // llama3, yarn, longrope: what the model saw before it was extended
  double low_frequency_factor = 1.0;   // llama3
  double high_frequency_factor = 4.0;  // llama3
  double beta_fast = 32.0;             // yarn: full turns in the original context
  double beta_slow = 1.0;
  bool truncates_correction_range = true;  // yarn
  double attention_factor = 1.0;           // multiplies cos and sin: yarn, longrope
  std::vector<float> short_factors;        // longrope
  std::vector<float> long_factors;
  std::vector<float>
      divisors;  // from a file that has the scaling already worked out (GGUF's rope_freqs.weight); or empty

  bool operator==(const RopeConfig&) const = default;
};

// One value a pair of rotated elements. `context_length` is the longest that this process will serve: longrope takes
// the long factors when it is past the original context, for every position and every sequence, because K in the cache
// cannot change its angle when a sequence grows past the border.
std::vector<float> inverse_frequencies(const RopeConfig& rope, int64_t context_length);

// What yarn multiplies cos and sin with when the file does not say.
double default_yarn_attention_factor(double factor, double mscale, double mscale_all_dim);
// Likewise for longrope.
double default_longrope_attention_factor(double factor, int64_t original_context);

// Ranges, and the lengths of the lists. `where` names the place in the file for messages.
Status check_rope_config(const RopeConfig& rope, int head_dim, std::string_view where);

}  // namespace quire

#include "models/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

namespace quire {
namespace {

constexpr double kTwoPi = 2.0 * std::numbers::pi;

// theta^(2i / dim) as a float; the exponent is a float first, as in the models' own training code.
float base_power(const RopeConfig& rope, int pair) {
  const float exponent = static_cast<float>(2 * pair) / static_cast<float>(rope.rotary_dim);
  return static_cast<float>(std::pow(rope.theta, static_cast<double>(exponent)));
}

float llama3_frequency(const RopeConfig& rope, float frequency) {
  const float low_wavelength =
      static_cast<float>(static_cast<double>(rope.original_context) / rope.low_frequency_factor);
  const float high_wavelength =
      static_cast<float>(static_cast<double>(rope.original_context) / rope.high_frequency_factor);
  const float factor = static_cast<float>(rope.factor);
  const float wavelength = static_cast<float>(kTwoPi) / frequency;
  if (wavelength > low_wavelength) return frequency / factor;
  if (wavelength < high_wavelength) return frequency;
  const float smooth =
      (static_cast<float>(rope.original_context) / wavelength - static_cast<float>(rope.low_frequency_factor)) /
      static_cast<float>(rope.high_frequency_factor - rope.low_frequency_factor);
  return (1.0f - smooth) * frequency / factor + smooth * frequency;
}

// The pair index, as a real number, whose wavelength turns `num_rotations` times in the original context.
double yarn_correction_index(const RopeConfig& rope, double num_rotations) {
  return rope.rotary_dim * std::log(static_cast<double>(rope.original_context) / (num_rotations * kTwoPi)) /
         (2.0 * std::log(rope.theta));
}

std::vector<float> yarn_frequencies(const RopeConfig& rope) {
  double low = yarn_correction_index(rope, rope.beta_fast);
  double high = yarn_correction_index(rope, rope.beta_slow);
  if (rope.truncates_correction_range) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rope.rotary_dim - 1));
  if (low == high) high += 0.001;
  std::vector<float> frequencies(static_cast<size_t>(rope.rotary_dim / 2));
  for (int pair = 0; pair < rope.rotary_dim / 2; ++pair) {
    const float power = base_power(rope, pair);
    const float ramp =
        std::clamp((static_cast<float>(pair) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f, 1.0f);
    const float kept = 1.0f - ramp;
    const float interpolated = 1.0f / (static_cast<float>(rope.factor) * power);
    frequencies[static_cast<size_t>(pair)] = interpolated * (1.0f - kept) + 1.0f / power * kept;
  }
  return frequencies;
}

}  // namespace

std::string_view rope_scaling_name(RopeScaling scaling) {
  switch (scaling) {
    case RopeScaling::kNone:
      return "none";
    case RopeScaling::kLinear:
      return "linear";
    case RopeScaling::kLlama3:
      return "llama3";
    case RopeScaling::kYarn:
      return "yarn";
    case RopeScaling::kLongRope:
      return "longrope";
  }
  return "?";
}

std::vector<float> inverse_frequencies(const RopeConfig& rope, int64_t context_length) {
  std::vector<float> frequencies(static_cast<size_t>(rope.rotary_dim / 2));
  if (rope.scaling == RopeScaling::kYarn) {
    frequencies = yarn_frequencies(rope);
  } else {
    const std::vector<float>& factors = context_length > rope.original_context ? rope.long_factors : rope.short_factors;
    for (int pair = 0; pair < rope.rotary_dim / 2; ++pair) {
      const size_t i = static_cast<size_t>(pair);
      float power = base_power(rope, pair);
      if (rope.scaling == RopeScaling::kLongRope) power *= factors[i];
      frequencies[i] = 1.0f / power;
      if (rope.scaling == RopeScaling::kLinear) frequencies[i] /= static_cast<float>(rope.factor);
      if (rope.scaling == RopeScaling::kLlama3) frequencies[i] = llama3_frequency(rope, frequencies[i]);
    }
  }
  for (size_t i = 0; i < rope.divisors.size(); ++i) frequencies[i] /= rope.divisors[i];
  return frequencies;
}

double default_yarn_attention_factor(double factor, double mscale, double mscale_all_dim) {
  const auto scale = [factor](double m) { return factor <= 1.0 ? 1.0 : 0.1 * m * std::log(factor) + 1.0; };
  if (mscale != 0.0 && mscale_all_dim != 0.0) return scale(mscale) / scale(mscale_all_dim);
  return scale(1.0);
}

double default_longrope_attention_factor(double factor, int64_t original_context) {
  if (factor <= 1.0) return 1.0;
  return std::sqrt(1.0 + std::log(factor) / std::log(static_cast<double>(original_context)));
}

Status check_rope_config(const RopeConfig& rope, int head_dim, std::string_view where) {
  const std::string prefix = std::string(where) + ": ";
  if (rope.rotary_dim < 2 || rope.rotary_dim > head_dim || rope.rotary_dim % 2 != 0) {
    return invalid_argument(prefix + "the rotated part of a head must be even and between 2 and head_dim (" +
                            std::to_string(head_dim) + "), but is " + std::to_string(rope.rotary_dim));
  }
  const size_t num_pairs = static_cast<size_t>(rope.rotary_dim / 2);
  const bool needs_original_context = rope.scaling == RopeScaling::kLlama3 || rope.scaling == RopeScaling::kYarn ||
                                      rope.scaling == RopeScaling::kLongRope;
  if (needs_original_context && rope.original_context < 2) {
    return invalid_argument(prefix + "scaling " + std::string(rope_scaling_name(rope.scaling)) +
                            " needs the original context length, at least 2 tokens");
  }
  if (rope.scaling == RopeScaling::kLlama3 && !(rope.high_frequency_factor > rope.low_frequency_factor)) {
    return invalid_argument(prefix + "high_freq_factor must be greater than low_freq_factor");
  }
  if (rope.scaling == RopeScaling::kYarn && !(rope.theta > 1.0)) {
    return invalid_argument(prefix + "yarn needs rope_theta greater than 1");
  }
  const auto is_positive = [](float value) { return std::isfinite(value) && value > 0.0f; };
  const auto check_list = [&](const std::vector<float>& list, bool may_be_empty, const char* name) -> Status {
    if (list.empty() && may_be_empty) return ok_status();
    if (list.size() != num_pairs) {
      return invalid_argument(prefix + name + " must have " + std::to_string(num_pairs) +
                              " numbers (half of the rotated part of a head), but has " + std::to_string(list.size()));
    }
    if (!std::all_of(list.begin(), list.end(), is_positive)) {
      return invalid_argument(prefix + name + " must hold positive numbers");
    }
    return ok_status();
  };
  const bool is_longrope = rope.scaling == RopeScaling::kLongRope;
  RETURN_IF_ERROR(check_list(rope.short_factors, !is_longrope, "short_factor"));
  RETURN_IF_ERROR(check_list(rope.long_factors, !is_longrope, "long_factor"));
  return check_list(rope.divisors, true, "rope_freqs.weight");
}

}  // namespace quire

// RoPE frequencies: transformers' numbers for every kind of scaling (tests/goldens/rope_tables.txt), read from
// config.json texts, and the published factors of Llama-3.x.
#include "models/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "models/config_parser.h"

namespace quire {
namespace {

// Steps between neighbouring floats.
int64_t ulps_apart(float a, float b) {
  return std::abs(static_cast<int64_t>(std::bit_cast<int32_t>(a)) - std::bit_cast<int32_t>(b));
}

TEST(Rope, TablesEqualTransformers) {
  std::ifstream file(std::string(QUIRE_SOURCE_DIR) + "/tests/goldens/rope_tables.txt");
  ASSERT_TRUE(file.is_open());
  ModelConfig config;
  int num_tables = 0;
  int64_t num_values = 0;
  int64_t num_equal = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "config") {
      auto parsed = parse_hf_config(std::string_view(line).substr(7), "");
      ASSERT_TRUE(parsed.is_ok()) << parsed.status().message() << "\n" << line;
      config = parsed.value().config;
      continue;
    }
    ASSERT_EQ(kind, "table");
    ++num_tables;
    std::string layer;
    int64_t context = 0;
    double attention_factor = 0.0;
    words >> layer >> context >> attention_factor;
    const RopeConfig& rope = layer == "full_attention" ? config.rope : config.sliding_rope;
    EXPECT_NEAR(rope.attention_factor, attention_factor, 1e-12) << line.substr(0, 60);
    const std::vector<float> ours = inverse_frequencies(rope, context);
    size_t i = 0;
    for (float value; words >> value; ++i) {
      ASSERT_LT(i, ours.size());
      // torch's vectorised pow is off by one step at times.
      EXPECT_LE(ulps_apart(ours[i], value), 2)
          << "table " << num_tables << ", pair " << i << ": " << ours[i] << " " << value;
      ++num_values;
      num_equal += ours[i] == value ? 1 : 0;
    }
    EXPECT_EQ(i, ours.size());
  }
  EXPECT_EQ(num_tables, 21);
  EXPECT_GT(num_equal, num_values * 9 / 10) << num_equal << " of " << num_values;
}

// Frequency over that of no scaling.
std::vector<double> llama3_ratios(int dim, double factor) {
  RopeConfig plain;
  plain.theta = 500000.0;
  plain.rotary_dim = dim;
  RopeConfig scaled = plain;
  scaled.scaling = RopeScaling::kLlama3;
  scaled.factor = factor;
  scaled.original_context = 8192;
  const std::vector<float> a = inverse_frequencies(scaled, 8192);
  const std::vector<float> b = inverse_frequencies(plain, 8192);
  std::vector<double> ratios;
  for (size_t i = 0; i < a.size(); ++i) ratios.push_back(static_cast<double>(a[i]) / static_cast<double>(b[i]));
  return ratios;
}

TEST(Rope, Llama3KeepsBlendsAndDivides) {
  const std::vector<double> small = llama3_ratios(64, 32.0);
  for (size_t i = 0; i <= 14; ++i) EXPECT_EQ(small[i], 1.0) << i;
  EXPECT_NEAR(small[15], 0.605573, 1e-6);
  EXPECT_NEAR(small[16], 0.303743, 1e-6);
  EXPECT_NEAR(small[17], 0.103448, 1e-6);
  for (size_t i = 18; i < 32; ++i) EXPECT_NEAR(small[i], 1.0 / 32, 1e-8) << i;

  const std::vector<double> large = llama3_ratios(128, 8.0);
  for (size_t i = 0; i <= 28; ++i) EXPECT_EQ(large[i], 1.0) << i;
  EXPECT_NEAR(large[29], 0.828168, 1e-6);
  EXPECT_NEAR(large[30], 0.643743, 1e-6);
  EXPECT_NEAR(large[34], 0.190211, 1e-6);
  for (size_t i = 35; i < 64; ++i) EXPECT_NEAR(large[i], 1.0 / 8, 1e-8) << i;
}

TEST(Rope, DivisorsOfAFileComeOnTop) {
  RopeConfig rope;
  rope.rotary_dim = 4;
  rope.divisors = {1.0f, 4.0f};
  const std::vector<float> frequencies = inverse_frequencies(rope, 100);
  EXPECT_EQ(frequencies[0], 1.0f);
  EXPECT_EQ(frequencies[1], 0.01f / 4.0f);
}

TEST(Rope, BadParametersAreRefused) {
  RopeConfig good;
  good.rotary_dim = 64;
  EXPECT_TRUE(check_rope_config(good, 64, "x").is_ok());
  const auto is_bad = [&](auto change) {
    RopeConfig rope = good;
    change(rope);
    return !check_rope_config(rope, 64, "x").is_ok();
  };
  EXPECT_TRUE(is_bad([](RopeConfig& r) { r.rotary_dim = 0; }));
  EXPECT_TRUE(is_bad([](RopeConfig& r) { r.rotary_dim = 63; }));
  EXPECT_TRUE(is_bad([](RopeConfig& r) { r.rotary_dim = 66; }));
  EXPECT_TRUE(is_bad([](RopeConfig& r) { r.scaling = RopeScaling::kLlama3; }));  // no original context
  EXPECT_TRUE(is_bad([](RopeConfig& r) {
    r.scaling = RopeScaling::kLlama3;
    r.original_context = 8192;
    r.low_frequency_factor = r.high_frequency_factor;
  }));
  EXPECT_TRUE(is_bad([](RopeConfig& r) {
    r.scaling = RopeScaling::kLongRope;
    r.original_context = 4096;
    r.short_factors.assign(32, 1.0f);
    r.long_factors.assign(31, 1.0f);
  }));
  EXPECT_TRUE(is_bad([](RopeConfig& r) { r.divisors.assign(32, 0.0f); }));
  EXPECT_TRUE(is_bad([](RopeConfig& r) { r.divisors.assign(32, NAN); }));
}

}  // namespace
}  // namespace quire

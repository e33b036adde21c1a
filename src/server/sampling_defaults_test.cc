#include "server/sampling_defaults.h"

#include <gtest/gtest.h>

#include "weights/testing/gguf_writer.h"

namespace quire {
namespace {

TEST(SamplingDefaults, OfGenerationConfig) {
  const SamplingDefaults defaults = parse_generation_config(
      R"({"do_sample":true,"temperature":0.7,"top_p":0.8,"top_k":20,"min_p":null,"repetition_penalty":1.05,
          "max_new_tokens":2048,"eos_token_id":[1,2],"n":7})");
  EXPECT_FLOAT_EQ(defaults.params.temperature, 0.7f);
  EXPECT_FLOAT_EQ(defaults.params.top_p, 0.8f);
  EXPECT_EQ(defaults.params.top_k, 20);
  EXPECT_FLOAT_EQ(defaults.params.repetition_penalty, 1.05f);
  EXPECT_FLOAT_EQ(defaults.params.min_p, 0.0f);
  EXPECT_EQ(defaults.params.n, 1);
  EXPECT_EQ(defaults.params.max_tokens, SamplingParams().max_tokens);
  EXPECT_EQ(defaults.told, "temperature 0.7, top_p 0.8, top_k 20, repetition_penalty 1.05");
  EXPECT_TRUE(defaults.faults.empty());
}

TEST(SamplingDefaults, LeaveOutWhatMakesNoSense) {
  const SamplingDefaults defaults = parse_generation_config(R"({"temperature":"hot","top_p":7,"top_k":-1})");
  EXPECT_EQ(defaults.faults.size(), 2u);
  EXPECT_FLOAT_EQ(defaults.params.temperature, 1.0f);
  EXPECT_FLOAT_EQ(defaults.params.top_p, 1.0f);
  EXPECT_EQ(defaults.params.top_k, -1);
  for (const char* text : {"", "[]", "{", "null"}) EXPECT_EQ(parse_generation_config(text).faults.size(), 1u) << text;
}

TEST(SamplingDefaults, OfGguf) {
  testing::GgufWriter writer;
  writer.add_string("general.architecture", "llama");
  writer.add_f32("general.sampling.temp", 0.6f);
  writer.add_f32("general.sampling.top_p", 0.95f);
  writer.add_i32("general.sampling.top_k", 20);
  writer.add_string("general.sampling.min_p", "none");
  const testing::Bytes bytes = writer.finish();
  const GgufFile::Part part{"model.gguf", bytes};
  const auto file = GgufFile::parse({&part, 1}, nullptr);
  ASSERT_TRUE(file.is_ok()) << file.status().message();
  const SamplingDefaults defaults = read_gguf_sampling_defaults(*file.value());
  EXPECT_FLOAT_EQ(defaults.params.temperature, 0.6f);
  EXPECT_EQ(defaults.params.top_k, 20);
  EXPECT_EQ(defaults.told, "temperature 0.6, top_p 0.95, top_k 20");
  ASSERT_EQ(defaults.faults.size(), 1u);
  EXPECT_NE(defaults.faults[0].find("min_p"), std::string::npos);
}

}  // namespace
}  // namespace quire

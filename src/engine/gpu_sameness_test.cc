// The same on a GPU of which it is asked (BackendOptions::is_strict): a sequence of a prompt and drawn tokens has the
// same logits, bit for bit, whatever runs beside it, in any chunks of its prompt, from kept pages, forked, and after it
// gave way. Prompts and drawn tokens have orders of sums of their own, so what is compared has equally many of both.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <optional>
#include <random>

#include "engine/testing/sameness_driver.h"
#include "engine/testing/tiny_llama.h"
#include "weights/testing/test_folder.h"

namespace quire {
namespace {

using testing::Driver;
using testing::expect_same;
using testing::LogitsByPosition;
using testing::Setting;
using testing::Tokens;

constexpr int kLength = 300;
constexpr int kPrompt = 270;

struct Case {
  std::string name;
  DType kv_dtype = DType::kBF16;
  Compute compute = Compute::kAuto;
  WeightQuantization weight_quantization = WeightQuantization::kNone;
  std::string of = "";  // what the test's name adds
  std::optional<FormatId> random_format = {};
};

// Products of the size that models have, so that k comes in parts.
constexpr const char* kLargerLlama = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 2, "num_attention_heads": 16,
    "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 1000, "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": false, "hidden_act": "silu",
    "torch_dtype": "bfloat16"})";

Case larger(const char* name, FormatId format, WeightQuantization quantization = WeightQuantization::kNone) {
  const DType kv_dtype = quantization == WeightQuantization::kF8   ? DType::kF8E4M3
                         : quantization == WeightQuantization::kI8 ? DType::kI8
                                                                   : DType::kBF16;
  return {"larger", kv_dtype, Compute::kAuto, quantization, std::string("_weights_") + name, format};
}

class GpuSameness : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    BackendOptions options{.kind = BackendKind::kCuda};
    options.is_strict = true;
    const Status status = has_cuda_backend() ? create_ops(options).status() : unavailable("a build without CUDA");
    if (status.code() == StatusCode::kUnavailable) GTEST_SKIP() << "this machine has no GPU";
    ASSERT_TRUE(status.is_ok()) << status.message();
    main_ = tokens(kLength);
  }

  Checkpoint open() {
    const Case& c = GetParam();
    if (c.random_format.has_value()) {
      folder_.write_text("config.json", kLargerLlama);
      return open_checkpoint(folder_.path(), {.needs_tensors = false}).value();
    }
    if (c.name == "quantized") {
      return open_checkpoint(folder_.write("tiny.gguf", testing::tiny_quantized_llama())).value();
    }
    Checkpoint checkpoint = open_checkpoint(std::string(QUIRE_SOURCE_DIR) + "/tests/goldens/models/" + c.name).value();
    boost::json::object config = boost::json::parse(*checkpoint.config_json).get_object();
    config["max_position_embeddings"] = 1024;
    checkpoint.config_json = boost::json::serialize(config);
    return checkpoint;
  }

  Setting setting() const {
    return {.backend = BackendKind::kCuda,
            .weight_quantization = GetParam().weight_quantization,
            .is_strict = true,
            .random_format = GetParam().random_format,
            .compute = GetParam().compute,
            .kv_dtype = GetParam().kv_dtype};
  }

  Tokens tokens(int count) {
    Tokens result;
    for (int i = 0; i < count; ++i) result.push_back(static_cast<int32_t>(random_() % testing::kTinyLlamaVocab));
    return result;
  }

  LogitsByPosition alone(const Tokens& tokens, int num_prompt) {
    Driver driver(open(), setting());
    const int index = driver.add(tokens, num_prompt);
    driver.run();
    return driver.logits(index);
  }

  Tokens main_;

 private:
  testing::TestFolder folder_;
  std::mt19937 random_{23};
};

TEST_P(GpuSameness, WhateverRunsBeside) {
  const LogitsByPosition expected = alone(main_, kPrompt);
  ASSERT_EQ(expected.size(), static_cast<size_t>(kLength));
  std::vector<Tokens> others;
  for (const int length : {17, 140, 1, 64, 301, 33}) others.push_back(tokens(length));
  for (const int budget : {24, 100, 512}) {
    Setting changed = setting();
    changed.max_num_batched_tokens = budget;
    Driver driver(open(), changed);
    driver.add(others[0], 5);
    driver.add(others[1], 100);
    const int index = driver.add(main_, kPrompt);
    for (size_t i = 2; i < others.size(); ++i) driver.add(others[i], static_cast<int>(others[i].size() + 1) / 2);
    driver.run();
    expect_same(driver.logits(index), expected, kLength, "chunked, in a batch of 7");
  }
  for (const int page_size : {32, 128}) {
    Setting changed = setting();
    changed.page_size = page_size;
    changed.num_pages = 6400 / page_size;
    changed.max_num_batched_tokens = 50;
    Driver driver(open(), changed);
    const int index = driver.add(main_, kPrompt);
    driver.add(others[1], 100);
    driver.run();
    expect_same(driver.logits(index), expected, kLength, "page size");
  }
  Setting many = setting();
  many.max_num_seqs = 90;
  many.num_pages = 1000;
  Driver driver(open(), many);
  const int index = driver.add(main_, kPrompt);
  for (int i = 0; i < 85; ++i) {
    const int length = 30 + i % 7;
    driver.add(tokens(length), length - 20, /*wants_prompt_logits=*/false);
  }
  driver.run();
  expect_same(driver.logits(index), expected, kLength, "one of 86");
}

TEST_P(GpuSameness, ForkedOrNot) {
  Tokens right(main_.begin(), main_.begin() + 150);
  const Tokens rest = tokens(150);
  right.insert(right.end(), rest.begin(), rest.end());
  for (const int num_prompt : {144, 141}) {
    Driver driver(open(), setting());
    const int index = driver.add(main_, num_prompt);
    driver.fork_at(index, 150, right);
    driver.run();
    expect_same(driver.logits(index), alone(main_, num_prompt), kLength, "the parent");
    expect_same(driver.logits(driver.forked(0)), alone(right, num_prompt), 150, "the fork");
  }
}

TEST_P(GpuSameness, KeptPages) {
  const LogitsByPosition of_200 = alone(main_, 200);
  const LogitsByPosition of_280 = alone(main_, 280);
  Setting changed = setting();
  changed.has_prefix_cache = true;
  changed.max_num_batched_tokens = 64;
  Driver driver(open(), changed);
  driver.add(main_, 200);
  driver.run();
  const bool has_window = GetParam().name == "mistral";  // the beginning is left behind before it could be kept
  const int again = driver.add(main_, 200, /*wants_prompt_logits=*/false);
  driver.run();
  EXPECT_EQ(driver.num_cached_tokens(again), has_window ? 0 : 192);
  expect_same(driver.logits(again), of_200, 100, "from kept pages");
  // A conversation goes on: what was drawn is of the prompt now, and is read as such.
  const int next = driver.add(main_, 280, /*wants_prompt_logits=*/false);
  driver.run();
  EXPECT_EQ(driver.num_cached_tokens(next), has_window ? 0 : 192);
  expect_same(driver.logits(next), of_280, 20, "the next turn");
}

TEST_P(GpuSameness, Preemption) {
  Setting changed = setting();
  changed.max_num_batched_tokens = 200;
  changed.num_pages = 22;  // of 19 that one sequence needs
  for (const bool has_prefix_cache : {false, true}) {
    changed.has_prefix_cache = has_prefix_cache;
    Driver driver(open(), changed);
    std::vector<std::pair<int, int>> added;
    for (const int num_prompt : {100, 90, 10}) {
      added.emplace_back(num_prompt, driver.add(main_, num_prompt, /*wants_prompt_logits=*/false));
    }
    driver.run();
    for (const auto& [num_prompt, index] : added) {
      expect_same(driver.logits(index), alone(main_, num_prompt), static_cast<size_t>(kLength - num_prompt + 1),
                  "preempted");
    }
    // Where layers have a window, few pages are held at a time.
    if (GetParam().name != "mistral" && GetParam().name != "gemma3") {
      EXPECT_GT(driver.num_preempted, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, GpuSameness,
    ::testing::Values(Case{"quantized"}, Case{"quantized", DType::kF8E4M3}, Case{"quantized", DType::kI8},
                      Case{"quantized", DType::kF32, Compute::kF32}, Case{"qwen3"}, Case{"gemma3"}, Case{"mistral"},
                      Case{"llama", DType::kBF16, Compute::kAuto, WeightQuantization::kF8, "_weights_e4m3"},
                      Case{"llama", DType::kBF16, Compute::kAuto, WeightQuantization::kI8, "_weights_int8"},
                      larger("bf16", FormatId::kBF16), larger("e4m3", FormatId::kBF16, WeightQuantization::kF8),
                      larger("int8", FormatId::kBF16, WeightQuantization::kI8),
                      larger("int4_g128", FormatId::kInt4G128), larger("q4_k", FormatId::kQ4_K),
                      larger("q8_0", FormatId::kQ8_0), larger("q4_1", FormatId::kQ4_1)),
    [](const auto& test) {
      return test.param.name + (test.param.compute == Compute::kF32 ? "_f32_kv_" : "_kv_") +
             std::string(dtype_name(test.param.kv_dtype)) + test.param.of;
    });

}  // namespace
}  // namespace quire

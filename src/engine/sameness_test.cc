// One generation gives the same logits, bit for bit, whatever runs beside it: alone or in a batch of 7, whole prompt or
// chunks or token by token, 1 or 2 threads, any page size, forked or not, from kept pages or computed, preempted or
// not. Small random models with real kernels, contexts over more than two attention chunks, both computes, each KV
// dtype, on the CPU (gpu_sameness_test.cc has a GPU). All KV memory is NaN before.
#include <gtest/gtest.h>

#include <boost/json.hpp>
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

constexpr int64_t kVocab = testing::kTinyLlamaVocab;

struct Case {
  std::string name;
  Compute compute = Compute::kF32;
  DType kv_dtype = DType::kF32;
};

class Sameness : public ::testing::TestWithParam<Case> {
 protected:
  // Opens the model of the case; goldens get a longer context than they were saved with.
  Checkpoint open() {
    const Case& c = GetParam();
    if (c.name == "quantized") {
      return open_checkpoint(folder_.write("tiny.gguf", testing::tiny_quantized_llama())).value();
    }
    Checkpoint checkpoint = open_checkpoint(std::string(QUIRE_SOURCE_DIR) + "/tests/goldens/models/" + c.name).value();
    boost::json::object config = boost::json::parse(*checkpoint.config_json).get_object();
    config["max_position_embeddings"] = 1024;
    checkpoint.config_json = boost::json::serialize(config);
    return checkpoint;
  }

  Setting setting() const { return {.compute = GetParam().compute, .kv_dtype = GetParam().kv_dtype}; }

  Tokens tokens(int count) {
    Tokens result;
    for (int i = 0; i < count; ++i) result.push_back(static_cast<int32_t>(random_() % kVocab));
    return result;
  }

 private:
  testing::TestFolder folder_;
  std::mt19937 random_{23};
};

TEST_P(Sameness, WhateverRunsBeside) {
  const Checkpoint checkpoint = open();
  const Tokens main = tokens(300);  // three attention chunks of 128
  const size_t num_prompt = 270;
  std::vector<Tokens> others;
  for (const int length : {17, 140, 1, 64, 301, 33}) others.push_back(tokens(length));

  Driver alone(checkpoint, setting());
  const int base = alone.add(main, 300);  // all at once
  alone.run();
  const LogitsByPosition& expected = alone.logits(base);
  ASSERT_EQ(expected.size(), 300u);

  for (const int num_threads : {1, 2}) {
    Setting changed = setting();
    changed.num_threads = num_threads;
    {
      Driver driver(checkpoint, changed);
      const int whole = driver.add(main, static_cast<int>(num_prompt));
      const int by_token = driver.add(main, 1);
      driver.run();
      expect_same(driver.logits(whole), expected, 300, "whole prompt, then decode");
      expect_same(driver.logits(by_token), expected, 300, "token by token");
    }
    for (const int budget : {24, 100}) {
      changed.max_num_batched_tokens = budget;
      Driver driver(checkpoint, changed);
      std::vector<int> indices = {driver.add(others[0], 5), driver.add(others[1], 100)};
      const int index = driver.add(main, static_cast<int>(num_prompt));
      for (size_t i = 2; i < others.size(); ++i) driver.add(others[i], static_cast<int>(others[i].size() + 1) / 2);
      driver.run();
      expect_same(driver.logits(index), expected, 300, "chunked, in a batch of 7");
    }
    changed.max_num_batched_tokens = 50;
    for (const int page_size : {8, 32, 128, 256}) {
      changed.page_size = page_size;
      changed.num_pages = 6400 / page_size;
      Driver driver(checkpoint, changed);
      const int index = driver.add(main, static_cast<int>(num_prompt));
      driver.add(others[1], 100);
      driver.run();
      expect_same(driver.logits(index), expected, 300, "page size");
    }
  }
}

// F028: the first of 46, beside neighbours of the same lengths, in the same pages, but with other contents; and alone.
TEST_P(Sameness, NeighboursContentsAndNumber) {
  const Checkpoint checkpoint = open();
  Setting changed = setting();
  const Tokens main = tokens(40);
  Driver alone(checkpoint, changed);
  const int base = alone.add(main, 40);
  alone.run();
  changed.max_num_seqs = 46;
  changed.num_threads = 2;
  for (int round = 0; round < 2; ++round) {
    Driver driver(checkpoint, changed);
    const int index = driver.add(main, 30);
    for (int i = 0; i < 45; ++i) {
      const int length = 30 + i % 7;
      driver.add(tokens(length), length - 10, /*wants_prompt_logits=*/false);
    }
    driver.run();
    expect_same(driver.logits(index), alone.logits(base), 40, "one of 46");
  }
}

TEST_P(Sameness, ForkedOrNot) {
  const Checkpoint checkpoint = open();
  Setting changed = setting();
  changed.num_threads = 2;
  Tokens left = tokens(300);
  Tokens right(left.begin(), left.begin() + 150);
  const Tokens rest = tokens(150);
  right.insert(right.end(), rest.begin(), rest.end());

  Driver alone(checkpoint, setting());
  const int left_alone = alone.add(left, 300);
  alone.run();
  Driver right_alone_driver(checkpoint, setting());
  const int right_alone = right_alone_driver.add(right, 300);
  right_alone_driver.run();

  for (const int prompt_length : {144, 150}) {  // forked at a page's end or inside a page
    changed.page_size = 16;
    Driver driver(checkpoint, changed);
    const int index = driver.add(left, prompt_length);
    driver.fork_at(index, 150, right);
    driver.run();
    expect_same(driver.logits(index), alone.logits(left_alone), 300, "the parent");
    expect_same(driver.logits(driver.forked(0)), right_alone_driver.logits(right_alone), 150, "the fork");
  }
}

TEST_P(Sameness, KeptPagesAndPreemption) {
  const Checkpoint checkpoint = open();
  const Tokens main = tokens(300);
  Driver alone(checkpoint, setting());
  const int base = alone.add(main, 300);
  alone.run();
  const LogitsByPosition& expected = alone.logits(base);

  Setting changed = setting();
  changed.has_prefix_cache = true;
  changed.max_num_batched_tokens = 64;
  {
    Driver driver(checkpoint, changed);
    driver.add(main, 200);
    driver.run();
    const int again = driver.add(main, 280, /*wants_prompt_logits=*/false);
    driver.run();
    // Where all layers have a window, the beginning has been left behind before it could be kept.
    EXPECT_EQ(driver.num_cached_tokens(again), GetParam().name == "mistral" ? 0 : 272);
    expect_same(driver.logits(again), expected, 20, "from kept pages");
  }
  changed.has_prefix_cache = false;
  changed.num_pages = 22;  // of 19 that one sequence needs
  changed.num_threads = 2;
  {
    Driver driver(checkpoint, changed);
    const int first = driver.add(main, 100);
    const int second = driver.add(main, 90);
    const int third = driver.add(main, 10);
    driver.run();
    for (const int index : {first, second, third}) {
      expect_same(driver.logits(index), expected, 300, "preempted");
    }
    // Where layers have a window, few pages are held at a time.
    if (GetParam().name != "mistral" && GetParam().name != "gemma3") {
      EXPECT_GT(driver.num_preempted, 0);
    }
  }
}

// Where prompts and drawn tokens are taken apart, as a GPU needs it: here it changes no bit, so that all that is shown
// is that the parts are those of the sequence.
TEST_P(Sameness, InPartsOrNot) {
  const Checkpoint checkpoint = open();
  const Tokens main = tokens(300);
  Driver alone(checkpoint, setting());
  const int base = alone.add(main, 300);
  alone.run();
  Setting changed = setting();
  changed.is_strict = true;
  changed.max_num_batched_tokens = 200;
  changed.num_pages = 22;
  for (const int64_t num_cached : {0, 192, 272}) {
    changed.has_prefix_cache = num_cached > 0;
    changed.shares_drawn_pages = num_cached > 192;
    Driver driver(checkpoint, changed);
    const int again = driver.add(main, 200, /*wants_prompt_logits=*/false);
    driver.run();
    const int next = driver.add(main, 280, /*wants_prompt_logits=*/false);
    driver.run();
    EXPECT_EQ(driver.num_cached_tokens(next), num_cached);  // 192: only what the first had of its prompt
    std::vector<int> indices = {again, next};
    for (const int num_prompt : {100, 90, 10}) {
      indices.push_back(driver.add(main, num_prompt, /*wants_prompt_logits=*/false));
    }
    driver.run();
    for (const int index : indices) expect_same(driver.logits(index), alone.logits(base), 20, "in parts");
    if (GetParam().name != "mistral" && GetParam().name != "gemma3") {
      EXPECT_GT(driver.num_preempted, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, Sameness,
    ::testing::Values(Case{"quantized", Compute::kF32, DType::kF32}, Case{"quantized", Compute::kF32, DType::kF16},
                      Case{"quantized", Compute::kAuto, DType::kF16}, Case{"quantized", Compute::kAuto, DType::kBF16},
                      Case{"gemma3", Compute::kF32, DType::kF32}, Case{"gemma3", Compute::kAuto, DType::kF16},
                      Case{"mistral", Compute::kF32, DType::kF32}, Case{"qwen3", Compute::kAuto, DType::kF16}),
    [](const auto& test) {
      return test.param.name + (test.param.compute == Compute::kF32 ? "_f32_kv_" : "_auto_kv_") +
             std::string(dtype_name(test.param.kv_dtype));
    });

}  // namespace
}  // namespace quire

// Requests that are wrong, and the memory plan's arithmetic: each error names the field or the flag.
#include "engine/request.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/memory_plan.h"

namespace quire {
namespace {

const RequestLimits kLimits = {.vocab_size = 100, .max_model_len = 50, .max_n = 8};

Status check(const SamplingParams& sampling, std::vector<int32_t> prompt = {1, 2}) {
  return validate_request(Request::from_tokens(std::move(prompt), sampling, nullptr), kLimits);
}

void expect_refused(const Status& status, const std::string& field) {
  ASSERT_FALSE(status.is_ok()) << field;
  EXPECT_NE(status.message().find(field), std::string::npos) << status.message();
}

// F032, F034, F038.
TEST(Request, WhatIsWrongIsNamed) {
  EXPECT_TRUE(check({}).is_ok());
  EXPECT_TRUE(check({.top_k = -1, .max_tokens = 0}).is_ok());
  EXPECT_TRUE(check({}, {0, 99}).is_ok());
  expect_refused(check({}, {}), "prompt");
  expect_refused(check({}, {-1}), "prompt");
  expect_refused(check({}, {100}), "prompt");
  expect_refused(check({.n = 0}), "n:");
  expect_refused(check({.n = 1000000}), "n:");
  expect_refused(check({.n = 9}), "--max-num-seqs");
  expect_refused(check({.temperature = -1.0f}), "temperature");
  expect_refused(check({.temperature = std::nanf("")}), "temperature");
  expect_refused(check({.top_k = -2}), "top_k");
  expect_refused(check({.top_p = 1.1f}), "top_p");
  expect_refused(check({.min_p = -0.1f}), "min_p");
  expect_refused(check({.typical_p = 2.0f}), "typical_p");
  expect_refused(check({.repetition_penalty = 0.0f}), "repetition_penalty");
  EXPECT_TRUE(check({.repetition_penalty = 0.01f}).is_ok());
  expect_refused(check({.presence_penalty = 3.0f}), "presence_penalty");
  expect_refused(check({.frequency_penalty = -3.0f}), "frequency_penalty");
  expect_refused(check({.logit_bias = {{101, 1.0f}}}), "logit_bias");
  expect_refused(check({.logit_bias = {{-1, 1.0f}}}), "logit_bias");
  expect_refused(check({.logit_bias = {{1, std::nanf("")}}}), "logit_bias");
  expect_refused(check({.allowed_token_ids = {100}}), "allowed_token_ids");
  expect_refused(check({.banned_token_ids = {-5}}), "banned_token_ids");
  expect_refused(check({.max_tokens = -1}), "max_tokens");
  expect_refused(check({.max_tokens = int64_t{1} << 31}), "max_tokens");
  expect_refused(check({.max_tokens = 5, .min_tokens = 6}), "min_tokens");
  expect_refused(check({.stop_token_ids = std::vector<int32_t>(100000, 1)}), "stop_token_ids");
  expect_refused(check({.num_logprobs = 1000}), "logprobs");
  expect_refused(check({.num_prompt_logprobs = -2}), "prompt_logprobs");
}

MemoryPlanInput plan_input() {
  MemoryPlanInput input;
  input.available_bytes = int64_t{1} << 30;
  input.scratch_bytes = int64_t{100} << 20;
  input.page_bytes = int64_t{1} << 20;
  input.memory_share = 0.5;
  input.model_max_context = 4096;
  input.max_num_seqs = 16;
  input.pages_of_sequence = [](int64_t num_tokens) { return (num_tokens + 15) / 16; };
  return input;
}

TEST(MemoryPlan, AShareLessTheScratchBecomesPages) {
  const auto plan = plan_memory(plan_input());
  ASSERT_TRUE(plan.is_ok());
  EXPECT_EQ(plan.value().num_pages, 412);
  EXPECT_EQ(plan.value().max_model_len, 4096);
  EXPECT_FALSE(plan.value().is_max_model_len_reduced);
  EXPECT_NE(plan.value().to_string().find("412 pages"), std::string::npos);
}

TEST(MemoryPlan, NoMorePagesThanAllSeatsCanFill) {
  MemoryPlanInput input = plan_input();
  input.available_bytes = int64_t{1} << 40;
  const auto plan = plan_memory(input);
  ASSERT_TRUE(plan.is_ok());
  EXPECT_LT(plan.value().num_pages, 16 * 256 + 100);
}

TEST(MemoryPlan, ContextGivesWayUnlessItWasAskedFor) {
  MemoryPlanInput input = plan_input();
  input.kv_cache_memory_bytes = int64_t{100} << 20;
  const auto plan = plan_memory(input);
  ASSERT_TRUE(plan.is_ok());
  EXPECT_EQ(plan.value().max_model_len, 1600);
  EXPECT_TRUE(plan.value().is_max_model_len_reduced);
  input.requested_max_model_len = 1601;
  expect_refused(plan_memory(input).status(), "--max-model-len 1601");
  input.requested_max_model_len = 1600;
  EXPECT_TRUE(plan_memory(input).is_ok());
  input.requested_max_model_len = 4097;
  expect_refused(plan_memory(input).status(), "4096");
}

TEST(MemoryPlan, SizesThatLookTheSameAreToldToTheByte) {
  MemoryPlanInput input = plan_input();
  input.page_bytes = int64_t{1536} << 10;
  input.kv_cache_memory_bytes = input.page_bytes - 1;
  expect_refused(plan_memory(input).status(), std::to_string(input.page_bytes - 1) + " B is less than");
  input.kv_cache_memory_bytes = 1;
  expect_refused(plan_memory(input).status(), "1 B is less than");
}

// Swap space is blamed only where all else has room.
TEST(MemoryPlan, AStepThatIsTooLargeIsNamed) {
  MemoryPlanInput input = plan_input();
  input.is_on_host = true;
  input.available_host_bytes = input.available_bytes;
  input.scratch_bytes = 2 * input.available_bytes;
  for (const int64_t swap_space : {int64_t{0}, int64_t{1} << 20}) {
    input.swap_space_bytes = swap_space;
    const Status status = plan_memory(input).status();
    expect_refused(status, "a step needs 2.00 GiB");
    expect_refused(status, "--max-num-seqs");
    EXPECT_EQ(status.message().find("--swap-space"), std::string::npos) << status.message();
  }
  input.scratch_bytes = int64_t{100} << 20;
  EXPECT_TRUE(plan_memory(input).is_ok());
  input.swap_space_bytes = input.available_bytes;
  expect_refused(plan_memory(input).status(), "--swap-space");
}

TEST(MemoryPlan, TellsTheTokensOfAStep) {
  MemoryPlan plan;
  plan.max_num_batched_tokens = 640;
  plan.max_num_seqs = 32;
  plan.first_step_tokens = 80;
  plan.prefill_tokens_per_second = 330.0;
  EXPECT_NE(plan.to_string().find("640  tokens at most, 32 sequences; 80 at first, 242 ms at 330 prompt tokens/s\n"),
            std::string::npos)
      << plan.to_string();
  plan.first_step_tokens = 0;  // it stays what was asked for
  EXPECT_NE(plan.to_string().find("640  tokens at most, 32 sequences\n"), std::string::npos) << plan.to_string();
}

TEST(MemoryPlan, WhatCannotBeIsRefusedWithNumbers) {
  MemoryPlanInput input = plan_input();
  input.kv_cache_memory_bytes = int64_t{2} << 30;
  expect_refused(plan_memory(input).status(), "2.00 GiB");
  input = plan_input();
  input.available_bytes = int64_t{150} << 20;
  expect_refused(plan_memory(input).status(), "150.00 MiB");
  input = plan_input();
  input.kv_cache_memory_bytes = input.page_bytes - 1;
  expect_refused(plan_memory(input).status(), "less than a KV page");
  expect_refused(check_weights_fit(int64_t{3} << 30, int64_t{2} << 30), "3.00 GiB");
  EXPECT_TRUE(check_weights_fit(1, 2).is_ok());
}

}  // namespace
}  // namespace quire

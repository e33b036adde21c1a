// One request counted from arrival to end, however it ends; sums that agree.
#include "server/server_metrics.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

using namespace std::chrono_literals;
using TimePoint = RequestMeter::TimePoint;

class ServerMetricsTest : public ::testing::Test {
 protected:
  TokenEvent event(int choice_index, int num_tokens, TimePoint time, FinishReason reason = FinishReason::kNone) {
    TokenEvent made;
    made.choice_index = choice_index;
    made.token_ids = std::span(ids_).first(static_cast<size_t>(num_tokens));
    made.finish_reason = reason;
    made.times.first_scheduled = begin_ + 1s;
    made.times.last_token = time;
    made.times.finished = time;
    return made;
  }
  double finished(FinishReason reason) { return metrics_.request_success[static_cast<size_t>(reason)]->value(); }
  // Whatever has happened to requests: when none is under way, these agree.
  void expect_sums_agree() {
    EXPECT_EQ(metrics_.prompt_tokens.value(), metrics_.request_prompt_tokens.sum());
    EXPECT_EQ(metrics_.generation_tokens.value(), metrics_.request_generation_tokens.sum());
    double ended = 0;
    for (const Counter* counter : metrics_.request_success) ended += counter == nullptr ? 0 : counter->value();
    EXPECT_EQ(ended, static_cast<double>(metrics_.e2e_request_latency.count()));
  }

  MetricRegistry registry_;
  ServerMetrics metrics_{registry_, "m"};
  const TimePoint begin_{1000s};
  const std::vector<int32_t> ids_ = std::vector<int32_t>(16);
};

TEST_F(ServerMetricsTest, ARequest) {
  RequestMeter meter(metrics_, {.arrived = begin_, .num_prompt_tokens = 100, .n = 2, .max_tokens = 64});
  meter.on_event(event(0, 1, begin_ + 3s));
  meter.on_event(event(1, 1, begin_ + 3s));
  meter.on_event(event(0, 4, begin_ + 5s));  // four at once: half a second each
  meter.on_event(event(0, 1, begin_ + 6s, FinishReason::kStop));
  EXPECT_EQ(metrics_.e2e_request_latency.count(), 0u);
  meter.on_event(event(1, 1, begin_ + 8s, FinishReason::kLength));
  EXPECT_EQ(metrics_.time_to_first_token.sum(), 3.0);
  EXPECT_EQ(metrics_.inter_token_latency.count(), 6u);
  EXPECT_EQ(metrics_.inter_token_latency.sum(), 2.0 + 1.0 + 5.0);
  EXPECT_EQ(metrics_.e2e_request_latency.sum(), 8.0);
  EXPECT_EQ(metrics_.request_queue_time.sum(), 1.0);
  EXPECT_EQ(metrics_.request_prefill_time.sum(), 2.0);
  EXPECT_EQ(metrics_.request_decode_time.sum(), 5.0);
  EXPECT_EQ(metrics_.request_inference_time.sum(), 7.0);
  EXPECT_EQ(metrics_.request_generation_tokens.sum(), 8.0);
  EXPECT_EQ(metrics_.request_max_num_generation_tokens.sum(), 6.0);
  EXPECT_EQ(metrics_.request_params_n.sum(), 2.0);
  EXPECT_EQ(finished(FinishReason::kStop), 1.0);
  EXPECT_EQ(meter.num_generated_tokens(), 8);
  expect_sums_agree();
}

TEST_F(ServerMetricsTest, AbortedRequestsCountToo) {
  {
    RequestMeter meter(metrics_, {.arrived = begin_, .num_prompt_tokens = 600, .max_tokens = 64});
    meter.on_event(event(0, 1, begin_ + 3s));
    meter.on_event(event(0, 0, begin_ + 4s, FinishReason::kAborted));
  }
  { RequestMeter never_ran(metrics_, {.arrived = begin_, .num_prompt_tokens = 7, .max_tokens = 64}); }
  EXPECT_EQ(finished(FinishReason::kAborted), 2.0);
  EXPECT_EQ(metrics_.time_to_first_token.count(), 1u);
  EXPECT_EQ(metrics_.request_queue_time.count(), 1u);
  expect_sums_agree();
}

TEST_F(ServerMetricsTest, OneChoiceInErrorMakesTheRequestOne) {
  RequestMeter meter(metrics_, {.arrived = begin_, .num_prompt_tokens = 7, .n = 2, .max_tokens = 64});
  meter.on_event(event(1, 0, begin_ + 3s, FinishReason::kError));
  meter.on_event(event(0, 1, begin_ + 3s, FinishReason::kStop));
  EXPECT_EQ(finished(FinishReason::kError), 1.0);
  EXPECT_EQ(finished(FinishReason::kStop), 0.0);
  expect_sums_agree();
}

TEST_F(ServerMetricsTest, NamesThatDashboardsAskFor) {
  const std::string text = registry_.text();
  for (const char* name : {"vllm:num_requests_running",
                           "vllm:num_requests_waiting",
                           "vllm:kv_cache_usage_perc",
                           "vllm:gpu_cache_usage_perc",
                           "vllm:num_preemptions_total",
                           "vllm:prompt_tokens_total",
                           "vllm:generation_tokens_total",
                           "vllm:time_to_first_token_seconds_bucket",
                           "vllm:inter_token_latency_seconds_bucket",
                           "vllm:time_per_output_token_seconds_bucket",
                           "vllm:request_time_per_output_token_seconds_bucket",
                           "vllm:e2e_request_latency_seconds_bucket",
                           "vllm:request_queue_time_seconds_bucket",
                           "vllm:request_inference_time_seconds_bucket",
                           "vllm:request_prefill_time_seconds_bucket",
                           "vllm:request_decode_time_seconds_bucket",
                           "vllm:request_prompt_tokens_bucket",
                           "vllm:request_generation_tokens_bucket",
                           "vllm:request_params_n_bucket",
                           "vllm:request_params_max_tokens_bucket",
                           "vllm:request_success_total",
                           "vllm:prefix_cache_queries_total",
                           "vllm:prefix_cache_hits_total",
                           "vllm:iteration_tokens_total_bucket"}) {
    EXPECT_NE(text.find(std::string("\n") + name + "{model_name=\"m\""), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace quire

// adjust_logits and logprobs on the GPU give what the plain loops give, bit for bit.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "ops/tests/cuda_test_support.h"
#include "ops/tests/logits_cases.h"

namespace quire {
namespace {

int64_t num_different_bits(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  int64_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const bool are_nan = std::isnan(a[i]) && std::isnan(b[i]);
    count += !are_nan && std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]) ? 1 : 0;
  }
  return count;
}

TEST(CudaLogits, AdjustsAsThePlainLoopsDo) {
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  TestRandom random(7);
  SCOPED_TRACE(random.trace());
  for (const int64_t size : {1, 31, 33, 1024, 16384, 16389, 32768, 50001}) {
    SCOPED_TRACE("size " + std::to_string(size));
    AdjustCase test = make_adjust_case(random, size);
    const int64_t gap = size % 2 == 1 ? 3 : 0;
    DeviceMatrix logits(*gpu, DType::kF32, test.num_rows, size, gap);
    logits.fill(test.logits);
    DeviceMatrix kept(*gpu, DType::kF32, test.num_kept, size, gap);
    std::vector<float> expected_kept(static_cast<size_t>(test.num_kept * size), 0.0f);
    kept.fill(expected_kept);
    const DeviceBuffer rows = gpu->upload(test.rows);
    const DeviceBuffer penalized = gpu->upload(test.penalized);
    const DeviceBuffer biases = gpu->upload(test.biases);
    const DeviceBuffer mask_words = gpu->upload(test.mask_words);
    gpu->ops().adjust_logits(gpu->context(), logits.view(),
                             {.num_rows = static_cast<int>(test.rows.size()),
                              .rows = static_cast<const LogitsAdjustment*>(rows.data()),
                              .penalized = static_cast<const PenalizedToken*>(penalized.data()),
                              .biases = static_cast<const TokenBias*>(biases.data()),
                              .mask_words = static_cast<const uint32_t*>(mask_words.data()),
                              .kept = kept.view()});
    std::vector<float> expected = test.logits;
    adjust_rows(TensorView(expected.data(), DType::kF32, {test.num_rows, size}),
                {.num_rows = static_cast<int>(test.rows.size()),
                 .rows = test.rows.data(),
                 .penalized = test.penalized.data(),
                 .biases = test.biases.data(),
                 .mask_words = test.mask_words.data(),
                 .kept = TensorView(expected_kept.data(), DType::kF32, {test.num_kept, size})});
    EXPECT_EQ(num_different_bits(logits.values(), expected), 0);
    EXPECT_EQ(num_different_bits(kept.values(), expected_kept), 0);
    EXPECT_GT(num_different_bits(test.logits, expected), 0);
  }
}

TEST(CudaLogits, LogprobsAreThoseOfThePlainLoops) {
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  SKIP_WITHOUT_GPU(gpu);
  TestRandom random(9);
  SCOPED_TRACE(random.trace());
  for (const int64_t size : {1, 2, 33, 1024, 4097, 32000, 128256}) {
    const LogprobsCase test = make_logprobs_case(random, size);
    const int num_rows = static_cast<int>(test.rows.size());
    const size_t num_top = test.rows.size() * static_cast<size_t>(test.most_top);
    DeviceMatrix logits(*gpu, DType::kF32, test.num_rows, size, size % 2 == 1 ? 3 : 0);
    logits.fill(test.logits);
    const DeviceBuffer rows = gpu->upload(test.rows);
    const DeviceBuffer ids = gpu->upload(test.ids);
    const DeviceBuffer device_results = gpu->upload(std::vector<LogprobsResult>(test.rows.size()));
    const DeviceBuffer device_top = gpu->upload(std::vector<TopToken>(num_top));
    gpu->ops().logprobs(gpu->context(), logits.view(),
                        {.num_rows = num_rows,
                         .rows = static_cast<const LogprobsRow*>(rows.data()),
                         .ids = static_cast<const int32_t*>(ids.data()),
                         .kept = logits.view(),
                         .results = static_cast<LogprobsResult*>(device_results.data()),
                         .top = static_cast<TopToken*>(device_top.data()),
                         .most_top = test.most_top});
    std::vector<LogprobsResult> results(test.rows.size());
    std::vector<TopToken> top(num_top);
    gpu->ops().copy_to_host(gpu->context(), results.data(), device_results.data(), device_results.num_bytes());
    gpu->ops().copy_to_host(gpu->context(), top.data(), device_top.data(), device_top.num_bytes());
    gpu->synchronize();

    std::vector<LogprobsResult> expected(test.rows.size());
    std::vector<TopToken> expected_top(num_top);
    const ConstTensorView host_logits(test.logits.data(), DType::kF32, {test.num_rows, size});
    logprobs_rows(host_logits, {.num_rows = num_rows,
                                .rows = test.rows.data(),
                                .ids = test.ids.data(),
                                .kept = host_logits,
                                .results = expected.data(),
                                .top = expected_top.data(),
                                .most_top = test.most_top});
    for (size_t r = 0; r < results.size(); ++r) {
      SCOPED_TRACE("row " + std::to_string(r) + " of size " + std::to_string(size));
      EXPECT_EQ(results[r].total, expected[r].total);
      if (expected[r].total == 0) continue;
      EXPECT_EQ(results[r].best, expected[r].best);
      EXPECT_EQ(results[r].drawn, expected[r].drawn);
      EXPECT_EQ(results[r].rank, expected[r].rank);
      ASSERT_EQ(results[r].num_top, expected[r].num_top);
      for (size_t i = 0; i < static_cast<size_t>(expected[r].num_top); ++i) {
        const size_t at = r * static_cast<size_t>(test.most_top) + i;
        EXPECT_EQ(top[at].token_id, expected_top[at].token_id) << i;
        EXPECT_EQ(top[at].logit, expected_top[at].logit) << i;
      }
    }
  }
}

}  // namespace
}  // namespace quire

// sample on the GPU draws what the plain loops draw, token for token; and recorded calls give what called ones give.
#include <gtest/gtest.h>

#include "ops/sample_rows.h"
#include "ops/tests/cuda_test_support.h"
#include "ops/tests/sample_cases.h"

namespace quire {
namespace {

TEST(CudaSample, DrawsWhatThePlainLoopsDraw) {
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  if (gpu == nullptr) GTEST_SKIP();
  TestRandom random(5);
  SCOPED_TRACE(random.trace());
  for (const int64_t size : {1, 2, 31, 33, 1023, 1024, 1025, 4097, 32000, 128256}) {
    SampleCase test = make_sample_case(random, size);
    const int64_t num_rows = static_cast<int64_t>(test.rows.size());
    if (size == 1025) test.logits[3 * 1025 + 700] = NAN;
    std::vector<int32_t> expected(test.rows.size());
    sample_rows(TensorView(expected.data(), DType::kI32, {num_rows}),
                ConstTensorView(test.logits.data(), DType::kF32, {num_rows, size}), test.rows.data());
    const int64_t gap = size % 2 == 1 ? 3 : 0;
    DeviceMatrix logits(*gpu, DType::kF32, num_rows, size, gap);
    logits.fill(test.logits);
    const DeviceBuffer rows = gpu->upload(test.rows);
    const std::vector<int32_t> poison(test.rows.size(), -9);
    const DeviceBuffer ids = gpu->upload(poison);
    for (int repeat = 0; repeat < 2; ++repeat) {
      gpu->ops().sample(gpu->context(), TensorView(ids.data(), DType::kI32, {num_rows}), logits.view(),
                        static_cast<const SamplingRow*>(rows.data()));
      std::vector<int32_t> drawn(test.rows.size());
      gpu->ops().copy_to_host(gpu->context(), drawn.data(), ids.data(), num_rows * 4);
      gpu->synchronize();
      for (size_t r = 0; r < drawn.size(); ++r) {
        EXPECT_EQ(drawn[r], expected[r]) << "row " << r << " of size " << size << ", top_k " << test.rows[r].top_k
                                         << ", top_p " << test.rows[r].top_p << ", 1/temperature "
                                         << test.rows[r].inverse_temperature;
      }
    }
  }
}

TEST(CudaRecording, ReplaysReadNewContents) {
  const std::unique_ptr<Gpu> gpu = Gpu::create();
  if (gpu == nullptr) GTEST_SKIP();
  DeviceMatrix a(*gpu, DType::kF32, 3, 64);
  DeviceMatrix b(*gpu, DType::kF32, 3, 64);
  DeviceMatrix y(*gpu, DType::kF32, 3, 64);
  a.fill(std::vector<float>(3 * 64, 1.0f));
  b.fill(std::vector<float>(3 * 64, 2.0f));
  gpu->synchronize();
  gpu->ops().begin_recording(gpu->context());
  gpu->ops().add(gpu->context(), y.view(), a.view(), b.view());
  gpu->ops().add(gpu->context(), y.view(), y.view(), b.view());
  const std::unique_ptr<Ops::Recording> recording = gpu->ops().end_recording(gpu->context());
  ASSERT_NE(recording, nullptr);
  for (const float value : {10.0f, 20.0f}) {
    a.fill(std::vector<float>(3 * 64, value));
    gpu->ops().replay(gpu->context(), *recording);
    EXPECT_EQ(y.values(), std::vector<float>(3 * 64, value + 4.0f));
  }
}

}  // namespace
}  // namespace quire

// What `quire tune` chooses on a GPU: that it is right, that a later process takes it up, and that nonsense is refused.
#include "ops/cuda/product_tuner.h"

#include "ops/tests/cuda_test_support.h"
#include "ops/tests/op_test_data.h"
#include "quant/dequantize.h"

namespace quire {
namespace {

TEST(CudaProductTuner, AlgorithmsAreWrittenAndReadWordForWord) {
  cuda::ProductWay way{};
  cublasLtMatmulAlgo_t& algorithm = way.algorithm;
  for (size_t i = 0; i < std::size(algorithm.data); ++i) algorithm.data[i] = 0x0123456789abcdefu * (i + 1);
  const std::string text = cuda::way_text(way);
  for (const int num_parts : {0, 1, 2}) {
    way.num_parts = num_parts;
    const auto read = cuda::parse_way(cuda::way_text(way));
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(std::memcmp(&read->algorithm, &algorithm, sizeof(algorithm)), 0);
    EXPECT_EQ(read->num_parts, num_parts);
  }
  for (const char* end : {"0", "/", "/0", "/3", "/16", "/2 "}) {
    EXPECT_FALSE(cuda::parse_way(text + end).has_value()) << end;
  }
  EXPECT_FALSE(cuda::parse_way("").has_value());
  EXPECT_FALSE(cuda::parse_way(text.substr(1)).has_value());
  EXPECT_FALSE(cuda::parse_way("x" + text.substr(1)).has_value());
  EXPECT_FALSE(cuda::parse_way("-" + text.substr(1)).has_value());
}

// A product of `num_tokens` by a backend with these options, and what it has chosen.
struct Product {
  std::vector<float> y;
  std::vector<TunedProduct> products;
};
Product multiply(const BackendOptions& options, const FileWeight& file, const std::vector<float>& x_values, DType dtype,
                 bool has_residual) {
  const std::unique_ptr<Gpu> gpu = Gpu::create_with(options);
  const Weight weight = gpu->ops().pack(file.weight).value();
  const int64_t num_tokens = static_cast<int64_t>(x_values.size()) / weight.k;
  DeviceMatrix x(*gpu, dtype, num_tokens, weight.k);
  DeviceMatrix y(*gpu, dtype, num_tokens, weight.n);
  x.fill(x_values);
  y.fill(std::vector<float>(static_cast<size_t>(num_tokens * weight.n), 0.5f));
  Epilogue epilogue;
  if (has_residual) epilogue.residual = y.view();
  gpu->ops().linear(gpu->context(), y.view(), x.view(), weight, epilogue);
  return {y.values(), gpu->ops().tuned_products()};
}

TEST(CudaProductTuner, ALaterBackendTakesUpWhatWasChosen) {
  SKIP_WITHOUT_GPU(Gpu::create());
  for (const auto& [dtype, format, quantization] :
       {std::tuple{DType::kBF16, FormatId::kBF16, WeightQuantization::kNone},
        {DType::kF16, FormatId::kF16, WeightQuantization::kNone},
        {DType::kF32, FormatId::kF32, WeightQuantization::kNone},
        {DType::kBF16, FormatId::kBF16, WeightQuantization::kF8}}) {
    for (const bool has_residual : {false, true}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + (has_residual ? " with a residual" : ""));
      TestRandom random(7);
      const FileWeight file = make_file_weight(random, format, 1536, 1024);
      const std::vector<float> x = round_all(dtype, random.normals(int64_t{100} * 1024));
      BackendOptions options;
      options.weight_quantization = quantization;
      const Product usual = multiply(options, file, x, dtype, has_residual);
      options.is_tuning = true;
      const Product tuned = multiply(options, file, x, dtype, has_residual);
      ASSERT_EQ(tuned.products.size(), 1u);
      const TunedProduct& product = tuned.products[0];
      EXPECT_EQ(product.num_tokens, 128);
      EXPECT_EQ(product.n, 1536);
      EXPECT_EQ(product.k, 1024);
      EXPECT_EQ(product.has_residual, has_residual);
      EXPECT_TRUE(all_near(tuned.y, std::vector<double>(usual.y.begin(), usual.y.end()), 0.75));  // of about 32
      options.is_tuning = false;
      options.tuned_products = tuned.products;
      const Product later = multiply(options, file, x, dtype, has_residual);
      EXPECT_TRUE(later.products == tuned.products);
      EXPECT_TRUE(equal_bits(later.y, tuned.y));
    }
  }
}

TEST(CudaProductTuner, NonsenseIsRefused) {
  SKIP_WITHOUT_GPU(Gpu::create());
  BackendOptions options;
  options.kind = BackendKind::kCuda;
  for (const std::string& algorithm : {std::string("words"), std::string(128, 'f')}) {
    options.tuned_products = {{64, 4096, 4096, DType::kBF16, DType::kBF16, false, algorithm}};
    const auto ops = CudaOps::create(options);
    ASSERT_FALSE(ops.is_ok());
    EXPECT_EQ(ops.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(ops.status().message().find("quire tune"), std::string::npos);
  }
}

}  // namespace
}  // namespace quire

// Weights that become int8 while the CPU and the reference backend pack them.
#include <gtest/gtest.h>

#include "ops/backends.h"
#include "ops/tests/op_test.h"
#include "quant/int8_rows.h"

namespace quire {
namespace {

std::unique_ptr<Ops> make_ops(BackendKind kind, WeightQuantization quantization) {
  BackendOptions options;
  options.kind = kind;
  options.num_threads = 2;
  options.weight_quantization = quantization;
  return create_ops(options).value();
}

std::vector<float> multiply(Ops& ops, const Weight& file_weight, const std::vector<float>& x, int64_t num_tokens) {
  Arena arena = make_test_arena(1 << 20);
  OpContext context{arena};
  const Weight packed = ops.pack(file_weight).value();
  GuardedMatrix y(num_tokens, file_weight.n, 3);
  ops.linear(context, y.view(), ConstTensorView(x.data(), DType::kF32, {num_tokens, file_weight.k}), packed, {});
  EXPECT_TRUE(y.guards_are_intact());
  return y.values();
}

TEST(Int8Weights, AreWhatRoundedRowsAre) {
  ThreadPool pool(1);
  TestRandom random(95);
  for (const FormatId format : {FormatId::kF32, FormatId::kF16, FormatId::kBF16}) {
    for (const BackendKind kind : {BackendKind::kReference, BackendKind::kCpu}) {
      const std::unique_ptr<Ops> rounding = make_ops(kind, WeightQuantization::kI8);
      const std::unique_ptr<Ops> plain = make_ops(kind, WeightQuantization::kNone);
      const FileWeight file = make_file_weight(random, format, 50, 96);
      EXPECT_EQ(rounding->pack(file.weight).value().format, FormatId::kQ8_0);
      for (const int64_t num_tokens : {1, 5}) {
        const std::vector<float> x = random.normals(num_tokens * 96);
        EXPECT_TRUE(equal_bits(multiply(*rounding, file.weight, x, num_tokens),
                               multiply(*plain, round_to_int8(pool, file.weight), x, num_tokens)));
      }
    }
  }
}

TEST(Int8Weights, OthersStayWhatTheyAre) {
  TestRandom random(96);
  for (const BackendKind kind : {BackendKind::kReference, BackendKind::kCpu}) {
    const std::unique_ptr<Ops> rounding = make_ops(kind, WeightQuantization::kI8);
    const FileWeight odd = make_file_weight(random, FormatId::kBF16, 10, 40);  // no whole blocks
    EXPECT_EQ(rounding->pack(odd.weight).value().format, FormatId::kBF16);
    const FileWeight integers = make_file_weight(random, FormatId::kQ4_0, 10, 64);
    EXPECT_EQ(rounding->pack(integers.weight).value().format, FormatId::kQ4_0);
  }
}

TEST(Int8Weights, E4m3IsForAGpu) {
  for (const BackendKind kind : {BackendKind::kReference, BackendKind::kCpu}) {
    BackendOptions options;
    options.kind = kind;
    options.weight_quantization = WeightQuantization::kF8;
    const auto ops = create_ops(options);
    ASSERT_FALSE(ops.is_ok());
    EXPECT_NE(ops.status().message().find("int8"), std::string::npos) << ops.status().message();
  }
}

}  // namespace
}  // namespace quire

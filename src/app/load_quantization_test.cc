#include "app/load_quantization.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <vector>

namespace quire::app {
namespace {

class Tensors final : public TensorSource {
 public:
  explicit Tensors(std::initializer_list<FormatId> of_matrices) {
    tensors_.push_back({.name = "norm", .format = FormatId::kF32, .type_name = "f32", .sizes = {256}, .data = {}});
    for (const FormatId format : of_matrices) {
      tensors_.push_back({.name = "matrix", .format = format, .type_name = "", .sizes = {256, 256}, .data = {}});
    }
  }
  std::span<const SourceTensor> tensors() const override { return tensors_; }
  const SourceTensor* find(std::string_view) const override { return nullptr; }
  std::shared_ptr<const void> owner() const override { return nullptr; }

 private:
  std::vector<SourceTensor> tensors_;
};

TEST(LoadQuantization, ModelsOfFloatsAreTakenWhole) {
  const Tensors floats({FormatId::kBF16, FormatId::kF32});
  EXPECT_EQ(what_stays_quantized("int8", floats), "");
  EXPECT_EQ(what_stays_quantized("fp8", floats), "");
}

TEST(LoadQuantization, WhatIsQuantizedAlreadyIsTold) {
  const Tensors all({FormatId::kQ4_K, FormatId::kQ6_K, FormatId::kQ4_K});
  for (const char* none : {"none", "awq", "gptq"}) EXPECT_EQ(what_stays_quantized(none, all), "");
  for (const char* given : {"int8", "fp8"}) {
    const std::string told = what_stays_quantized(given, all);
    EXPECT_TRUE(told.starts_with(std::string("--quantization ") + given + " changes nothing")) << told;
    EXPECT_NE(told.find("(q4_k, q6_k)"), std::string::npos) << told;
  }
  const std::string some =
      what_stays_quantized("int8", Tensors({FormatId::kBF16, FormatId::kInt4G128, FormatId::kBF16}));
  EXPECT_NE(some.find("which 2 of this model's 3 are"), std::string::npos) << some;
  EXPECT_NE(some.find("(int4_g128) and stay so"), std::string::npos) << some;
}

}  // namespace
}  // namespace quire::app

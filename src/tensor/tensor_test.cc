#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <vector>

namespace quire {
namespace {

TEST(TensorViewTest, SlicesKeepStrides) {
  std::vector<float> data(2 * 3 * 4);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i);
  const TensorView whole(data.data(), DType::kF32, {2, 3, 4});
  EXPECT_TRUE(whole.is_contiguous());
  const TensorView column = whole.slice(2, 1, 3);
  EXPECT_FALSE(column.is_contiguous());
  EXPECT_TRUE(column.is_last_dimension_contiguous());
  EXPECT_EQ(column.data<float>()[column.stride(0) + 2 * column.stride(1)], 12 + 8 + 1);
  EXPECT_EQ(describe(column), "f32[2, 3, 2]");
}

TEST(TensorViewTest, SplitsTheLastDimensionOfAStridedView) {
  std::vector<float> data(2 * 10);
  const TensorView heads = TensorView(data.data(), DType::kF32, {2, 10}).slice(1, 2, 8).split_last_dimension(3);
  EXPECT_EQ(heads.rank(), 3);
  EXPECT_EQ(heads.size(1), 2);
  EXPECT_EQ(heads.stride(0), 10);
  EXPECT_EQ(heads.stride(1), 3);
}

TEST(TensorViewDeathTest, ReadingAsAnotherTypeIsAFault) {
  float value = 1;
  const ConstTensorView view = TensorView(&value, DType::kF32, {1});
  EXPECT_DEATH((void)view.data<int32_t>(), "CHECK");
}

}  // namespace
}  // namespace quire

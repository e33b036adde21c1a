// Random rows of every format have the spread that they promise, around zero, and are the same for the same seed.
#include "quant/random_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "quant/dequantize.h"

namespace quire {
namespace {

TEST(RandomRows, EveryFormatIsCentredAndOfOneSpread) {
  constexpr int64_t kValues = 256 * 256;
  for (const QuantFormat& format : kQuantFormats) {
    SCOPED_TRACE(format.name);
    std::vector<std::byte> bytes(static_cast<size_t>(format.row_bytes(kValues)));
    std::vector<std::byte> again = bytes;
    fill_random_rows(format.id, bytes, 7);
    fill_random_rows(format.id, again, 7);
    EXPECT_EQ(bytes, again);
    fill_random_rows(format.id, again, 8);
    EXPECT_NE(bytes, again);
    std::vector<float> values(kValues);
    dequantize_row(format.id, bytes.data(), values.data(), kValues);
    double sum = 0.0;
    double squares = 0.0;
    for (const float value : values) {
      sum += static_cast<double>(value);
      squares += static_cast<double>(value) * static_cast<double>(value);
    }
    EXPECT_TRUE(std::abs(sum / kValues) <= 0.01) << sum / kValues;
    const double deviation = std::sqrt(squares / kValues);
    EXPECT_TRUE(deviation >= 0.012 && deviation <= 0.04) << deviation;
  }
}

}  // namespace
}  // namespace quire

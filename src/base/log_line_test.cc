#include "base/log_line.h"

#include <gtest/gtest.h>

#include <string>

namespace quire {
namespace {

TEST(UtcTime, IsWrittenAsIso8601) {
  const auto at = [](int64_t milliseconds) {
    return std::string(UtcTime(std::chrono::system_clock::time_point(std::chrono::milliseconds(milliseconds))).text());
  };
  EXPECT_EQ(at(0), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(at(951'827'696'789), "2000-02-29T12:34:56.789Z");
  EXPECT_EQ(at(1'796'083'199'999), "2026-11-30T23:59:59.999Z");
}

}  // namespace
}  // namespace quire

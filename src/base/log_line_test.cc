#include "base/log_line.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <string>
#include <thread>

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

TEST(WritePatiently, WaitsForAPipeThatIsRead) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const std::string text(300'000, 'x');
  size_t num_read = 0;
  std::thread reader([&] {
    char bytes[1000];
    while (num_read < text.size()) num_read += static_cast<size_t>(::read(ends[0], bytes, sizeof(bytes)));
  });
  EXPECT_EQ(write_patiently(ends[1], text), static_cast<ssize_t>(text.size()));
  reader.join();
  EXPECT_EQ(num_read, text.size());
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(WritePatiently, GivesUpWhereNobodyReads) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const std::string text(300'000, 'x');
  const ssize_t num_taken = write_patiently(ends[1], text, std::chrono::milliseconds(10));
  EXPECT_GT(num_taken, 0);
  EXPECT_LT(num_taken, static_cast<ssize_t>(text.size()));
  EXPECT_EQ(write_patiently(ends[1], "line", std::chrono::milliseconds(10)), 0);
  ::close(ends[0]);
  ::signal(SIGPIPE, SIG_IGN);
  EXPECT_EQ(write_patiently(ends[1], "line"), -1);
  ::signal(SIGPIPE, SIG_DFL);
  ::close(ends[1]);
}

}  // namespace
}  // namespace quire

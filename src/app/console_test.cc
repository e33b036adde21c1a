// What commands tell people, from several threads at once.
#include "app/console.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <set>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

namespace quire::app {
namespace {

// Lines stay whole, whoever rewrites the progress line meanwhile. The thread sanitizer sees the rest.
TEST(Console, SeveralThreadsTellAtOnce) {
  constexpr int kNumThreads = 4;
  constexpr int kNumLines = 200;
  ::testing::internal::CaptureStderr();
  {
    Console console(LogLevel::kInfo, /*is_terminal=*/true, LineFormat::kText);
    std::vector<std::thread> threads;
    for (int t = 0; t < kNumThreads; ++t) {
      threads.emplace_back([&console, t] {
        for (int i = 0; i < kNumLines; ++i) {
          console.progress_line("under way");
          console.progress("loading", 100, 100);
          const std::string name = std::to_string(t) + "/" + std::to_string(i);
          i % 2 == 0 ? console.info("line " + name) : console.warn("line " + name);
          if (i % 10 == 0) console.end_progress();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  const std::string told = ::testing::internal::GetCapturedStderr();
  std::istringstream lines(told);
  std::set<std::string> names;
  for (std::string line; std::getline(lines, line);) {
    // The line that rewrites itself comes before, and is wiped.
    const size_t wiped = line.rfind("\r\x1b[K");
    const std::string text = wiped == std::string::npos ? line : line.substr(wiped + 4);
    const size_t at = text.find("line ");
    if (at == std::string::npos) continue;  // the end
    EXPECT_TRUE(at == 0 || text.starts_with("warning: line ")) << text;
    EXPECT_TRUE(names.insert(text.substr(at + 5)).second) << text;
  }
  EXPECT_EQ(names.size(), size_t{kNumThreads * kNumLines});
  EXPECT_TRUE(told.ends_with("\r\x1b[K") || told.ends_with("\n"));
}

TEST(Console, TellsWhatItsLevelIs) {
  ::testing::internal::CaptureStderr();
  {
    Console console(LogLevel::kWarning, /*is_terminal=*/true, LineFormat::kText);
    console.progress_line("under way");
    console.info("info");
    console.warn("warned");
    console.error("failed");
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "warning: warned\nerror: failed\n");
}

TEST(Console, TellsJsonALineAMessage) {
  ::testing::internal::CaptureStderr();
  {
    Console console(LogLevel::kInfo, /*is_terminal=*/true, LineFormat::kJson);
    EXPECT_FALSE(console.is_terminal());
    console.progress("loading", 50, 100);
    console.progress_line("under way");
    console.info("a table\nof \"two\" lines");
    console.warn("what is \xff?");
    console.error("failed");
  }
  std::istringstream lines(::testing::internal::GetCapturedStderr());
  std::vector<std::pair<std::string, std::string>> told;
  for (std::string text; std::getline(lines, text);) {
    const boost::json::value line = boost::json::parse(text);
    EXPECT_TRUE(line.at("time").as_string().starts_with("20")) << text;
    told.emplace_back(line.at("level").as_string(), line.at("message").as_string());
  }
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"info", "a table\nof \"two\" lines"}, {"warning", "what is \xef\xbf\xbd?"}, {"error", "failed"}};
  EXPECT_EQ(told, expected);
}

}  // namespace
}  // namespace quire::app

// Lines whole and in order, escaped, and dropped rather than waited for.
#include "server/access_log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <sstream>
#include <thread>

namespace quire {
namespace {

using Field = AccessLog::Field;

std::string read_all(int fd) {
  std::string text;
  char buffer[4096];
  ssize_t num = 0;
  while ((num = ::read(fd, buffer, sizeof(buffer))) > 0) text.append(buffer, static_cast<size_t>(num));
  return text;
}

TEST(AccessLog, LinesOfBothKinds) {
  for (const LineFormat format : {LineFormat::kText, LineFormat::kJson}) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    {
      AccessLog log({.format = format, .file_descriptor = ends[1]});
      log.write(LogSeverity::kDebug, "hidden", "hidden", {});
      log.write(LogSeverity::kInfo, "request", "GET /a\n\"\xff",
                {Field::of("path", "/a b\n\x1b[2J\"\xff"), Field::of("status", int64_t{200}),
                 Field::milliseconds("ms", 0.01234), Field::boolean("stream", true), Field::of("model", "plain")});
    }
    ::close(ends[1]);
    const std::string text = read_all(ends[0]);
    ::close(ends[0]);
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
    EXPECT_EQ(text.find("hidden"), std::string::npos);
    if (format == LineFormat::kJson) {
      const boost::json::value line = boost::json::parse(text);
      EXPECT_TRUE(line.at("time").as_string().ends_with("Z"));
      EXPECT_EQ(line.at("level").as_string(), "info");
      EXPECT_EQ(line.at("message").as_string(), "GET /a\n\"\xef\xbf\xbd");
      EXPECT_EQ(line.at("status").as_int64(), 200);
      EXPECT_EQ(line.at("ms").as_double(), 12.3);
      EXPECT_TRUE(line.at("stream").as_bool());
      EXPECT_EQ(line.at("path").as_string(), "/a b\n\x1b[2J\"\xef\xbf\xbd");
    } else {
      EXPECT_TRUE(text.starts_with("time=20")) << text;
      EXPECT_NE(text.find(" level=info event=request path=\"/a b\\n\\u001b[2J\\\"\xef\xbf\xbd\" status=200 ms=12.3 "
                          "stream=true model=plain\n"),
                std::string::npos)
          << text;
    }
  }
}

// What arrives where nobody reads, and far more is written than a pipe takes.
std::string write_to_a_full_pipe(LineFormat format) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  std::string text;
  std::thread reader;
  {
    AccessLog log({.format = format, .file_descriptor = ends[1], .max_waiting_lines = 10});
    for (int i = 0; i < 20000; ++i) {
      log.write(LogSeverity::kInfo, "request", "a request", {Field::of("number", int64_t{i})});
    }
    reader = std::thread([&] { text = read_all(ends[0]); });
  }
  ::close(ends[1]);
  reader.join();
  ::close(ends[0]);
  return text;
}

TEST(AccessLog, NobodyWaitsForAFullPipe) {
  const std::string text = write_to_a_full_pipe(LineFormat::kText);
  EXPECT_NE(text.find("event=log_lines_dropped count="), std::string::npos);
  EXPECT_NE(text.find("number=0\n"), std::string::npos);
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 20000);
}

TEST(AccessLog, WhatIsDroppedIsToldInJsonToo) {
  std::istringstream lines(write_to_a_full_pipe(LineFormat::kJson));
  int64_t num_dropped = 0;
  int64_t num_requests = 0;
  for (std::string text; std::getline(lines, text);) {
    const boost::json::value line = boost::json::parse(text);
    for (const char* key : {"time", "level", "message"}) EXPECT_TRUE(line.at(key).is_string()) << text;
    if (line.at("event") == "log_lines_dropped") {
      num_dropped += line.at("count").as_int64();
    } else {
      ++num_requests;
    }
  }
  EXPECT_GT(num_dropped, 0);
  EXPECT_EQ(num_dropped + num_requests, 20000);
}

}  // namespace
}  // namespace quire

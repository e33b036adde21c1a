// Each test is a child process that dies as it should.
#include "base/last_words.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <stdexcept>
#include <string>
#include <thread>

#include "base/check.h"

namespace quire {
namespace {

constexpr const char* kBeginOfJson = R"(^\{"time":"20[^"]*Z","level":"error","message":")";

void check_that_text_is_empty(LineFormat format, const std::string& text) {
  set_last_words_format(format);
  CHECK(text == "");
}

TEST(LastWords, OfAFailedCheck) {
  EXPECT_EXIT(check_that_text_is_empty(LineFormat::kText, "a"), testing::KilledBySignal(SIGABRT),
              "^quire: [^\n]*last_words_test.cc:[0-9]+: CHECK\\(text == \"\"\\) failed: a == \n$");
  EXPECT_EXIT(check_that_text_is_empty(LineFormat::kJson, "a\n\"\xe4\xb8\xad\xff"), testing::KilledBySignal(SIGABRT),
              std::string(kBeginOfJson) +
                  R"([^"]*last_words_test.cc:[0-9]+: CHECK\(text == \\"\\"\) failed: a\\u000a\\"中)"
                  "\xEF\xBF\xBD == \"\\}\n$");
}

TEST(LastWords, OfALongMessageTheEndIsLeftOut) {
  EXPECT_EXIT(check_that_text_is_empty(LineFormat::kJson, std::string(100'000, '\x01')),
              testing::KilledBySignal(SIGABRT), std::string(kBeginOfJson) + "[^\"]*[^\n]*u0001\"\\}\n$");
}

TEST(LastWords, OfAnExceptionThatNobodyCaught) {
  const auto throw_it = [](LineFormat format) {
    set_last_words_format(format);
    std::thread([] { throw std::runtime_error("no \"room\""); }).join();
  };
  EXPECT_EXIT(throw_it(LineFormat::kText), testing::KilledBySignal(SIGABRT),
              "^quire: an exception was not caught: no \"room\"\n$");
  EXPECT_EXIT(throw_it(LineFormat::kJson), testing::KilledBySignal(SIGABRT),
              std::string(kBeginOfJson) + R"(an exception was not caught: no \\"room\\""\})"
                                          "\n$");
}

}  // namespace
}  // namespace quire

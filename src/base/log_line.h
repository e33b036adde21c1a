// What all lines of a log share, whoever writes them: what they look like, how they tell the time, and how they are
// written.
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <string_view>

namespace quire {

enum class LineFormat : uint8_t {
  kText,  // for people
  kJson,  // an object a line, with at least "time", "level" and "message"
};

// "2026-11-29T23:47:02.577Z", by arithmetic alone, so that a signal's handler may ask for it.
class UtcTime {
 public:
  explicit UtcTime(std::chrono::system_clock::time_point time);
  std::string_view text() const { return {text_.data(), text_.size()}; }

 private:
  std::array<char, 24> text_;
};

// How long a line that nobody need wait for waits for a pipe that nobody reads, or a terminal that has been stopped.
inline constexpr std::chrono::milliseconds kLinePatience{1000};

// Writes `text`, or as much of it as is taken with pauses below `patience`. Returns how many bytes that was; -1 where
// nobody will ever take any. A signal's handler may call it.
ssize_t write_patiently(int descriptor, std::string_view text, std::chrono::milliseconds patience = kLinePatience);

}  // namespace quire

// What all lines of a log share, whoever writes them: what they look like, and how they tell the time.
#pragma once

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

}  // namespace quire

#include "base/log_line.h"

#include <sys/poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace quire {

UtcTime::UtcTime(std::chrono::system_clock::time_point time) {
  const auto day = std::chrono::floor<std::chrono::days>(time);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss clock(std::chrono::floor<std::chrono::milliseconds>(time - day));
  size_t place = 0;
  const auto add = [&](int64_t number, size_t num_digits, char after) {
    for (size_t i = num_digits; i-- > 0; number /= 10) text_[place + i] = static_cast<char>('0' + number % 10);
    place += num_digits;
    text_[place++] = after;
  };
  add(static_cast<int>(date.year()), 4, '-');
  add(static_cast<unsigned>(date.month()), 2, '-');
  add(static_cast<unsigned>(date.day()), 2, 'T');
  add(clock.hours().count(), 2, ':');
  add(clock.minutes().count(), 2, ':');
  add(clock.seconds().count(), 2, '.');
  add(clock.subseconds().count(), 3, 'Z');
}

ssize_t write_patiently(int descriptor, std::string_view text, std::chrono::milliseconds patience) {
  constexpr size_t kNeverBlocks = 4096;  // of a pipe that has room at all
  size_t num_written = 0;
  while (num_written < text.size()) {
    pollfd wanted = {.fd = descriptor, .events = POLLOUT, .revents = 0};
    const int num_ready = ::poll(&wanted, 1, static_cast<int>(patience.count()));
    if (num_ready < 0 && errno == EINTR) continue;
    if (num_ready == 0) break;
    const ssize_t num =
        ::write(descriptor, text.data() + num_written, std::min(text.size() - num_written, kNeverBlocks));
    if (num < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (num <= 0) return -1;
    num_written += static_cast<size_t>(num);
  }
  return static_cast<ssize_t>(num_written);
}

}  // namespace quire

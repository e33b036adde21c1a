#include "base/log_line.h"

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

}  // namespace quire

// See jinja_strftime.h. A directive that is not known is copied as it stands, as glibc does.
#include "text/jinja_strftime.h"

#include <chrono>

namespace quire::jinja {
namespace {

constexpr const char* kDays[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
constexpr const char* kMonths[] = {"January", "February", "March",     "April",   "May",      "June",
                                   "July",    "August",   "September", "October", "November", "December"};

std::string padded(int64_t value, size_t width, char fill = '0') {
  std::string digits = std::to_string(value);
  return digits.size() < width ? std::string(width - digits.size(), fill) + digits : digits;
}

struct Moment {
  int64_t year;
  unsigned month, day, weekday;  // Sunday is 0
  int64_t day_of_year;           // from 1
  int64_t hour, minute, second;
  int64_t iso_year, iso_week;
};

Moment moment_of(int64_t seconds) {
  using namespace std::chrono;
  const sys_days day = floor<days>(sys_seconds{std::chrono::seconds{seconds}});
  const year_month_day date(day);
  const int64_t rest = seconds - duration_cast<std::chrono::seconds>(day.time_since_epoch()).count();
  const auto day_of_year = [](sys_days of) {
    return (of - sys_days(year_month_day(of).year() / January / 1)).count() + 1;
  };
  // The ISO week is that of its Thursday.
  const unsigned iso_weekday = weekday(day).iso_encoding();
  const sys_days thursday = day + days(4 - static_cast<int>(iso_weekday));
  return {static_cast<int>(date.year()),
          static_cast<unsigned>(date.month()),
          static_cast<unsigned>(date.day()),
          weekday(day).c_encoding(),
          day_of_year(day),
          rest / 3600,
          rest / 60 % 60,
          rest % 60,
          static_cast<int>(year_month_day(thursday).year()),
          (day_of_year(thursday) - 1) / 7 + 1};
}

void append_directive(std::string& out, char directive, bool is_unpadded, const Moment& now, int64_t seconds) {
  const auto number = [&](int64_t value, size_t width, char fill = '0') {
    out += is_unpadded ? std::to_string(value) : padded(value, width, fill);
  };
  const int64_t hour12 = now.hour % 12 == 0 ? 12 : now.hour % 12;
  switch (directive) {
    case 'a':
      out += std::string(kDays[now.weekday]).substr(0, 3);
      return;
    case 'A':
      out += kDays[now.weekday];
      return;
    case 'b':
    case 'h':
      out += std::string(kMonths[now.month - 1]).substr(0, 3);
      return;
    case 'B':
      out += kMonths[now.month - 1];
      return;
    case 'c':
      out += format_time("%a %b %e %H:%M:%S %Y", seconds);
      return;
    case 'C':
      number(now.year / 100, 2);
      return;
    case 'd':
      number(now.day, 2);
      return;
    case 'D':
    case 'x':
      out += format_time("%m/%d/%y", seconds);
      return;
    case 'e':
      number(now.day, 2, ' ');
      return;
    case 'f':
      out += "000000";
      return;
    case 'F':
      out += format_time("%Y-%m-%d", seconds);
      return;
    case 'g':
      number(now.iso_year % 100, 2);
      return;
    case 'G':
      number(now.iso_year, 4);
      return;
    case 'H':
      number(now.hour, 2);
      return;
    case 'I':
      number(hour12, 2);
      return;
    case 'j':
      number(now.day_of_year, 3);
      return;
    case 'k':
      number(now.hour, 2, ' ');
      return;
    case 'l':
      number(hour12, 2, ' ');
      return;
    case 'm':
      number(now.month, 2);
      return;
    case 'M':
      number(now.minute, 2);
      return;
    case 'n':
      out += '\n';
      return;
    case 'p':
      out += now.hour < 12 ? "AM" : "PM";
      return;
    case 'P':
      out += now.hour < 12 ? "am" : "pm";
      return;
    case 'r':
      out += format_time("%I:%M:%S %p", seconds);
      return;
    case 'R':
      out += format_time("%H:%M", seconds);
      return;
    case 's':
      out += std::to_string(seconds);
      return;
    case 'S':
      number(now.second, 2);
      return;
    case 't':
      out += '\t';
      return;
    case 'T':
    case 'X':
      out += format_time("%H:%M:%S", seconds);
      return;
    case 'u':
      number(now.weekday == 0 ? 7 : now.weekday, 1);
      return;
    case 'U':
      number((now.day_of_year + 6 - now.weekday) / 7, 2);
      return;
    case 'V':
      number(now.iso_week, 2);
      return;
    case 'w':
      number(now.weekday, 1);
      return;
    case 'W':
      number((now.day_of_year + 6 - (now.weekday + 6) % 7) / 7, 2);
      return;
    case 'y':
      number(now.year % 100, 2);
      return;
    case 'Y':
      out += std::to_string(now.year);
      return;
    case 'z':
    case 'Z':
      return;  // the time carries no zone
    case '%':
      out += '%';
      return;
    default:
      out += '%';
      if (is_unpadded) out += '-';
      out += directive;
  }
}

}  // namespace

std::string format_time(std::string_view format, int64_t local_seconds) {
  const Moment now = moment_of(local_seconds);
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 >= format.size()) {
      out += format[i];
      continue;
    }
    const bool is_unpadded = format[i + 1] == '-' && i + 2 < format.size();
    i += is_unpadded ? 2 : 1;
    append_directive(out, format[i], is_unpadded, now, local_seconds);
  }
  return out;
}

}  // namespace quire::jinja

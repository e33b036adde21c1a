// strftime in the C locale, from a number of seconds: no clock, time zone or locale of the process is read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace quire::jinja {

std::string format_time(std::string_view format, int64_t local_seconds);  // seconds since 1970 of local wall-clock time

}  // namespace quire::jinja

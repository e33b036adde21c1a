// Commands that map lines of standard input to lines of standard output: JSON in, JSON out, one value a line. A line
// that is wrong gives {"error": "..."} in its place, so that lines keep their order, and the command ends with an
// error.
#pragma once

#include <boost/json.hpp>
#include <functional>
#include <istream>
#include <string>

#include "base/status.h"

namespace quire::app {

// A prompt, or a line that holds one: far more than any context takes, and far less than the memory.
constexpr size_t kMaxInputBytes = 64 << 20;

// Reads a line of at most kMaxInputBytes. Of a longer one the rest is passed over, and is_too_long says so. False: the
// input has ended.
bool read_line(std::istream& input, std::string& line, bool& is_too_long);

// Prints a value as one line. Names of files and of models may hold any bytes: what is not UTF-8 becomes U+FFFD, so
// that the line is JSON in any case.
void print_json_line(const boost::json::value& value);

Status map_json_lines(const std::function<Result<boost::json::value>(const boost::json::value& line)>& body);

}  // namespace quire::app

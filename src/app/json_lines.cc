#include "app/json_lines.h"

#include <cstdio>
#include <iostream>
#include <string>

#include "app/console.h"
#include "text/utf8.h"

namespace quire::app {

namespace json = boost::json;

namespace {

constexpr size_t kMaxJsonDepth = 256;

Result<json::value> parse_line(const std::string& line) {
  boost::system::error_code error;
  json::parse_options options;
  options.max_depth = kMaxJsonDepth;
  json::value value = json::parse(line, error, {}, options);
  if (error)
    return invalid_argument("not JSON, of which each line is to be one value (a text is in quotes): " +
                            error.message());
  return value;
}

}  // namespace

void print_json_line(const json::value& value) {
  const std::string line = json::serialize(value);
  print_result((is_valid_utf8(line) ? line : replace_invalid_utf8(line)) + "\n");
}

bool read_line(std::istream& input, std::string& line, bool& is_too_long) {
  line.clear();
  is_too_long = false;
  std::streambuf& buffer = *input.rdbuf();
  bool is_empty = true;
  for (int byte = buffer.sbumpc(); byte != std::char_traits<char>::eof(); byte = buffer.sbumpc()) {
    if (byte == '\n') return true;
    is_empty = false;
    if (line.size() < kMaxInputBytes) {
      line.push_back(static_cast<char>(byte));
    } else {
      is_too_long = true;
    }
  }
  input.setstate(is_empty ? std::ios::eofbit | std::ios::failbit : std::ios::eofbit);
  return !is_empty;
}

Status map_json_lines(const std::function<Result<json::value>(const json::value& line)>& body) {
  int64_t num_lines = 0;
  int64_t num_failed = 0;
  std::string line;
  bool is_too_long = false;
  while (std::ferror(stdout) == 0 && read_line(std::cin, line, is_too_long)) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    ++num_lines;
    Result<json::value> result = is_too_long ? invalid_argument("the line is longer than 64 MiB") : parse_line(line);
    if (result.is_ok()) result = body(result.value());
    if (!result.is_ok()) {
      ++num_failed;
      result = json::value(json::object{{"error", result.status().message()}});
    }
    print_json_line(result.value());
    if (std::cin.rdbuf()->in_avail() <= 0) std::fflush(stdout);  // someone may be waiting for this line
  }
  std::fflush(stdout);
  if (num_failed == 0) return ok_status();
  return invalid_argument(std::to_string(num_failed) + " of " + std::to_string(num_lines) +
                          " lines failed; each says why in its place");
}

}  // namespace quire::app

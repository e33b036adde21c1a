#include "app/json_lines.h"

#include <cstdio>
#include <iostream>
#include <string>

namespace quire::app {

namespace json = boost::json;

namespace {

constexpr size_t kMaxJsonDepth = 256;

Result<json::value> parse_line(const std::string& line) {
  boost::system::error_code error;
  json::parse_options options;
  options.max_depth = kMaxJsonDepth;
  json::value value = json::parse(line, error, {}, options);
  if (error) return invalid_argument("not JSON: " + error.message());
  return value;
}

}  // namespace

Status map_json_lines(const std::function<Result<json::value>(const json::value& line)>& body) {
  int64_t num_lines = 0;
  int64_t num_failed = 0;
  std::string line;
  while (std::ferror(stdout) == 0 && std::getline(std::cin, line)) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    ++num_lines;
    Result<json::value> result = parse_line(line);
    if (result.is_ok()) result = body(result.value());
    if (!result.is_ok()) {
      ++num_failed;
      result = json::value(json::object{{"error", result.status().message()}});
    }
    const std::string output = json::serialize(result.value());
    std::fwrite(output.data(), 1, output.size(), stdout);
    std::fputc('\n', stdout);
    if (std::cin.rdbuf()->in_avail() <= 0) std::fflush(stdout);  // someone may be waiting for this line
  }
  std::fflush(stdout);
  if (num_failed == 0) return ok_status();
  return invalid_argument(std::to_string(num_failed) + " of " + std::to_string(num_lines) +
                          " lines failed; each says why in its place");
}

}  // namespace quire::app

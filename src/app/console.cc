#include "app/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cstdio>
#include <utility>

#include "text/utf8.h"

namespace quire::app {

void tell(const std::string& text) {
  static_cast<void>(write_patiently(STDERR_FILENO, text));
}

void print_result(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

Status check_results() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return ok_status();
  return internal_error(
      "the results could not be written to standard output, or not all of them: it is closed, or its disk is full");
}

std::string json_log_line(const char* level, const std::string& message) {
  const UtcTime now(std::chrono::system_clock::now());
  // Names of files may hold any bytes.
  return boost::json::serialize(
             boost::json::object{{"time", now.text()}, {"level", level}, {"message", replace_invalid_utf8(message)}}) +
         "\n";
}

Console::Console(LogLevel level, LineFormat format) : Console(level, isatty(STDERR_FILENO) == 1, format) {}

void Console::print_line(const char* level, const std::string& prefix, const std::string& message) {
  const std::lock_guard lock(mutex_);
  tell(format_ == LineFormat::kJson ? json_log_line(level, message) : take_line_end() + prefix + message + "\n");
}

void Console::info(const std::string& message) {
  if (level_ <= LogLevel::kInfo) print_line("info", "", message);
}

void Console::warn(const std::string& message) {
  if (level_ <= LogLevel::kWarning) print_line("warning", "warning: ", message);
}

void Console::error(const std::string& message) {
  print_line("error", "error: ", message);
}

void Console::progress(const std::string& what, int64_t num_bytes_done, int64_t num_bytes_total) {
  if (level_ > LogLevel::kInfo || !is_terminal_ || num_bytes_total <= 0) return;
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  if (num_bytes_done < num_bytes_total && now - last_progress_ < std::chrono::milliseconds(100)) return;
  last_progress_ = now;
  constexpr double kMegabyte = 1e6;
  rewrite_line(fmt::format("{}: {:3.0f} %, {:.0f} of {:.0f} MB", what,
                           100.0 * static_cast<double>(num_bytes_done) / static_cast<double>(num_bytes_total),
                           static_cast<double>(num_bytes_done) / kMegabyte,
                           static_cast<double>(num_bytes_total) / kMegabyte));
}

void Console::progress_line(const std::string& text) {
  if (level_ > LogLevel::kInfo || !is_terminal_) return;
  const std::lock_guard lock(mutex_);
  rewrite_line(text);
}

void Console::rewrite_line(const std::string& text) {
  tell("\r" + text + "\x1b[K");
  has_open_line_ = true;
}

void Console::end_progress() {
  const std::lock_guard lock(mutex_);
  tell(take_line_end());
}

std::string Console::take_line_end() {
  return std::exchange(has_open_line_, false) ? "\r\x1b[K" : "";
}

LogLevel parse_log_level(const std::string& name) {
  if (name == "error") return LogLevel::kError;
  if (name == "warning") return LogLevel::kWarning;
  return LogLevel::kInfo;
}

}  // namespace quire::app

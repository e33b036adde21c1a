// What commands tell people, on stderr: messages by level, and a progress line that rewrites itself on a terminal.
// Where the format is JSON, each message is a line of its own and there is no progress line. Results go to stdout by
// print_result. Any thread may tell something; lines stay whole.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "base/log_line.h"
#include "base/status.h"

namespace quire::app {

enum class LogLevel : uint8_t { kInfo, kWarning, kError };

// Writes to stderr. One that is closed or full keeps what it was to tell, and nothing else happens.
void tell(const std::string& text);

// Writes to stdout. What goes wrong is found by check_results, so that a full disk is not taken for success.
void print_result(const std::string& text);

// Writes out what stdout still holds, and says whether all of it has arrived.
Status check_results();

// {"time": …, "level": "error", "message": …} and the end of the line.
std::string json_log_line(const char* level, const std::string& message);

class Console {
 public:
  explicit Console(LogLevel level, LineFormat format = LineFormat::kText);
  Console(LogLevel level, bool is_terminal, LineFormat format)
      : level_(level), format_(format), is_terminal_(is_terminal && format == LineFormat::kText) {}
  ~Console() { end_progress(); }
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  void info(const std::string& message);
  void warn(const std::string& message);
  void error(const std::string& message);

  // "loading: 45 of 98 MB". On a terminal the line is rewritten at most ten times a second; elsewhere only its end is
  // told.
  void progress(const std::string& what, int64_t num_bytes_done, int64_t num_bytes_total);
  // Any text in place of the progress line; on a terminal only.
  void progress_line(const std::string& text);
  void end_progress();

  bool is_terminal() const { return is_terminal_; }

 private:
  void print_line(const char* level, const std::string& prefix, const std::string& message);
  void rewrite_line(const std::string& text);  // with the mutex held, as is
  std::string take_line_end();                 // what wipes the progress line, if there is one

  const LogLevel level_;
  const LineFormat format_;
  const bool is_terminal_;
  std::mutex mutex_;  // of what follows, and of stderr for as long as a line takes
  bool has_open_line_ = false;
  std::chrono::steady_clock::time_point last_progress_{};
};

LogLevel parse_log_level(const std::string& name);

}  // namespace quire::app

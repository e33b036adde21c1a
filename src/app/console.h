// What commands tell people, on stderr: messages by level, and a progress line that rewrites itself on a terminal.
// Results go to stdout by print_result. Any thread may tell something; lines stay whole.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "base/status.h"

namespace quire::app {

enum class LogLevel : uint8_t { kInfo, kWarning, kError };

// Writes to stderr. One that is closed or full keeps what it was to tell, and nothing else happens.
void tell(const std::string& text);

// Writes to stdout. What goes wrong is found by check_results, so that a full disk is not taken for success.
void print_result(const std::string& text);

// Writes out what stdout still holds, and says whether all of it has arrived.
Status check_results();

class Console {
 public:
  explicit Console(LogLevel level);
  Console(LogLevel level, bool is_terminal) : level_(level), is_terminal_(is_terminal) {}
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
  void print_line(const std::string& line);
  void rewrite_line(const std::string& text);  // with the mutex held, as is
  std::string take_line_end();                 // what wipes the progress line, if there is one

  const LogLevel level_;
  const bool is_terminal_;
  std::mutex mutex_;  // of what follows, and of stderr for as long as a line takes
  bool has_open_line_ = false;
  std::chrono::steady_clock::time_point last_progress_{};
};

LogLevel parse_log_level(const std::string& name);

}  // namespace quire::app

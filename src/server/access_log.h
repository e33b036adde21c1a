// A line a request on stderr: logfmt ("level=info id=… status=200 …"), or JSON with a message for people. Lines are
// written by a thread of the log's own, so that a terminal or pipe that is slow or stuck holds up no request; what does
// not fit in its queue is dropped and counted. Prompts and answers are never logged. Any thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/log_line.h"

namespace quire {

enum class LogSeverity : uint8_t { kDebug, kInfo, kWarning, kError };

class AccessLog {
 public:
  struct Options {
    LogSeverity least = LogSeverity::kInfo;
    LineFormat format = LineFormat::kText;
    int file_descriptor = 2;
    size_t max_waiting_lines = 8192;
  };

  explicit AccessLog(const Options& options);
  ~AccessLog();  // writes what waits, if the descriptor takes it
  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;

  // A value is text or a number; numbers are written bare in JSON.
  struct Field {
    std::string_view name;
    std::string text;
    bool is_number = false;

    static Field of(std::string_view name, std::string_view text) { return {name, std::string(text), false}; }
    static Field of(std::string_view name, int64_t number) { return {name, std::to_string(number), true}; }
    static Field boolean(std::string_view name, bool value) { return {name, value ? "true" : "false", true}; }
    static Field milliseconds(std::string_view name, double seconds);
  };

  bool writes(LogSeverity severity) const { return severity >= options_.least; }
  // What `message` says is in the fields too: it is left out of logfmt.
  void write(LogSeverity severity, std::string_view event, std::string_view message, const std::vector<Field>& fields);

 private:
  std::string make_line(LogSeverity severity, std::string_view event, std::string_view message,
                        const std::vector<Field>& fields) const;
  void work();

  const Options options_;
  std::mutex mutex_;
  std::condition_variable line_came_;
  std::deque<std::string> lines_;
  int64_t num_dropped_ = 0;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace quire

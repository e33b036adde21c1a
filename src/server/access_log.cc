#include "server/access_log.h"

#include <boost/json.hpp>
#include <chrono>
#include <cstdio>

#include "server/api_error.h"

namespace quire {

namespace {

constexpr const char* kSeverityNames[] = {"debug", "info", "warning", "error"};

// logfmt leaves plain words bare.
bool is_plain(std::string_view text) {
  if (text.empty()) return false;
  for (const char c : text) {
    if (c <= ' ' || c > '~' || c == '"' || c == '=' || c == '\\') return false;
  }
  return true;
}

}  // namespace

AccessLog::Field AccessLog::Field::milliseconds(std::string_view name, double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", seconds * 1e3);
  return {name, text, true};
}

AccessLog::AccessLog(const Options& options) : options_(options), thread_([this] { work(); }) {}

AccessLog::~AccessLog() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    line_came_.notify_all();
  }
  thread_.join();
}

std::string AccessLog::make_line(LogSeverity severity, std::string_view event, std::string_view message,
                                 const std::vector<Field>& fields) const {
  const bool is_json = options_.format == LineFormat::kJson;
  std::string line;
  const auto add = [&](std::string_view name, std::string_view text, bool is_number) {
    const std::string valid = is_number ? std::string(text) : valid_utf8(text);
    if (is_json) {
      line += line.empty() ? "{\"" : ",\"";
      line += std::string(name) + "\":" + (is_number ? valid : boost::json::serialize(boost::json::string(valid)));
    } else {
      if (!line.empty()) line += ' ';
      line += std::string(name) + '=';
      // Quoting as JSON does also keeps control characters out of terminals.
      line += is_number || is_plain(valid) ? valid : boost::json::serialize(boost::json::string(valid));
    }
  };
  add("time", UtcTime(std::chrono::system_clock::now()).text(), false);
  add("level", kSeverityNames[static_cast<size_t>(severity)], false);
  add("event", event, false);
  if (is_json) add("message", message, false);
  for (const Field& field : fields) add(field.name, field.text, field.is_number);
  line += is_json ? "}\n" : "\n";
  return line;
}

void AccessLog::write(LogSeverity severity, std::string_view event, std::string_view message,
                      const std::vector<Field>& fields) {
  if (!writes(severity)) return;
  std::string line = make_line(severity, event, message, fields);
  const std::lock_guard lock(mutex_);
  if (lines_.size() >= options_.max_waiting_lines) {
    ++num_dropped_;
    return;
  }
  lines_.push_back(std::move(line));
  line_came_.notify_one();
}

void AccessLog::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    line_came_.wait(lock, [this] { return !lines_.empty() || is_ending_; });
    if (lines_.empty()) return;
    std::string text;
    while (!lines_.empty() && text.size() < (64u << 10)) {
      text += lines_.front();
      lines_.pop_front();
    }
    if (num_dropped_ > 0) {
      text += make_line(LogSeverity::kWarning, "log_lines_dropped",
                        std::to_string(num_dropped_) + " lines of the log were dropped: stderr takes too few",
                        {Field::of("count", num_dropped_)});
      num_dropped_ = 0;
    }
    lock.unlock();
    std::string_view rest = text;
    bool may_wait = true;
    while (!rest.empty() && may_wait) {
      const ssize_t num = write_patiently(options_.file_descriptor, rest);
      if (num < 0) break;  // nobody to tell
      rest.remove_prefix(static_cast<size_t>(num));
      const std::lock_guard ending_lock(mutex_);
      may_wait = !is_ending_;
    }
    lock.lock();
    if (!may_wait && !rest.empty()) return;
  }
}

}  // namespace quire

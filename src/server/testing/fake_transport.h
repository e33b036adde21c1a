// A connection in memory, with a clock that the test moves: what the client sends is given piece by piece, what the
// server writes is kept. One thread. Tasks run when the test says so (run), in the order in which they were posted.
#pragma once

#include <algorithm>
#include <deque>
#include <optional>
#include <string>

#include "base/check.h"
#include "server/http_transport.h"

namespace quire::testing {

class FakeTransport : public HttpTransport {
 public:
  void read_some(std::span<char> buffer, Done done) override {
    read_buffer_ = buffer;
    read_done_ = std::move(done);
    feed_reader();
  }
  void write_some(std::span<const char> bytes, Done done) override {
    write_bytes_ = bytes;
    write_copy_.assign(bytes.begin(), bytes.end());
    write_done_ = std::move(done);
    take_write();
  }
  void wait_until(TimePoint time, std::function<void()> alarm) override {
    alarm_time_ = time;
    alarm_ = std::move(alarm);
  }
  TimePoint now() const override { return now_; }
  void finish(std::chrono::milliseconds) override {
    is_finished_ = true;
    stop();
  }
  void close() override {
    is_closed_ = true;
    stop();
  }
  void post(std::function<void()> task) override { tasks_.push_back(std::move(task)); }
  const std::string& peer() const override { return peer_; }

  // The test's side.
  void send(std::string_view bytes) {
    incoming_ += bytes;
    feed_reader();
  }
  void send_end() {
    has_end_ = true;
    feed_reader();
  }
  void reset() {
    has_failed_ = true;
    feed_reader();
    take_write();
  }
  // How many bytes a write may take from now on; none: as many as it has.
  void set_window(std::optional<size_t> num_bytes) {
    window_ = num_bytes;
    take_write();
  }
  void run() {
    while (!tasks_.empty()) {
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      task();
    }
  }
  void pass(std::chrono::milliseconds time) {
    now_ += time;
    if (alarm_ && now_ >= alarm_time_) {
      const auto alarm = std::move(alarm_);
      alarm_ = nullptr;
      alarm();
    }
    run();
  }
  std::string take_written() {
    run();
    return std::exchange(written_, {});
  }
  const std::string& written() const { return written_; }
  bool is_finished() const { return is_finished_; }
  bool is_closed() const { return is_closed_; }
  bool is_reading() const { return read_done_ != nullptr; }
  size_t num_unread() const { return incoming_.size(); }

 private:
  void stop() {
    // A socket may be writing until it is closed: the memory has to be there still.
    CHECK(!write_done_ || std::equal(write_copy_.begin(), write_copy_.end(), write_bytes_.begin()));
    read_done_ = nullptr;
    write_done_ = nullptr;
    alarm_ = nullptr;
  }
  void feed_reader() {
    if (!read_done_) return;
    TransportStatus status = TransportStatus::kOk;
    size_t num_bytes = std::min(read_buffer_.size(), incoming_.size());
    if (has_failed_) {
      status = TransportStatus::kFailed;
      num_bytes = 0;
    } else if (num_bytes == 0) {
      if (!has_end_) return;
      status = TransportStatus::kEnd;
    }
    std::copy_n(incoming_.begin(), num_bytes, read_buffer_.begin());
    incoming_.erase(0, num_bytes);
    complete(std::exchange(read_done_, nullptr), status, num_bytes);
  }
  void take_write() {
    if (!write_done_) return;
    if (has_failed_) return complete(std::exchange(write_done_, nullptr), TransportStatus::kFailed, 0);
    const size_t num_bytes = std::min(write_bytes_.size(), window_.value_or(write_bytes_.size()));
    if (num_bytes == 0) return;
    written_.append(write_bytes_.data(), num_bytes);
    if (window_.has_value()) *window_ -= num_bytes;
    complete(std::exchange(write_done_, nullptr), TransportStatus::kOk, num_bytes);
  }
  // Callbacks never come from inside the call, and none comes after finish or close.
  void complete(Done done, TransportStatus status, size_t num_bytes) {
    tasks_.push_back([this, done = std::move(done), status, num_bytes] {
      if (!is_finished_ && !is_closed_) done(status, num_bytes);
    });
  }

  std::string peer_ = "192.0.2.1";
  TimePoint now_{std::chrono::hours(1)};
  TimePoint alarm_time_;
  std::function<void()> alarm_;
  std::deque<std::function<void()>> tasks_;
  std::string incoming_;
  std::string written_;
  std::span<char> read_buffer_;
  Done read_done_;
  std::span<const char> write_bytes_;
  std::string write_copy_;  // what they were when the write began
  Done write_done_;
  std::optional<size_t> window_;
  bool has_end_ = false;
  bool has_failed_ = false;
  bool is_finished_ = false;
  bool is_closed_ = false;
};

}  // namespace quire::testing

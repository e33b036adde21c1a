// The bytes of one connection, as the protocol sees them: reads, writes, one alarm, a strand. http_server.cc implements
// it over sockets and TLS; tests and the fuzzer over memory, with a clock of their own.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <string>

namespace quire {

enum class TransportStatus { kOk, kEnd, kFailed };  // kEnd: the peer sends no more

class HttpTransport {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Done = std::function<void(TransportStatus status, size_t num_bytes)>;

  virtual ~HttpTransport() = default;

  // On the connection's strand, where their callbacks come too, never from inside the call. One read and one write at a
  // time; the memory stays valid for as long as `done` is held, which may be longer than until close. After close or
  // finish no callback comes any more.
  virtual void read_some(std::span<char> buffer, Done done) = 0;
  virtual void write_some(std::span<const char> bytes, Done done) = 0;
  // Replaces the alarm that was set before.
  virtual void wait_until(TimePoint time, std::function<void()> alarm) = 0;
  virtual TimePoint now() const = 0;
  // Everything has been written: tells the peer that nothing more comes, discards what it still sends, so that it gets
  // to read the last answer, and closes when it has closed, or after `limit`.
  virtual void finish(std::chrono::milliseconds limit) = 0;
  virtual void close() = 0;  // at once

  // Any thread: runs on the strand.
  virtual void post(std::function<void()> task) = 0;

  virtual const std::string& peer() const = 0;
};

}  // namespace quire

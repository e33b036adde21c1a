// A thread that does one piece of work again and again, each time that it is asked to: the forward of a step where the
// host computes it, so that the engine's thread has its hands free meanwhile. It sleeps between. Used by
// engine/model_runner; one thread at a time calls it.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace quire {

class StepThread {
 public:
  explicit StepThread(std::function<void()> work);
  ~StepThread();  // waits for work that has begun
  StepThread(const StepThread&) = delete;
  StepThread& operator=(const StepThread&) = delete;

  // The work begins; wait comes before the next begin.
  void begin();
  // Returns when it is done. What the work wrote is then the caller's to read.
  void wait();

 private:
  void run();

  const std::function<void()> work_;
  std::mutex mutex_;
  std::condition_variable begun_;
  std::condition_variable done_;
  bool is_working_ = false;
  bool is_ending_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace quire

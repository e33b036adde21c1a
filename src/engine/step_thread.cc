#include "engine/step_thread.h"

#include <utility>

#include "base/check.h"

namespace quire {

StepThread::StepThread(std::function<void()> work) : work_(std::move(work)), thread_([this] { run(); }) {}

StepThread::~StepThread() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  begun_.notify_one();
  thread_.join();
}

void StepThread::begin() {
  {
    const std::lock_guard lock(mutex_);
    CHECK(!is_working_);
    is_working_ = true;
  }
  begun_.notify_one();
}

void StepThread::wait() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return !is_working_; });
}

void StepThread::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    begun_.wait(lock, [this] { return is_working_ || is_ending_; });
    if (!is_working_) return;
    lock.unlock();
    work_();
    lock.lock();
    is_working_ = false;
    done_.notify_one();
  }
}

}  // namespace quire

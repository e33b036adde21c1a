#include "base/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <system_error>

#include "base/check.h"

namespace quire {

namespace {

// Longer than the gaps between the ops of a decode step, shorter than anything a neighbour would feel.
constexpr std::chrono::microseconds kWorkerWatchTime(50);
// A chunk that another thread holds usually ends within this; if not, that thread has lost its processor, and a caller
// that sleeps gives it one.
constexpr std::chrono::microseconds kCallerWatchTime(20);

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Polls until `is_done` or until the time is over; returns whether it is done.
template <typename IsDone>
bool watch_for(std::chrono::microseconds time, IsDone is_done) {
  const auto deadline = std::chrono::steady_clock::now() + time;
  do {
    for (int i = 0; i < 32; ++i) {
      if (is_done()) return true;
      pause_briefly();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return is_done();
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) : shares_(static_cast<size_t>(std::max(1, num_threads))) {
  CHECK(num_threads >= 1);
  workers_.reserve(static_cast<size_t>(num_threads - 1));
  try {
    for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { work_until_stopped(i); });
  } catch (const std::system_error&) {
    // The system gives no more threads (a limit of processes or of address space): those that are there do the work.
    // None of them looks at shares before the first job.
    while (shares_.size() > workers_.size() + 1) shares_.pop_back();
  }
}

ThreadPool::~ThreadPool() {
  is_stopping_.store(true);
  job_.fetch_add(1);
  job_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(int64_t count, int64_t grain, void* callable, Invoke invoke) {
  if (count <= 0) return;
  CHECK(grain >= 1);
  const int64_t num_chunks = (count + grain - 1) / grain;
  if (workers_.empty() || num_chunks == 1) {
    for (int64_t begin = 0; begin < count; begin += grain) {
      invoke(callable, WorkRange{begin, std::min(begin + grain, count), 0});
    }
    return;
  }
  DCHECK(num_unfinished_chunks_.load() == 0);
  callable_ = callable;
  invoke_ = invoke;
  count_ = count;
  grain_ = grain;
  num_chunks_ = num_chunks;
  num_unfinished_chunks_.store(num_chunks, std::memory_order_relaxed);
  for (int i = 0; i < num_threads(); ++i) {
    shares_[static_cast<size_t>(i)].num_open.store(first_chunk(i + 1) - first_chunk(i), std::memory_order_release);
  }
  // Sequentially consistent with the worker's "I sleep; is there another job?": one of the two sees the other.
  job_.fetch_add(1);
  if (num_sleeping_workers_.load() > 0) job_.notify_all();
  run_chunks(0);
  const auto is_done = [this] { return num_unfinished_chunks_.load(std::memory_order_acquire) == 0; };
  if (watch_for(kCallerWatchTime, is_done)) return;
  while (true) {
    const uint32_t seen = caller_wakeups_.load();
    is_caller_asleep_.store(true);
    if (num_unfinished_chunks_.load() == 0) break;
    caller_wakeups_.wait(seen);
  }
  is_caller_asleep_.store(false);
}

// A thread's own share, then what is left of the others'. What it did is told once: a line that all threads write is
// slow.
void ThreadPool::run_chunks(int worker_index) {
  const int num_shares = num_threads();
  int64_t num_done = run_share(worker_index, worker_index);
  for (int i = 1; i < num_shares; ++i) num_done += run_share((worker_index + i) % num_shares, worker_index);
  if (num_done == 0) return;
  // Sequentially consistent with the caller's "I sleep; is it done?".
  if (num_unfinished_chunks_.fetch_sub(num_done) == num_done && is_caller_asleep_.load()) {
    caller_wakeups_.fetch_add(1);
    caller_wakeups_.notify_one();
  }
}

// Returns how many chunks it ran. They are of one job, which does not end before they are told.
int64_t ThreadPool::run_share(int share, int worker_index) {
  std::atomic<int64_t>& open = shares_[static_cast<size_t>(share)].num_open;
  int64_t num_done = 0;
  int64_t num_open = open.load(std::memory_order_relaxed);
  while (num_open > 0) {
    if (!open.compare_exchange_weak(num_open, num_open - 1, std::memory_order_acquire, std::memory_order_relaxed)) {
      continue;
    }
    const int64_t begin = (first_chunk(share + 1) - num_open) * grain_;
    invoke_(callable_, WorkRange{begin, std::min(begin + grain_, count_), worker_index});
    ++num_done;
    num_open = open.load(std::memory_order_relaxed);
  }
  return num_done;
}

void ThreadPool::work_until_stopped(int worker_index) {
  while (true) {
    // Read before looking for chunks: a job that begins meanwhile is another one.
    const uint32_t seen_job = job_.load(std::memory_order_acquire);
    if (is_stopping_.load(std::memory_order_relaxed)) return;
    run_chunks(worker_index);
    const auto is_another = [&] { return job_.load(std::memory_order_relaxed) != seen_job; };
    if (!watch_for(kWorkerWatchTime, is_another)) sleep_until_work(seen_job);
  }
}

void ThreadPool::sleep_until_work(uint32_t seen_job) {
  num_sleeping_workers_.fetch_add(1);
  while (job_.load() == seen_job) job_.wait(seen_job);
  num_sleeping_workers_.fetch_sub(1);
}

}  // namespace quire

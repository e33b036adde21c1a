// The threads that share the work of CPU kernels. The caller works too. Every thread has a share of its own, chunks
// that lie one after another, so that it reads memory as one stream; whoever is done with his share takes chunks of
// others', so that a slow or preempted thread does fewer, and nothing waits for a thread that has not begun. Between
// calls workers watch for work for some microseconds, then sleep: an idle pool uses no processor time.
//
// One thread at a time may call parallel_for, and a body must not call it. A call neither allocates nor throws; what a
// body does must not throw either.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace quire {

// A piece of a parallel loop. `worker_index` in [0, num_threads) tells apart the threads of one call, for scratch.
struct WorkRange {
  int64_t begin;
  int64_t end;
  int worker_index;
};

class ThreadPool {
 public:
  // `num_threads` counts the caller: 1 makes no thread at all. There are fewer where the system gives no more.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(shares_.size()); }

  // Calls body(WorkRange) for pieces of [0, count), each at most `grain` long and starting at a multiple of it; returns
  // when all are done. Which thread runs which piece varies from call to call.
  template <typename Body>
  void parallel_for(int64_t count, int64_t grain, Body&& body) {
    using Callable = std::remove_reference_t<Body>;
    run(count, grain, const_cast<void*>(static_cast<const void*>(&body)),
        [](void* callable, const WorkRange& range) { (*static_cast<Callable*>(callable))(range); });
  }

 private:
  using Invoke = void (*)(void* callable, const WorkRange& range);

  // The chunks of a job that one thread is to do, unless others are done sooner. A cache line each.
  struct alignas(64) Share {
    // How many nobody has taken yet. Taking one is a compare-and-swap from n to n - 1; whoever succeeds holds a chunk
    // of the present job, which cannot end before that chunk does.
    std::atomic<int64_t> num_open = 0;
  };

  void run(int64_t count, int64_t grain, void* callable, Invoke invoke);
  int64_t first_chunk(int64_t share) const { return num_chunks_ * share / num_threads(); }
  void run_chunks(int worker_index);
  int64_t run_share(int share, int worker_index);
  void work_until_stopped(int worker_index);
  void sleep_until_work(uint32_t seen_job);

  // The job. Written by the caller while no chunk is open; read by those who hold a chunk of it.
  void* callable_ = nullptr;
  Invoke invoke_ = nullptr;
  int64_t count_ = 0;
  int64_t grain_ = 1;
  int64_t num_chunks_ = 0;

  std::vector<Share> shares_;  // by worker_index
  // Counts jobs, and the order to stop; workers watch it, and sleep on it.
  alignas(64) std::atomic<uint32_t> job_ = 0;
  std::atomic<bool> is_stopping_ = false;
  std::atomic<int> num_sleeping_workers_ = 0;
  alignas(64) std::atomic<int64_t> num_unfinished_chunks_ = 0;
  std::atomic<bool> is_caller_asleep_ = false;
  std::atomic<uint32_t> caller_wakeups_ = 0;

  std::vector<std::thread> workers_;
};

}  // namespace quire

// The threads that share the work of CPU kernels. The caller works too; threads take chunks from one counter, so that a
// slow or preempted thread takes fewer; nothing waits for a thread that has not begun. Between calls workers watch for
// work for some microseconds, then sleep: an idle pool uses no processor time.
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
  // `num_threads` counts the caller: 1 makes no thread at all.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

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

  void run(int64_t count, int64_t grain, void* callable, Invoke invoke);
  bool run_one_chunk(int worker_index);
  void work_until_stopped(int worker_index);
  void sleep_until_work();

  // The job. Written by the caller while no chunk is open; read by those who hold a chunk of it.
  void* callable_ = nullptr;
  Invoke invoke_ = nullptr;
  int64_t count_ = 0;
  int64_t grain_ = 1;
  int64_t num_chunks_ = 0;

  // How many chunks nobody has taken yet. Taking one is a compare-and-swap from n to n - 1; whoever succeeds holds a
  // chunk of the present job, which cannot end before that chunk does.
  alignas(64) std::atomic<int64_t> num_open_chunks_ = 0;
  alignas(64) std::atomic<int64_t> num_unfinished_chunks_ = 0;
  std::atomic<bool> is_caller_asleep_ = false;
  std::atomic<uint32_t> caller_wakeups_ = 0;
  alignas(64) std::atomic<int> num_sleeping_workers_ = 0;
  std::atomic<uint32_t> worker_wakeups_ = 0;
  std::atomic<bool> is_stopping_ = false;

  std::vector<std::thread> workers_;
};

}  // namespace quire

#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>
#include <vector>

namespace quire {
namespace {

TEST(ThreadPool, RunsEveryIndexOnce) {
  for (const int num_threads : {1, 2, 3, 7}) {
    ThreadPool pool(num_threads);
    EXPECT_EQ(pool.num_threads(), num_threads);
    for (const int64_t count : {0, 1, 2, 7, 64, 1000}) {
      for (const int64_t grain : {1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
        pool.parallel_for(count, grain, [&](const WorkRange& range) {
          EXPECT_EQ(range.begin % grain, 0);
          EXPECT_LE(range.end - range.begin, grain);
          EXPECT_LT(range.worker_index, num_threads);
          for (int64_t i = range.begin; i < range.end; ++i) visits[static_cast<size_t>(i)].fetch_add(1);
        });
        for (const auto& visit : visits) EXPECT_EQ(visit.load(), 1);
      }
    }
  }
}

// Plain, unsynchronised writes: the end of one call must come before the start of the next (ThreadSanitizer checks it).
TEST(ThreadPool, CallsAreOrdered) {
  ThreadPool pool(3);
  std::vector<int> values(97, 0);
  for (int round = 1; round <= 20000; ++round) {
    pool.parallel_for(97, 5, [&](const WorkRange& range) {
      for (int64_t i = range.begin; i < range.end; ++i) {
        int& value = values[static_cast<size_t>((i * 31 + round) % 97)];
        value += 1;
      }
    });
    ASSERT_EQ(values[static_cast<size_t>(round % 97)], round);
  }
}

TEST(ThreadPool, WorkAfterSleepIsDone) {
  ThreadPool pool(3);
  std::atomic<int> total = 0;
  for (int round = 0; round < 50; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // past the time that workers watch
    pool.parallel_for(10, 1, [&](const WorkRange&) { total.fetch_add(1); });
  }
  EXPECT_EQ(total.load(), 500);
}

// A worker that is stuck in its chunk leaves the others to the rest, and the caller sleeps until it ends.
TEST(ThreadPool, CallerWaitsForASlowChunk) {
  ThreadPool pool(2);
  std::atomic<int> done = 0;
  pool.parallel_for(8, 1, [&](const WorkRange& range) {
    if (range.begin == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    done.fetch_add(1);
  });
  EXPECT_EQ(done.load(), 8);
}

TEST(ThreadPool, IdleUsesNoProcessorTime) {
  ThreadPool pool(4);
  pool.parallel_for(100, 1, [](const WorkRange&) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const double busy_seconds = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  EXPECT_LT(busy_seconds, 0.1);  // four spinning threads would burn at least 0.2 even on one core
}

}  // namespace
}  // namespace quire

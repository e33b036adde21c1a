#include "server/text_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <span>
#include <thread>
#include <vector>

namespace quire {
namespace {

std::unique_ptr<TextPool> make_pool(TextPoolOptions options = {}) {
  auto pool = TextPool::create(options);
  CHECK(pool.is_ok());
  return std::move(pool).value();
}

// A task that waits until it is let go. What tasks use is declared before the pool, which ends them.
class Gate {
 public:
  TextStrand::Task task() {
    return [this] {
      arrived_.set_value();
      open_.get_future().wait();
    };
  }
  void wait_until_entered() { arrived_.get_future().wait(); }
  void open() { open_.set_value(); }

 private:
  std::promise<void> arrived_, open_;
};

TEST(TextPool, TasksOfOneStrandRunInOrderAndNeverTogether) {
  auto pool = make_pool({.num_threads = 4});
  constexpr int kNumStrands = 16;
  constexpr int kNumTasks = 500;
  struct Record {
    std::vector<int> order;  // unsynchronised on purpose
    std::atomic<int> num_inside = 0;
  };
  std::vector<Record> records(kNumStrands);
  std::atomic<int> num_overlaps = 0;
  for (int s = 0; s < kNumStrands; ++s) {
    auto strand = pool->create_strand();
    Record& record = records[static_cast<size_t>(s)];
    for (int i = 0; i < kNumTasks; ++i) {
      const auto task = [&, i] {
        if (record.num_inside.fetch_add(1) != 0) ++num_overlaps;
        record.order.push_back(i);
        record.num_inside.fetch_sub(1);
      };
      if (i % 7 == 3) {
        while (!strand->post_long(0, task).is_ok()) std::this_thread::yield();
      } else {
        strand->post(task);
      }
    }
  }
  pool.reset();  // runs all that was posted
  EXPECT_EQ(num_overlaps.load(), 0);
  for (const Record& record : records) {
    ASSERT_EQ(record.order.size(), static_cast<size_t>(kNumTasks));
    for (int i = 0; i < kNumTasks; ++i) ASSERT_EQ(record.order[static_cast<size_t>(i)], i);
  }
}

TEST(TextPool, LongWorkLeavesAThreadForShortWork) {
  std::vector<std::unique_ptr<Gate>> gates;
  std::promise<void> done;
  auto pool = make_pool({.num_threads = 3});
  for (int i = 0; i < 5; ++i) {
    gates.push_back(std::make_unique<Gate>());
    ASSERT_TRUE(pool->create_strand()->post_long(0, gates.back()->task()).is_ok());
  }
  gates[0]->wait_until_entered();
  gates[1]->wait_until_entered();
  EXPECT_EQ(pool->num_waiting_long(), 3u);
  pool->create_strand()->post([&] { done.set_value(); });
  EXPECT_EQ(done.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_EQ(pool->num_waiting_long(), 3u);
  for (auto& gate : gates) gate->open();
  for (size_t i = 2; i < gates.size(); ++i) gates[i]->wait_until_entered();
}

TEST(TextPool, LargeWorkLeavesAThreadForOtherLongWork) {
  constexpr size_t kLarge = 1 << 20;
  Gate gates[3];
  std::promise<void> done;
  auto pool = make_pool({.num_threads = 3});
  for (Gate& gate : gates) ASSERT_TRUE(pool->create_strand()->post_long(kLarge, gate.task()).is_ok());
  gates[0].wait_until_entered();
  ASSERT_TRUE(pool->create_strand()->post_long(1000, [&] { done.set_value(); }).is_ok());
  EXPECT_EQ(done.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_EQ(pool->num_waiting_long(), 2u);
  for (Gate& gate : gates) gate.open();
  for (Gate& gate : std::span(gates).subspan(1)) gate.wait_until_entered();
}

// Of two threads one takes all long work.
TEST(TextPool, TwoThreadsDoLargeWorkToo) {
  std::atomic<int> num_run = 0;
  auto pool = make_pool({.num_threads = 2});
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(pool->create_strand()->post_long(1 << 20, [&] { ++num_run; }).is_ok());
  pool.reset();
  EXPECT_EQ(num_run.load(), 3);
}

TEST(TextPool, RefusesLongWorkAboveItsBoundAndTakesItAgainAfterwards) {
  Gate gate;
  std::atomic<int> num_run = 0;
  auto pool = make_pool({.num_threads = 2, .max_waiting_long = 2});
  auto strand = pool->create_strand();
  ASSERT_TRUE(strand->post_long(0, gate.task()).is_ok());
  gate.wait_until_entered();
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(pool->create_strand()->post_long(0, [&] { ++num_run; }).is_ok());
  const Status refused = pool->create_strand()->post_long(0, [&] { ++num_run; });
  EXPECT_EQ(refused.code(), StatusCode::kOverloaded);
  gate.open();
  while (pool->num_waiting_long() > 0) std::this_thread::yield();
  EXPECT_TRUE(strand->post_long(0, [&] { ++num_run; }).is_ok());
  pool.reset();
  EXPECT_EQ(num_run.load(), 3);
}

// A task may post to its own strand, and a strand may be dropped with its tasks still to run.
TEST(TextPool, TasksMayPostAndStrandsMayBeDropped) {
  std::promise<int> result;
  auto pool = make_pool();
  {
    auto strand = pool->create_strand();
    strand->post([&result, weak = std::weak_ptr(strand)] { weak.lock()->post([&result] { result.set_value(42); }); });
  }
  EXPECT_EQ(result.get_future().get(), 42);
}

// Room for the recursion of template and grammar readers, wherever the shell's limit stands.
TEST(TextPool, ThreadsHaveTheStackThatWasAskedFor) {
  std::promise<size_t> sum;
  auto pool = make_pool({.num_threads = 2, .max_waiting_long = 16, .stack_bytes = 32u << 20});
  pool->create_strand()->post([&] {
    volatile char bytes[24u << 20];
    size_t total = 0;
    for (size_t i = 0; i < sizeof(bytes); i += 4096) {
      bytes[i] = 1;
      total += static_cast<size_t>(bytes[i]);
    }
    sum.set_value(total);
  });
  EXPECT_EQ(sum.get_future().get(), (24u << 20) / 4096);
}

TEST(TextPool, RefusesAPoolWithoutAThreadForShortWork) {
  EXPECT_EQ(TextPool::create({.num_threads = 1}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace quire

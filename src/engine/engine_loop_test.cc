// The engine's thread: many callers at once, ends of every kind, and sleep.
#include "engine/engine_loop.h"

#include <gtest/gtest.h>
#include <time.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <random>

#include "engine/testing/history_model.h"
#include "ops/backends.h"

namespace quire {
namespace {

using testing::HistoryModel;

// Counts what it is told, from any thread; wait() returns after the last event of the last choice.
class CountingSink : public EventSink {
 public:
  explicit CountingSink(int num_choices = 1) : num_left_(num_choices) {}

  void on_event(const TokenEvent& event) override {
    const std::lock_guard lock(mutex_);
    EXPECT_GT(num_left_, 0) << "an event after the last one";
    tokens.insert(tokens.end(), event.token_ids.begin(), event.token_ids.end());
    if (event.finish_reason == FinishReason::kNone) return;
    reasons.push_back(event.finish_reason);
    error = event.error;
    times = event.times;
    --num_left_;
    ended_.notify_all();
  }
  bool wait() {
    std::unique_lock lock(mutex_);
    return ended_.wait_for(lock, std::chrono::seconds(60), [this] { return num_left_ == 0; });
  }
  bool has_ended() {
    const std::lock_guard lock(mutex_);
    return num_left_ == 0;
  }

  std::vector<int32_t> tokens;
  std::vector<FinishReason> reasons;
  Status error;
  RequestTimes times;

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  int num_left_;
};

// A model that can be held inside a step.
class Gate {
 public:
  void close() { set(false); }
  void open() { set(true); }
  void pass() {
    std::unique_lock lock(mutex_);
    ++num_arrived_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return is_open_; });
  }
  void wait_for_arrival(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_arrived_ >= count; });
  }

 private:
  void set(bool is_open) {
    const std::lock_guard lock(mutex_);
    is_open_ = is_open;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = true;
  int num_arrived_ = 0;
};

class EngineLoopTest : public ::testing::Test {
 protected:
  EngineLoopTest() : ops(create_ops({.kind = BackendKind::kReference}).value()) {}

  // The gate holds steps up from the first request on, not the profiling at start.
  void make(int max_num_queued = 1000, int num_steps = INT32_MAX) {
    EngineOptions options;
    options.max_num_seqs = 4;
    options.max_num_batched_tokens = 32;
    options.page_size = 8;
    options.compute = Compute::kF32;
    options.num_sampling_threads = 2;
    options.kv_cache_memory_bytes = int64_t{400} * 8 * 2 * 8 * 4;
    engine = Engine::create(*ops, model, options).value();
    model.in_step = [this] { gate.pass(); };
    model.fail_after(num_steps);
    loop = EngineLoop::create(*engine, {.max_num_queued = max_num_queued}).value();
  }

  static Request request(std::vector<int32_t> prompt, int64_t max_tokens, std::shared_ptr<EventSink> sink, int n = 1) {
    return Request::from_tokens(std::move(prompt),
                                {.n = n, .temperature = 0.0f, .max_tokens = max_tokens, .ignore_eos = true},
                                std::move(sink));
  }

  std::unique_ptr<Ops> ops;
  HistoryModel model;
  Gate gate;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<EngineLoop> loop;
};

TEST_F(EngineLoopTest, AnswersAndTellsTheTimes) {
  make();
  const auto sink = std::make_shared<CountingSink>();
  const auto id = loop->submit(request({5, 6, 7}, 20, sink));
  ASSERT_TRUE(id.is_ok()) << id.status().message();
  ASSERT_TRUE(sink->wait());
  EXPECT_EQ(sink->tokens, model.expected_greedy({5, 6, 7}, 20));
  const RequestTimes& times = sink->times;
  EXPECT_NE(times.arrived, Clock::time_point{});
  EXPECT_LE(times.arrived, times.first_scheduled);
  EXPECT_LT(times.first_scheduled, times.first_token);
  EXPECT_LT(times.first_token, times.last_token);
  EXPECT_LE(times.last_token, times.finished);
  EXPECT_NEAR(times.queue_seconds() + times.prefill_seconds() + times.decode_seconds(),
              times.queue_seconds() + times.inference_seconds(), 1e-9);
  EXPECT_GE(times.end_to_end_seconds(), times.first_token_seconds() + times.decode_seconds());
  ASSERT_TRUE(loop->wait_until_idle(std::chrono::seconds(10)));
  const EngineSnapshot snapshot = loop->snapshot();
  EXPECT_EQ(snapshot.num_active, 0);
  EXPECT_EQ(snapshot.stats.num_pages_used, 0);
  EXPECT_EQ(snapshot.stats.num_requests, 1);
  EXPECT_EQ(snapshot.stats.num_finished[static_cast<size_t>(FinishReason::kLength)], 1);
  EXPECT_EQ(snapshot.stats.num_generated_tokens, 20);
  EXPECT_EQ(snapshot.stats.num_steps, 20);
  EXPECT_EQ(snapshot.stats.num_steps_by_tokens[0], 19);  // one token each
  EXPECT_EQ(snapshot.stats.num_steps_by_tokens[1], 1);   // the prompt
}

TEST_F(EngineLoopTest, RefusesWhatCanNeverRun) {
  make();
  const auto sink = std::make_shared<CountingSink>();
  EXPECT_EQ(loop->submit(request({}, 20, sink)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(loop->submit(request({1000}, 20, sink)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(loop->submit(request(std::vector<int32_t>(5000, 1), 1, sink)).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(sink->reasons.empty());
}

// Seats are not waiting: with four seats and room for two to wait, six are taken and the seventh is not.
TEST_F(EngineLoopTest, BoundsTheQueue) {
  make(/*max_num_queued=*/2);
  gate.close();
  std::vector<std::shared_ptr<CountingSink>> sinks;
  for (int i = 0; i < 6; ++i) {
    sinks.push_back(std::make_shared<CountingSink>());
    ASSERT_TRUE(loop->submit(request({i, 2, 3}, 5, sinks.back())).is_ok()) << i;
  }
  const auto refused = std::make_shared<CountingSink>();
  const Status status = loop->submit(request({7}, 5, refused)).status();
  EXPECT_EQ(status.code(), StatusCode::kOverloaded);
  EXPECT_NE(status.message().find("--max-queued-requests"), std::string::npos);
  EXPECT_EQ(loop->snapshot().num_active, 6);
  gate.open();
  for (const auto& sink : sinks) ASSERT_TRUE(sink->wait());
  ASSERT_TRUE(loop->wait_until_idle(std::chrono::seconds(10)));
  EXPECT_EQ(loop->snapshot().num_queued, 0);
  EXPECT_TRUE(loop->submit(request({7}, 5, sinks[0] = std::make_shared<CountingSink>())).is_ok());
  ASSERT_TRUE(sinks[0]->wait());
  EXPECT_TRUE(refused->reasons.empty());
}

TEST_F(EngineLoopTest, TellsThatNothingMoves) {
  make();
  EXPECT_EQ(loop->seconds_since_progress(), 0.0);
  gate.close();
  const auto sink = std::make_shared<CountingSink>();
  ASSERT_TRUE(loop->submit(request({1, 2}, 3, sink)).is_ok());
  gate.wait_for_arrival(1);
  const double first = loop->seconds_since_progress();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_GE(loop->seconds_since_progress(), first + 0.02);
  gate.open();
  ASSERT_TRUE(sink->wait());
  ASSERT_TRUE(loop->wait_until_idle(std::chrono::seconds(10)));
  EXPECT_EQ(loop->seconds_since_progress(), 0.0);
}

TEST_F(EngineLoopTest, DrainsWhatRunsAndRefusesTheRest) {
  make();
  gate.close();
  const auto sink = std::make_shared<CountingSink>();
  ASSERT_TRUE(loop->submit(request({1, 2}, 30, sink)).is_ok());
  loop->begin_drain();
  EXPECT_EQ(loop->submit(request({1}, 1, sink)).status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(loop->snapshot().is_draining);
  EXPECT_FALSE(loop->wait_until_idle(std::chrono::milliseconds(5)));
  gate.open();
  EXPECT_TRUE(loop->wait_until_idle(std::chrono::seconds(10)));
  EXPECT_TRUE(sink->has_ended());
  EXPECT_EQ(sink->tokens.size(), 30u);
}

TEST_F(EngineLoopTest, ShutdownEndsEveryChoice) {
  make();
  gate.close();
  std::vector<std::shared_ptr<CountingSink>> sinks;
  for (int i = 0; i < 12; ++i) {
    sinks.push_back(std::make_shared<CountingSink>(3));
    ASSERT_TRUE(loop->submit(request({i, 2, 3}, 500, sinks.back(), 3)).is_ok());
    if (i == 5) gate.wait_for_arrival(1);  // the rest are still wishes when the end comes
  }
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    gate.open();
  });
  loop.reset();
  opener.join();
  for (const auto& sink : sinks) {
    EXPECT_TRUE(sink->has_ended());
    EXPECT_EQ(sink->reasons, std::vector<FinishReason>(3, FinishReason::kAborted));
  }
  EXPECT_EQ(engine->stats().num_pages_used, 0);
  EXPECT_EQ(engine->stats().num_aborted[static_cast<size_t>(AbortReason::kShutdown)], 12);
}

TEST_F(EngineLoopTest, MayBeAskedAfterItsEnd) {
  make();
  gate.close();
  const auto sink = std::make_shared<CountingSink>();
  const Result<RequestId> id = loop->submit(request({1, 2, 3}, 500, sink));
  ASSERT_TRUE(id.is_ok());
  gate.wait_for_arrival(1);
  std::thread opener([&] { gate.open(); });
  loop->stop();
  opener.join();
  EXPECT_TRUE(sink->has_ended());
  // As a text pool does that works off the last events.
  loop->stop_choice(id.value(), 0);
  loop->abort(id.value());
  EXPECT_EQ(loop->submit(request({1, 2, 3}, 5, sink)).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(loop->snapshot().num_active, 0);
  loop->stop();
}

TEST_F(EngineLoopTest, AStepInErrorFailsAllAndTheLoopRefuses) {
  make(1000, /*num_steps=*/10);
  gate.close();
  std::vector<std::shared_ptr<CountingSink>> sinks;
  for (int i = 0; i < 6; ++i) {
    sinks.push_back(std::make_shared<CountingSink>(2));
    ASSERT_TRUE(loop->submit(request({i, 2, 3}, 500, sinks.back(), 2)).is_ok());
  }
  gate.open();
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->wait());
    EXPECT_EQ(sink->reasons, std::vector<FinishReason>(2, FinishReason::kError));
    EXPECT_EQ(sink->error.message(), "the model is lost");
  }
  ASSERT_TRUE(loop->wait_until_idle(std::chrono::seconds(10)));
  EXPECT_TRUE(loop->snapshot().has_failed);
  EXPECT_EQ(loop->failure().message(), "the model is lost");
  const Status status = loop->submit(request({1}, 1, sinks[0])).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("the model is lost"), std::string::npos);
  EXPECT_EQ(loop->snapshot().stats.num_pages_used, 0);
}

TEST_F(EngineLoopTest, StopsAChoice) {
  make();
  const auto sink = std::make_shared<CountingSink>(2);
  gate.close();
  const auto id = loop->submit(request({1, 2}, 1000, sink, 2));
  ASSERT_TRUE(id.is_ok()) << id.status().message();
  loop->stop_choice(id.value(), 0);
  loop->stop_choice(id.value(), 7);
  loop->stop_choice(99999, 0);
  loop->abort(99999);
  loop->stop_choice(id.value(), 1);
  gate.open();
  ASSERT_TRUE(sink->wait());
  EXPECT_EQ(sink->reasons, std::vector<FinishReason>(2, FinishReason::kStop));
}

// Callers of all kinds at once; a watcher reads the gauges. Meant for ThreadSanitizer too.
TEST_F(EngineLoopTest, ManyCallersAtOnce) {
  make(/*max_num_queued=*/16);
  constexpr int kNumThreads = 6;
  constexpr int kNumRequests = 60;
  std::atomic<int> num_refused = 0;
  std::atomic<int> num_wrong = 0;
  std::atomic<bool> is_over = false;
  const auto call = [&](unsigned seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < kNumRequests; ++i) {
      const int n = random() % 4 == 0 ? 2 : 1;
      std::vector<int32_t> prompt;
      for (unsigned t = 0; t < 1 + random() % 30; ++t) prompt.push_back(static_cast<int32_t>(random() % 59));
      const auto sink = std::make_shared<CountingSink>(n);
      const auto id = loop->submit(request(prompt, 1 + static_cast<int64_t>(random() % 20), sink, n));
      if (!id.is_ok()) {
        EXPECT_EQ(id.status().code(), StatusCode::kOverloaded);
        ++num_refused;
        continue;
      }
      switch (random() % 4) {
        case 0:
          loop->abort(id.value(), AbortReason::kDisconnected);
          break;
        case 1:
          loop->stop_choice(id.value(), static_cast<int>(random() % 3));
          break;
        case 2:
          continue;  // does not wait
        default:
          break;
      }
      if (!sink->wait()) {
        ++num_wrong;
        continue;
      }
      if (n == 1 && sink->tokens != model.expected_greedy(prompt, static_cast<int>(sink->tokens.size()))) ++num_wrong;
    }
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kNumThreads; ++t) threads.emplace_back(call, t);
  std::thread watcher([&] {
    EngineStats last;
    while (!is_over) {
      const EngineSnapshot snapshot = loop->snapshot();
      EXPECT_GE(snapshot.stats.num_steps, last.num_steps);
      EXPECT_GE(snapshot.stats.num_generated_tokens, last.num_generated_tokens);
      EXPECT_LE(snapshot.num_queued, 16 + 4);
      last = snapshot.stats;
      loop->seconds_since_progress();
    }
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(loop->wait_until_idle(std::chrono::seconds(60)));
  is_over = true;
  watcher.join();
  EXPECT_EQ(num_wrong, 0);
  const EngineSnapshot snapshot = loop->snapshot();
  EXPECT_EQ(snapshot.num_active, 0);
  EXPECT_EQ(snapshot.num_queued, 0);
  EXPECT_EQ(snapshot.stats.num_pages_used, 0);
  EXPECT_EQ(snapshot.stats.num_requests, kNumThreads * kNumRequests - num_refused);
}

// Half a second in which nobody wants anything costs no time of the processor.
TEST_F(EngineLoopTest, SleepsWhileIdle) {
  make();
  const auto sink = std::make_shared<CountingSink>();
  ASSERT_TRUE(loop->submit(request({1}, 3, sink)).is_ok());
  ASSERT_TRUE(sink->wait());
  ASSERT_TRUE(loop->wait_until_idle(std::chrono::seconds(10)));
  const auto used_seconds = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double before = used_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const double used = used_seconds() - before;
  RecordProperty("idle_cpu_milliseconds", std::to_string(used * 1e3));
  EXPECT_LT(used, 0.1);  // a loop that spins would have used half a second
}

}  // namespace
}  // namespace quire

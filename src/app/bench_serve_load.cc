#include "app/bench_serve_load.h"

#include <signal.h>

#include <cerrno>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

namespace quire::app {

namespace {

// Arrivals that no thread has taken yet. The dispatcher adds, workers take.
class Queue {
 public:
  struct Item {
    int64_t index;
    double due_s;
  };

  // True: no worker was waiting for it.
  bool add(Item item) {
    const std::lock_guard<std::mutex> lock(mutex_);
    items_.push_back(item);
    changed_.notify_one();
    return static_cast<size_t>(num_idle_) < items_.size() - next_;
  }
  void close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closed_ = true;
    changed_.notify_all();
  }
  bool take(Item* item) {
    std::unique_lock<std::mutex> lock(mutex_);
    ++num_idle_;
    changed_.wait(lock, [&] { return is_closed_ || next_ < items_.size(); });
    --num_idle_;
    if (next_ >= items_.size()) return false;
    *item = items_[next_++];
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Item> items_;
  size_t next_ = 0;
  int num_idle_ = 0;
  bool is_closed_ = false;
};

class LoadRun {
 public:
  LoadRun(const BenchLoad& load, HttpClientOptions client_options, const BenchSend& send, BenchProgress* progress)
      : load_(load),
        client_options_(std::move(client_options)),
        send_(send),
        progress_(progress),
        start_(BenchClock::now()) {
    client_options_.is_cancelled = &is_cancelled_;
  }

  std::vector<BenchRecord> run(const std::function<void(double)>& on_tick, bool* was_interrupted) {
    // Every thread inherits the mask: the interrupt is taken here alone, between ticks.
    sigset_t interrupt, before;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    pthread_sigmask(SIG_BLOCK, &interrupt, &before);
    std::thread driver([this] {
      if (load_.request_rate > 0) {
        dispatch();
      } else {
        loop_closed();
      }
      has_ended_ = true;
    });
    *was_interrupted = false;
    double last_tick_s = elapsed();
    while (!has_ended_) {
      const timespec wait{0, 20'000'000};
      if (sigtimedwait(&interrupt, nullptr, &wait) == SIGINT) {
        *was_interrupted = true;
        is_cancelled_ = true;
      }
      if (elapsed() - last_tick_s >= 0.5) {
        last_tick_s = elapsed();
        on_tick(last_tick_s);
      }
    }
    driver.join();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return std::move(records_);
  }

 private:
  double elapsed() const { return std::chrono::duration<double>(BenchClock::now() - start_).count(); }
  bool may_send() const { return !is_cancelled_ && (load_.duration_s <= 0 || elapsed() < load_.duration_s); }

  void send_one(HttpClient& client, int64_t index, double due_s) {
    const int num_running = ++progress_->num_running;
    int peak = progress_->peak_running;
    while (peak < num_running && !progress_->peak_running.compare_exchange_weak(peak, num_running)) continue;
    BenchRecord record = send_(client, index, start_);
    record.index = index;
    record.due_s = due_s < 0 ? record.start_s : due_s;
    --progress_->num_running;
    ++progress_->num_done;
    if (!record.is_ok()) ++progress_->num_failed;
    progress_->num_output_tokens += record.num_output_tokens;
    const std::lock_guard<std::mutex> lock(records_mutex_);
    records_.push_back(std::move(record));
  }

  void loop_closed() {
    std::atomic<int64_t> next{0};
    std::vector<std::thread> threads;
    for (int64_t i = 0; i < std::min<int64_t>(load_.concurrency, load_.num_requests); ++i) {
      threads.emplace_back([&] {
        HttpClient client(client_options_);
        while (may_send()) {
          const int64_t index = next++;
          if (index >= load_.num_requests) return;
          send_one(client, index, -1.0);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  void dispatch() {
    const std::vector<double> arrivals = poisson_arrivals(load_.request_rate, load_.num_requests, load_.seed);
    Queue queue;
    std::vector<std::thread> threads;
    for (int64_t i = 0; i < load_.num_requests && may_send(); ++i) {
      const double due_s = arrivals[static_cast<size_t>(i)];
      while (may_send() && elapsed() < due_s)
        std::this_thread::sleep_for(std::chrono::duration<double>(std::min(0.1, due_s - elapsed())));
      if (!may_send()) break;
      if (queue.add({i, due_s}) && static_cast<int>(threads.size()) < load_.concurrency) {
        threads.emplace_back([&] {
          HttpClient client(client_options_);
          Queue::Item item;
          while (queue.take(&item)) {
            if (!is_cancelled_) send_one(client, item.index, item.due_s);
          }
        });
      }
    }
    queue.close();
    for (std::thread& thread : threads) thread.join();
  }

  const BenchLoad load_;
  HttpClientOptions client_options_;
  const BenchSend& send_;
  BenchProgress* progress_;
  const BenchClock::time_point start_;
  std::atomic<bool> is_cancelled_{false};
  std::atomic<bool> has_ended_{false};
  std::mutex records_mutex_;
  std::vector<BenchRecord> records_;
};

}  // namespace

std::vector<double> poisson_arrivals(double request_rate, int64_t num_requests, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<double> arrivals;
  double time_s = 0.0;
  for (int64_t i = 0; i < num_requests; ++i) {
    arrivals.push_back(time_s);
    const double u = static_cast<double>(random() >> 11) * 0x1p-53;
    time_s -= std::log1p(-u) / request_rate;
  }
  return arrivals;
}

std::vector<BenchRecord> run_bench_load(const BenchLoad& load, const HttpClientOptions& client_options,
                                        const BenchSend& send, BenchProgress* progress,
                                        const std::function<void(double elapsed_s)>& on_tick, bool* was_interrupted) {
  return LoadRun(load, client_options, send, progress).run(on_tick, was_interrupted);
}

}  // namespace quire::app

// Counters, gauges and histograms, and their text in Prometheus' exposition format. Knows nothing of what is counted:
// the named ones are in server/server_metrics. Adding is lock-free and may be done on any thread; registering takes a
// lock and is for start-up. What is registered lives as long as the registry.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace quire {

class Counter {
 public:
  void add(double amount = 1.0) { value_.fetch_add(amount, std::memory_order_relaxed); }
  // For values that somebody else counts. A counter never falls: a smaller value is ignored.
  void raise_to(double value);
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_ = 0.0;
};

class Gauge {
 public:
  void set(double value) { value_.store(value, std::memory_order_relaxed); }
  void add(double amount) { value_.fetch_add(amount, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_ = 0.0;
};

class Histogram {
 public:
  // Upper bounds in ascending order; +Inf is added.
  explicit Histogram(std::span<const double> bounds);
  void observe(double value);
  // For values that somebody else counts: the counts by bucket [bounds + 1] and the sum, since the beginning.
  void set(std::span<const uint64_t> buckets, double sum);

  const std::vector<double>& bounds() const { return bounds_; }
  uint64_t bucket(size_t index) const { return buckets_[index].load(std::memory_order_relaxed); }  // not cumulative
  double sum() const { return sum_.load(std::memory_order_relaxed); }
  uint64_t count() const;

 private:
  std::vector<double> bounds_;
  std::unique_ptr<std::atomic<uint64_t>[]> buckets_;  // [bounds + 1]
  std::atomic<double> sum_ = 0.0;
};

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

class MetricRegistry {
 public:
  MetricRegistry();
  ~MetricRegistry();

  // The same name may be registered again with other labels (of the same names); the first help text counts. The same
  // name and labels give the same metric. A counter's name ends in _total by convention.
  Counter& counter(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  Gauge& gauge(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  Histogram& histogram(const std::string& name, const std::string& help, std::span<const double> bounds,
                       const MetricLabels& labels = {});

  // Prometheus' text, version 0.0.4.
  std::string text() const;

 private:
  struct Family;
  struct Series;
  Family& family(const std::string& name, const std::string& help, const char* type);

  mutable std::mutex mutex_;
  std::deque<Family> families_;
};

}  // namespace quire

// The numbers and their text; tests/metrics_test.py has a client library of Prometheus read the same format.
#include "server/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>
#include <vector>

namespace quire {
namespace {

TEST(Metrics, Text) {
  MetricRegistry registry;
  registry.counter("a_total", "How many \\ of\nthem.", {{"model_name", "x\"y\\z\n"}}).add(3);
  registry.gauge("b", "Now.").set(0.25);
  registry.gauge("b", "Now.", {{"k", "v"}}).set(std::nan(""));
  const double bounds[] = {0.5, 1, 10};
  Histogram& histogram = registry.histogram("c", "Spread.", bounds, {{"m", "n"}});
  for (const double value : {0.5, 0.6, 100.0, 7.0}) histogram.observe(value);
  histogram.observe(std::nan(""));
  EXPECT_EQ(
      registry.text(),
      "# HELP a_total How many \\\\ of\\nthem.\n# TYPE a_total counter\na_total{model_name=\"x\\\"y\\\\z\\n\"} 3\n"
      "# HELP b Now.\n# TYPE b gauge\nb 0.25\nb{k=\"v\"} NaN\n"
      "# HELP c Spread.\n# TYPE c histogram\n"
      "c_bucket{m=\"n\",le=\"0.5\"} 1\nc_bucket{m=\"n\",le=\"1.0\"} 2\nc_bucket{m=\"n\",le=\"10.0\"} 3\n"
      "c_bucket{m=\"n\",le=\"+Inf\"} 4\nc_sum{m=\"n\"} 108.1\nc_count{m=\"n\"} 4\n");
}

TEST(Metrics, TheSameNameAndLabelsAreTheSameMetric) {
  MetricRegistry registry;
  registry.counter("a_total", "", {{"k", "1"}}).add();
  registry.counter("a_total", "", {{"k", "1"}}).add();
  EXPECT_EQ(registry.counter("a_total", "", {{"k", "1"}}).value(), 2);
  EXPECT_EQ(registry.counter("a_total", "", {{"k", "2"}}).value(), 0);
}

TEST(Metrics, CountersNeverFall) {
  Counter counter;
  counter.raise_to(5);
  counter.raise_to(3);
  EXPECT_EQ(counter.value(), 5);
}

TEST(Metrics, AddedToByManyThreads) {
  MetricRegistry registry;
  Counter& counter = registry.counter("a_total", "");
  const double bounds[] = {1, 2};
  Histogram& histogram = registry.histogram("h", "", bounds);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5000; ++i) {
        counter.add();
        histogram.observe(i % 3);
        if (i % 1000 == 0) registry.text();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counter.value(), 20000);
  EXPECT_EQ(histogram.count(), 20000u);
}

}  // namespace
}  // namespace quire

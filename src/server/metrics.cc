#include "server/metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/check.h"

namespace quire {

namespace {

void append_number(std::string& out, double value) {
  if (std::isnan(value)) {
    out += "NaN";
  } else if (std::isinf(value)) {
    out += value > 0 ? "+Inf" : "-Inf";
  } else {
    char text[64];
    const auto [end, error] = std::to_chars(text, text + sizeof(text), value);
    out.append(text, error == std::errc() ? end : text);
  }
}

// The format escapes \, " and line ends in label values; in help texts only \ and line ends.
void append_escaped(std::string& out, std::string_view text, bool escapes_quotes) {
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\\' || (c == '"' && escapes_quotes)) {
      out += '\\';
      out += c;
    } else {
      out += c;
    }
  }
}

// {model_name="m",le="0.5"}
void append_labels(std::string& out, const MetricLabels& labels, std::string_view bound = {}) {
  if (labels.empty() && bound.empty()) return;
  char separator = '{';
  for (const auto& [name, value] : labels) {
    out += separator;
    out += name + "=\"";
    append_escaped(out, value, true);
    out += '"';
    separator = ',';
  }
  if (!bound.empty()) {
    out += separator;
    out += "le=\"";
    out += bound;
    out += '"';
  }
  out += '}';
}

}  // namespace

void Counter::raise_to(double value) {
  double current = value_.load(std::memory_order_relaxed);
  while (current < value && !value_.compare_exchange_weak(current, value, std::memory_order_relaxed)) {
  }
}

Histogram::Histogram(std::span<const double> bounds)
    : bounds_(bounds.begin(), bounds.end()), buckets_(new std::atomic<uint64_t>[bounds.size() + 1]) {
  CHECK(std::is_sorted(bounds_.begin(), bounds_.end()));
  for (size_t i = 0; i <= bounds_.size(); ++i) buckets_[i].store(0, std::memory_order_relaxed);
}

void Histogram::observe(double value) {
  if (std::isnan(value)) return;
  const size_t index = static_cast<size_t>(std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin());
  buckets_[index].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

void Histogram::set(std::span<const uint64_t> buckets, double sum) {
  CHECK(buckets.size() == bounds_.size() + 1);
  for (size_t i = 0; i < buckets.size(); ++i) buckets_[i].store(buckets[i], std::memory_order_relaxed);
  sum_.store(sum, std::memory_order_relaxed);
}

uint64_t Histogram::count() const {
  uint64_t count = 0;
  for (size_t i = 0; i <= bounds_.size(); ++i) count += bucket(i);
  return count;
}

struct MetricRegistry::Series {
  MetricLabels labels;
  std::unique_ptr<Counter> counter;
  std::unique_ptr<Gauge> gauge;
  std::unique_ptr<Histogram> histogram;
};

struct MetricRegistry::Family {
  std::string name;
  std::string help;
  const char* type;
  std::deque<Series> series;

  Series& find_or_add(const MetricLabels& labels) {
    for (Series& one : series) {
      if (one.labels == labels) return one;
    }
    series.push_back({.labels = labels, .counter = nullptr, .gauge = nullptr, .histogram = nullptr});
    return series.back();
  }
};

MetricRegistry::MetricRegistry() = default;
MetricRegistry::~MetricRegistry() = default;

MetricRegistry::Family& MetricRegistry::family(const std::string& name, const std::string& help, const char* type) {
  for (Family& one : families_) {
    if (one.name != name) continue;
    CHECK(std::string_view(one.type) == type);
    return one;
  }
  families_.push_back({.name = name, .help = help, .type = type, .series = {}});
  return families_.back();
}

Counter& MetricRegistry::counter(const std::string& name, const std::string& help, const MetricLabels& labels) {
  const std::lock_guard lock(mutex_);
  Series& series = family(name, help, "counter").find_or_add(labels);
  if (series.counter == nullptr) series.counter = std::make_unique<Counter>();
  return *series.counter;
}

Gauge& MetricRegistry::gauge(const std::string& name, const std::string& help, const MetricLabels& labels) {
  const std::lock_guard lock(mutex_);
  Series& series = family(name, help, "gauge").find_or_add(labels);
  if (series.gauge == nullptr) series.gauge = std::make_unique<Gauge>();
  return *series.gauge;
}

Histogram& MetricRegistry::histogram(const std::string& name, const std::string& help, std::span<const double> bounds,
                                     const MetricLabels& labels) {
  const std::lock_guard lock(mutex_);
  Series& series = family(name, help, "histogram").find_or_add(labels);
  if (series.histogram == nullptr) series.histogram = std::make_unique<Histogram>(bounds);
  return *series.histogram;
}

std::string MetricRegistry::text() const {
  const std::lock_guard lock(mutex_);
  std::string out;
  const auto line = [&out](const std::string& name, const MetricLabels& labels, double value,
                           std::string_view bound = {}) {
    out += name;
    append_labels(out, labels, bound);
    out += ' ';
    append_number(out, value);
    out += '\n';
  };
  for (const Family& one : families_) {
    out += "# HELP " + one.name + ' ';
    append_escaped(out, one.help, false);
    out += "\n# TYPE " + one.name + ' ' + one.type + '\n';
    for (const Series& series : one.series) {
      if (series.counter != nullptr) line(one.name, series.labels, series.counter->value());
      if (series.gauge != nullptr) line(one.name, series.labels, series.gauge->value());
      if (series.histogram == nullptr) continue;
      const Histogram& histogram = *series.histogram;
      uint64_t cumulative = 0;
      for (size_t i = 0; i <= histogram.bounds().size(); ++i) {
        cumulative += histogram.bucket(i);
        std::string bound;
        if (i < histogram.bounds().size()) {
          append_number(bound, histogram.bounds()[i]);
          // Clients write whole bounds as floats; dashboards select by that text.
          if (bound.find_first_of(".en") == std::string::npos) bound += ".0";
        } else {
          bound = "+Inf";
        }
        line(one.name + "_bucket", series.labels, static_cast<double>(cumulative), bound);
      }
      line(one.name + "_sum", series.labels, histogram.sum());
      line(one.name + "_count", series.labels, static_cast<double>(cumulative));
    }
  }
  return out;
}

}  // namespace quire
